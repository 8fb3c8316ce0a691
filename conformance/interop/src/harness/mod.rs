//! What all groups share: cells and their results, the lab that they run in, emulated hosts and the
//! processes on them.

mod bench;
mod cell;
pub(crate) mod dialogue;
mod host;
mod hosts;
mod lab;
mod process;
pub mod report;
pub mod traffic;
pub(crate) mod volume;

pub use bench::Bench;
pub use cell::{Cell, CellResult, Outcome, Row, Summary, Unmet};
pub use host::Host;
pub use hosts::Hosts;
pub use lab::{Lab, Selection, Userland};
pub(crate) use process::free_port;
pub use process::{Finished, Running};
