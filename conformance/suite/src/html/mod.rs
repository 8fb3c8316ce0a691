//! The results as one HTML page without scripts or other files.

mod drawing;
mod escape;
mod page;

pub use page::{render, write};
