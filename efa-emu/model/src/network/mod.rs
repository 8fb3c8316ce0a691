//! The effects of the network on frames, the same for the simulator and between processes.
//!
//! SRD sprays the packets of one queue pair over many paths and repairs loss in the network card,
//! so programs see reordering but no loss. Here each frame draws one of the paths between its
//! hosts. Each path has a constant latency, and each frame has additional jitter. A lost frame is
//! retransmitted after a time-out ([`Reliability`]), which a program sees as delay; after too many
//! losses the request completes with
//! [`Status::LocalUnresponsiveRemote`](efa_core::nic::Status::LocalUnresponsiveRemote).
//!
//! The outcome for a frame is a pure function of the seed and of the frame's identity
//! (`Transmission`): the queue pair, the sequence number of the request, and the number of earlier
//! transmissions. It depends on no other frame and on no clock. This module also decides the effect
//! of a staged fault on an arriving frame (`Disposition`), once a rule has matched
//! ([`crate::fault::Faults::decide`]).
//!
//! A link adds a clock and the transport of bytes. `efa-sim` runs every transmission as a separate
//! event (`Network::transmit`). `efa-shm` transports a frame once, and computes the time of its
//! successful transmission (`Network::delivery`), which is the sum of the same transmissions.

mod config;
mod delivery;
mod disposition;
mod event_queue;
mod random;
mod reliability;
mod transmission;

#[cfg(test)]
mod tests;

pub use config::NetworkConfig;
pub use delivery::{DeliveryOutcome, Network, TransmissionOutcome};
pub use disposition::{Disposition, Duplicated};
pub use event_queue::EventQueue;
pub use random::{Probability, Purpose, Random};
pub use reliability::{Loss, Reliability};
pub use transmission::Transmission;
