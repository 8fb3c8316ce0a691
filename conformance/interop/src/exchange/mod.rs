//! Exchanges between two endpoints: messages, remote memory and atomics of all sizes, verified at
//! the receiving side.
//!
//! Each endpoint is stock libfabric or the protocol engine, in its own process and on its own
//! emulated host ([`efa_play::drive`]).

mod failure;
mod memory;
mod messages;
mod pair;
mod party;
mod run;
mod topic;
mod verified;

pub use party::Party;
pub use run::exchange;
pub use topic::Topic;
pub use verified::Verified;

/// The kind of packets with messages without headers.
pub(crate) const HEADERLESS: &str = "message without header";
