//! One opened device of one process.

mod direct;
mod faults;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod opened;
mod polling_policy;
mod shared;
mod state;
mod thread;
mod worker;

pub use opened::Engine;
pub use state::{CommandOutcome, EventHandler};
pub use thread::is_device_thread;
