//! The common parts of all groups: cells and their results, the lab that they run in, emulated
//! hosts and the processes on them.

mod bench;
mod cell;
mod cells_error;
mod host;
mod hosts;
mod installed;
mod known;
mod lab;
mod not_measured;
mod process;
pub mod report;
pub(crate) mod survivors;
pub mod traffic;
pub(crate) mod volume;
mod waiting;

pub use bench::Bench;
pub use cell::{Cell, Outcome, Row, Summary};
pub use cells_error::CellsError;
pub use host::Host;
pub use hosts::{Hosts, HostsError};
pub(crate) use installed::installed;
pub use lab::{Lab, Selection, Userland};
pub(crate) use not_measured::failed;
pub use not_measured::{CellResult, NotMeasured};
pub use process::{Finished, Running};
pub(crate) use waiting::await_some;
