//! What all groups share: cells and their results, the lab that they run in, emulated hosts and the
//! processes on them.

mod bench;
mod cell;
mod host;
mod hosts;
mod installed;
mod known;
mod lab;
mod process;
pub mod report;
pub(crate) mod survivors;
pub mod traffic;
pub(crate) mod volume;
mod waiting;

pub use bench::Bench;
pub use cell::{Cell, CellResult, Outcome, Row, Summary, Unmet};
pub use host::Host;
pub use hosts::Hosts;
pub(crate) use installed::installed;
pub use lab::{Lab, Selection, Userland};
pub(crate) use process::free_port;
pub use process::{Finished, Running};
pub(crate) use waiting::await_some;
