//! `efa-core`'s [device](efa_core::nic) over real verbs: libibverbs and libefa.
//!
//! ```no_run
#![doc = include_str!("../examples/echo.rs")]
//! ```
//!
//! [`HwDevice::open`] finds an EFA device. [`HwDomain`] is a protection domain with its
//! registrations, address handles, completion queues and packet buffers, [`HwQueuePair`] an SRD
//! queue pair in it, or one for datagrams; [`HwDevice::open_nic`] makes one of each. Nothing here
//! depends on whether the device is emulated: `efa-emu run -- PROGRAM` provides the software device
//! by the same ABI.
//!
//! # Cached registrations
//!
//! An operation on memory that the application did not register needs a temporary registration.
//! [`HwDomain::cache_registrations`] keeps these for later operations. It is optional, because a
//! peer that received a key for one operation can use it as long as the registration is kept.
//!
//! A kept registration must never be used for memory that was unmapped and mapped again, because
//! the device would still use the old pages. The kernel reports each change, by userfaultfd, before
//! the call that changes the memory returns, and the cache checks before each use whether a change
//! is pending. Intercepting `munmap` and similar calls would miss calls inside the C library.
//! Reading the mapping at each use would miss a mapping that was replaced by an equal one. Memory
//! that cannot be watched exactly is registered for each operation: files, shared memory, memory
//! that was released by `madvise`, and all memory where userfaultfd is not permitted.
//!
//! # Sleeping
//!
//! A queue that was created with a channel ([`NicConfig::completion_channel`],
//! [`HwDomain::create_completion_queue_with_channel`]) wakes a program. [`HwDomain::arm`] describes
//! the order in which no completion is missed.
//!
//! # Connections
//!
//! [`connected`] is for other devices: reliable connections, and shared receive queues that match
//! tags.
//!
//! # Errors
//!
//! A call that fails is an [`OpenError`] or a [`NicError`](efa_core::nic::NicError) with the verb
//! and its errno. A work request that fails has a [`Status`](efa_core::nic::Status) with the
//! device's code in its completion. [`HwDomain::take_errors`] returns its verb and both codes, also
//! for unknown statuses.
//!
//! # Libraries
//!
//! `efa-verbs-sys` generates the structures of the verbs from the installed headers. The crate
//! `ibverbs` cannot be used with EFA: its context is private, and it has neither SRD queue pairs
//! nor address handles; its FFI layer, `ibverbs-sys`, compiles rdma-core. [`efadv`] declares the
//! structures of the `efadv_*` calls. Both libraries are loaded at the first search for a device;
//! programs start without them.

mod address_book;
mod buffers;
mod completion_channel;
mod completion_queue;
pub mod connected;
mod device;
mod domain;
pub mod efadv;
mod elements;
mod error;
mod fork;
mod loaded;
mod memory;
mod memory_monitor;
mod nic;
mod open_devices;
mod protection_domain;
mod queue_pair;
mod registration_cache;
mod report;
mod work_request;

pub use device::{DeviceName, HwDevice};
pub use domain::HwDomain;
pub use error::{CompletionError, OpenError};
pub use fork::{ForkSupport, enable_fork_support, fork_support};
pub use memory::UserMemory;
pub use nic::{HwNic, NicConfig};
pub use protection_domain::Dmabuf;
pub use queue_pair::{HwQueuePair, Inline};
pub use registration_cache::{CacheLimits, CacheStatistics};
pub use report::DeviceReport;
