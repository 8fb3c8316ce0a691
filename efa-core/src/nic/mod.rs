//! The device interface that the protocol requires: the subset of SRD verbs that it uses.
//!
//! Three traits, each with its counterparts in verbs and libfabric:
//!
//! | trait | contents | of verbs | of libfabric |
//! |---|---|---|---|
//! | [`Device`] | identity, capabilities, limits | `ibv_context` | `fi_info` |
//! | [`Domain`] | registrations, address handles, packet buffers, completion queues | `ibv_pd` | `fid_domain` |
//! | [`QueuePair`] | posting, with or without the doorbell | `ibv_qp` | the device's side of a `fid_ep` |
//!
//! Two devices implement them: the deterministic in-process emulator (`efa_sim`) and real verbs
//! (`efa_hw`). The protocol engine is generic over them, so that the hot path contains no indirect
//! call.
//!
//! # Memory
//!
//! *Packet buffers* belong to the domain: they are registered once, handed out as [`BufferId`]s and
//! reused. *User memory* is only ever named by address and length; the device reads and writes it
//! ([`Domain::copy_from_user`], [`Domain::copy_to_user`], gather on send, RDMA) and answers a bad
//! address with an error. So the engine needs no `unsafe` code, and each byte is copied at most
//! once.
//!
//! # Ownership
//!
//! A domain is a plain value with one owner, used through `&mut`. A queue pair is a separate value;
//! methods that need the domain have it as an argument. An endpoint has its queue pair and reaches
//! the domain through a [`Nic`], in one of two ways that the type decides:
//!
//! * [`OwnNic`]: the domain is inside. This is the simple use, one endpoint with a domain of its
//!   own; the domain's fields are at a fixed distance from the endpoint's, and nothing is looked
//!   up.
//! * [`LentNic`]: the domain is shared, and stays in the endpoint that was used last. An
//!   [`endpoint::Domain`](crate::endpoint::Domain) owns the endpoints and moves the domain between
//!   them, which moves one pointer.
//!
//! The two obvious alternatives cost more. A handle that can be cloned (`Rc<RefCell<_>>`,
//! `Arc<Mutex<_>>`) costs a count and a borrow on every access, cannot return the bytes of a packet
//! buffer as a slice, and decides for all users whether a domain may move between threads. A domain
//! that is an argument of every operation would be an argument of nearly every function of the
//! engine, and every caller with one endpoint would carry two values that belong together.

mod attributes;
mod completion;
mod error;
#[cfg(test)]
pub(crate) mod fake;
mod hold;
mod lent;
mod memory;
mod objects;
mod request;
#[doc(hidden)]
pub mod test_device;

pub use attributes::{DeviceCaps, NicAttributes};
pub use completion::{Completion, CompletionKind, Source};
pub use error::NicError;
pub use hold::{Nic, OwnNic, PolledNic};
pub use lent::LentNic;
pub(crate) use lent::MovableSlot;
pub use memory::{Access, BufferId, LocalKey, Region, RemoteKey, UserSlice};
pub use objects::{CompletionQueueId, Device, Domain, DomainConfig, QueuePair, QueuePairConfig};
pub use request::{Destination, Doorbell, RdmaRequest, SendRequest};

pub use crate::wire::Status;
