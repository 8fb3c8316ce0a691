//! Clients of the emulated device, below the verbs: the user-space halves of their queues, hosts,
//! and two hosts joined by a link that costs almost nothing.

mod bare_link;
mod client_queues;
mod copier;
mod host;
pub mod net;

pub use bare_link::BareLink;
pub use client_queues::ClientQueues;
pub use copier::{Copier, range};
pub use host::{Host, MEMORY, MEMORY_SIZE, QKEY, Rdma, RdmaOperation, Setup};
