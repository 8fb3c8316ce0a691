//! The PCI function: what lies behind its regions.
//!
//! * `config_space`: the header and the capabilities.
//! * `registers`: the registers, and reading them without reads.
//! * `admin_queue`: commands come and completions go. `commands`, `objects`: what is done.
//! * `doorbells`, `send_queues`: the regions with doorbells and send queues.
//! * `notifier`: events and interrupts.
//! * `device`: all of it.

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
pub use device::{Function, OpenError, SIGN_OF_LIFE};
pub use notifier::Notifier;
pub use registers::Register;
