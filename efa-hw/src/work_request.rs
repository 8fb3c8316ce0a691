//! Work requests in flight, and their ids in completions.

use efa_core::address::Qpn;
use efa_core::nic::BufferId;

/// An RDMA request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rdma {
    /// The index of its queue pair in the domain.
    pub(crate) slot: u16,
    pub(crate) is_read: bool,
    pub(crate) context: u64,
}

/// A receive into user memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserReceive {
    /// The index of its queue pair in the domain.
    pub(crate) slot: u16,
    pub(crate) context: u64,
}

/// A queue pair of the domain, and the number of its outstanding requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutstandingRequests {
    pub(crate) queue_pair: Qpn,
    /// Distinguishes the queue pair from earlier ones with the same index; 13 bits.
    pub(crate) generation: u16,
    pub(crate) sends: usize,
    pub(crate) receives: usize,
}

/// The `wr_id` of a work request: its type (bits 61 to 63), the generation (bits 48 to 60) and
/// index (bits 32 to 47) of its queue pair in the domain, and its buffer, or the index of its RDMA
/// request or receive into user memory (bits 0 to 31).
///
/// Where a device returns 64-bit request ids, libefa cannot distinguish a late completion of a
/// destroyed queue pair from one of the next queue pair with the same number; the generation does.
/// Receives have no generation here: libefa adds one for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WorkRequestId(pub(crate) u64);

impl WorkRequestId {
    pub(crate) const RECV: u64 = 1 << 63;
    pub(crate) const SEND: u64 = 1 << 62;
    /// With [`WorkRequestId::RECV`]: a receive into user memory.
    pub(crate) const USER: u64 = 1 << 61;
    /// The bits of a generation.
    pub(crate) const GENERATION: u16 = (1 << 13) - 1;

    #[inline]
    pub(crate) fn recv(slot: u16, buffer: BufferId) -> Self {
        WorkRequestId(Self::RECV | u64::from(slot) << 32 | u64::from(buffer.0))
    }

    #[inline]
    pub(crate) fn send(slot: u16, generation: u16, buffer: BufferId) -> Self {
        let owner = u64::from(generation) << 48 | u64::from(slot) << 32;
        WorkRequestId(Self::SEND | owner | u64::from(buffer.0))
    }

    pub(crate) fn user_recv(slot: u16, key: usize) -> Self {
        WorkRequestId(Self::RECV | Self::USER | u64::from(slot) << 32 | key as u64)
    }

    pub(crate) fn rdma(slot: u16, generation: u16, key: usize) -> Self {
        WorkRequestId(u64::from(generation) << 48 | u64::from(slot) << 32 | key as u64)
    }

    #[inline]
    pub(crate) fn generation(self) -> u16 {
        (self.0 >> 48) as u16 & Self::GENERATION
    }

    #[inline]
    pub(crate) fn slot(self) -> usize {
        usize::from((self.0 >> 32) as u16)
    }

    /// The buffer, or the index of the RDMA request or of the receive.
    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0 as u32
    }
}
