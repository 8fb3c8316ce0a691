//! `efa-core`'s [device](efa_core::nic) over real verbs: libibverbs and libefa.
//!
//! ```no_run
#![doc = include_str!("../examples/echo.rs")]
//! ```
//!
//! [`HwDevice::open`] finds an EFA device. [`HwDomain`] is a protection domain with its registrations,
//! address handles, completion queues and packet buffers, [`HwQueuePair`] an SRD queue pair in it;
//! [`HwDevice::open_nic`] makes one of each. Nothing here asks whether the device is emulated:
//! `efa-emu run -- PROGRAM` puts the software device behind the same ABI.
//!
//! The verbs come from `ibverbs-sys`, the FFI layer of the `ibverbs` crate. The crate's safe layer
//! cannot be used with EFA: it keeps its context private and has neither SRD queue pairs nor address
//! handles. The structures of the `efadv_*` calls are declared in [`efadv`]. Both libraries are loaded when a
//! device is first looked for; programs start without them.

mod address_book;
mod buffers;
mod completion_queue;
mod device;
mod domain;
pub mod efadv;
mod elements;
mod error;
mod loaded;
mod memory;
mod queue_pair;

pub use device::{DeviceName, HwDevice};
pub use domain::HwDomain;
pub use error::OpenError;
pub use memory::UserMemory;
pub use queue_pair::{HwNic, HwQueuePair, NicConfig};
