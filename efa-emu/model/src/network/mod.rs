//! Effects of the network on frames: the same under the simulator and between processes.
//!
//! SRD sprays the packets of one queue pair over many paths and repairs loss in the network card,
//! so programs see neither loss nor order. Here each frame draws one of its host pair's paths; each
//! path has its own fixed latency, and each frame its own jitter on top. A lost frame goes again
//! after a time-out ([`Reliability`]), which a program sees as delay; after too many losses the
//! request completes with
//! [`Status::LocalUnresponsiveRemote`](efa_core::nic::Status::LocalUnresponsiveRemote).
//!
//! The journey of a frame is a pure function of the seed and of the frame's name (`Transmission`):
//! the queue pair, the sequence number of the request there, and how often it was on the wire
//! before. Nothing else that is sent, and no clock, has an influence. What a staged fault does to a
//! frame that arrives is decided here as well (`Course`), after the rules have been asked
//! ([`crate::fault::Faults::decide`]).
//!
//! A link adds two things: a clock, and whatever carries the bytes. `efa-sim` runs every
//! transmission as an event of its own and asks for one at a time (`Network::transmit`).
//! `efa-shm` carries a frame once, and asks when it comes through
//! (`Network::journey`), which is the same transmissions added up.

mod config;
mod course;
mod event_queue;
mod journey;
mod random;
mod reliability;
mod transmission;

#[cfg(test)]
mod tests;

pub use config::NetworkConfig;
pub use course::{Course, Twice};
pub use event_queue::EventQueue;
pub use journey::{Journey, Network, Transit};
pub use random::{Probability, Purpose, Random};
pub use reliability::{Loss, Reliability};
pub use transmission::Transmission;
