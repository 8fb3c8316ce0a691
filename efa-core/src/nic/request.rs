//! Requests posted to a queue pair.

use crate::address::{Ahn, Qkey, Qpn, RawAddress};

use super::memory::{BufferId, LocalKey, RemoteKey, UserSlice};

/// The destination of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// The peer's entry in the local address book.
    pub ahn: Ahn,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The Q-key of the peer's queue pair.
    pub qkey: Qkey,
}

impl Destination {
    /// The queue pair at `address`, whose GID has the entry `ahn`.
    #[inline]
    pub const fn new(ahn: Ahn, address: RawAddress) -> Self {
        let RawAddress { qpn, qkey, .. } = address;
        Destination { ahn, qpn, qkey }
    }
}

/// A packet to send: `header_length` bytes of a packet buffer, then optionally user memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest {
    /// The peer.
    pub destination: Destination,
    /// The buffer with the first bytes of the packet. The completion returns it.
    pub buffer: BufferId,
    /// The number of bytes of `buffer` that belong to the packet.
    pub header_length: usize,
    /// Registered user memory that follows without a copy, if any.
    pub payload: Option<(UserSlice, LocalKey)>,
    /// Immediate data, handed to the receiver's completion.
    pub immediate: Option<u32>,
    /// Returned in the completion.
    pub context: u64,
}

/// One RDMA operation between local registered memory and a peer's registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmaRequest {
    /// The peer.
    pub destination: Destination,
    /// Local memory: the source of a write, the target of a read.
    pub local: UserSlice,
    /// The key of the local memory.
    pub local_key: LocalKey,
    /// The peer's memory address; the length is that of `local`.
    pub remote_address: u64,
    /// The key of the peer's memory.
    pub remote_key: RemoteKey,
    /// Immediate data (writes only).
    pub immediate: Option<u32>,
    /// Returned in the completion.
    pub context: u64,
}

/// Whether a post rings the doorbell immediately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doorbell {
    /// At once, for this request and all deferred ones.
    Ring,
    /// With the next post that rings, or with [`QueuePair::flush`](super::QueuePair::flush). Until
    /// then the request is not sent.
    Defer,
}
