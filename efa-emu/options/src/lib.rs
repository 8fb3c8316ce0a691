//! Command lines that several programs of this project have.
//!
//! * [`bridge`]: that of the program that joins machines, of which `efa-emu` has help and manual
//!   pages.
//! * [`capture_output`]: what commands that write captures have in common: options, filter, order
//!   of time, files.
//! * [`pages`]: manual pages and shell completions of a command.
//! * [`vm`]: that of the program that starts virtual machines, likewise.

pub mod bridge;
pub mod capture_output;
pub mod pages;
pub mod vm;
