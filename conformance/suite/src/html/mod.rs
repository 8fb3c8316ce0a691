//! The results as one HTML page without scripts or other files. Its content is in the templates of
//! this package.

mod drawing;
mod page;

pub use page::write;
