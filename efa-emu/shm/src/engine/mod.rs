//! One opened device of one process.

mod direct;
mod faults;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod opened;
mod patience;
mod shared;
mod state;
mod thread;
mod worker;

pub use opened::Engine;
pub use state::{CommandFate, EventHandler};
pub use thread::is_device_thread;
