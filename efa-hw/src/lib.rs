//! `efa-core`'s [`Nic`](efa_core::nic::Nic) over real verbs: libibverbs and libefa.
//!
//! [`HwDevice::open`] finds an EFA device, [`HwNic::open`] makes one SRD queue pair on it with a
//! completion queue, an address book and registered packet buffers. Nothing here asks whether the
//! device is emulated: `efa-emu run -- PROGRAM` puts the software device behind the same ABI.
//!
//! The verbs come from `ibverbs-sys`, the FFI layer of the `ibverbs` crate. The crate's safe layer
//! keeps its context private and knows neither SRD queue pairs nor address handles, so nothing of
//! it can be used with EFA. The `efadv_*` calls are declared in [`efadv`].

mod address_book;
mod buffers;
mod device;
pub mod efadv;
mod error;
mod memory;
mod nic;
mod queues;

pub use device::{DeviceName, HwDevice};
pub use error::OpenError;
pub use memory::UserMemory;
pub use nic::{HwNic, NicConfig};
