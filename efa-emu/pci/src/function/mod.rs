//! The PCI function: the implementation of its regions.
//!
//! * `config_space`: the header and the capabilities.
//! * `registers`: the registers, which are read by way of memory.
//! * `admin_queue`: the queues of commands and completions. `commands`, `objects`: their execution.
//! * `doorbells`, `send_queues`: the regions with doorbells and send queues.
//! * `notifier`: events and interrupts.
//! * `device`: the whole function.

mod admin_queue;
mod bars;
mod commands;
mod config_space;
mod device;
mod doorbells;
mod late_completions;
mod notifier;
mod objects;
mod registers;
mod send_queues;

pub use bars::{Bars, MSIX_VECTORS};
pub use config_space::ConfigSpace;
pub use device::{Function, KEEP_ALIVE_INTERVAL, OpenError};
pub use notifier::Notifier;
pub use registers::Register;
