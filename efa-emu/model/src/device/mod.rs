//! The hardware half of the device: objects, keys and queues.
//!
//! [`Device`] does no I/O, starts no thread and reads no clock; times are `Duration`s since a start
//! that the owner chooses. It has four interfaces:
//!
//! * verbs that manage objects (`create_qp`, `register_memory`, ...) are calls;
//! * work arrives through rings in shared memory ([`queue`]), announced by doorbells;
//! * requests leave through a [`Link`](crate::link::Link) in [`Device::transmit`], and their
//!   answers return in [`Device::complete`];
//! * requests of peers arrive in [`Device::deliver`].
//!
//! The content of rings is not trusted: an invalid work request fails, and an invalid queue fails
//! its queue pair.

mod address_book;
mod backlog;
mod comp_counter;
mod comp_counters;
mod complete;
mod completion_queues;
pub mod connected;
mod cq_table;
mod domains;
mod doorbells;
mod error;
mod event;
mod flight;
mod flush;
mod ids;
mod initiator;
mod look_ahead;
mod prepare;
mod qp_table;
mod qpn;
pub mod queue;
mod queue_pair;
mod queue_pairs;
mod regions;
mod responder;
mod staged;
mod state;
mod transmit;

pub use crate::counters::{Command, CommandCounters, Counters, DiagnosticCounters, Statistics};
pub use crate::port::{LinkSpeed, NoSuchSpeed, PortLink};
pub use comp_counter::{CompCounter, CountedOps, CounterId, CounterValue};
pub use error::Error;
pub use event::DeviceEvent;
pub use ids::{CqId, PdId};
pub use look_ahead::PrefetchStage;
pub use qpn::QpnAllocator;
pub use qpn::QpnRange;
pub use queue_pair::{
    QpAttributes, QpChange, QpConfig, QpRings, QpState, RNR_RETRY_INFINITE, Service,
};
pub use regions::{Lkey, MemoryRegion, RegionKeys, Rkey};
pub use responder::GRH_LENGTH;
pub use staged::{QueueError, QueueKind};
pub use state::Device;
