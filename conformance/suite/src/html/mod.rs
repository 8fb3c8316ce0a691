//! The results as one HTML page without scripts or other files. What stands on it is in the
//! templates of this package.

mod drawing;
mod page;

pub use page::write;
