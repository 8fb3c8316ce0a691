//! Exchanges between two endpoints: messages, remote memory and atomics of all sizes, verified at
//! the receiving side.
//!
//! Each endpoint is stock libfabric or the protocol engine, in its own process and on its own
//! emulated host ([`efa_play::drive`]).

mod memory;
mod messages;
mod pair;
mod party;
mod run;
mod topic;
mod verified;

pub(crate) use party::Party;
pub(crate) use run::exchange;
pub(crate) use topic::Topic;

use efa_device_model::profile::Profile;

/// The kind of packets with messages without headers.
pub(crate) const HEADERLESS: &str = "message without header";

/// Bytes in a packet of a profile's device.
pub(crate) fn mtu(profile: &str) -> usize {
    Profile::by_name(profile).map_or(0, |profile| profile.mtu as usize)
}
