//! Completions of a device.

use crate::address::{Ahn, Gid, Qpn};
use crate::wire::Status;

use super::memory::BufferId;

/// Kind of the finished work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionKind {
    /// A [`SendRequest`](super::SendRequest); its buffer is the endpoint's again.
    Send {
        /// The buffer with the packet's first bytes.
        buffer: BufferId,
    },
    /// An RDMA read.
    RdmaRead,
    /// An RDMA write.
    RdmaWrite,
    /// A packet arrived; the buffer is the endpoint's until it is posted or released.
    Recv {
        /// The buffer that holds the packet.
        buffer: BufferId,
        /// The packet's length in bytes.
        length: usize,
        /// The sender.
        source: Source,
        /// Immediate data, if the sender supplied any.
        immediate: Option<u32>,
    },
    /// A packet arrived in memory of the user, which is the user's again
    /// ([`QueuePair::post_user_recv`](super::QueuePair::post_user_recv)).
    RecvUser {
        /// The packet's length in bytes.
        length: usize,
        /// The sender.
        source: Source,
        /// Immediate data, if the sender supplied any.
        immediate: Option<u32>,
    },
    /// A peer's RDMA write with immediate arrived.
    RecvRdmaWithImmediate {
        /// The receive that it consumed; `None` for unsolicited write receive.
        buffer: Option<BufferId>,
        /// Bytes written.
        length: usize,
        /// The writer.
        source: Source,
        /// The immediate data.
        immediate: u32,
    },
}

/// The sender of a packet, as far as it is known to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The sender's entry in the local address book; `None` if it has none.
    pub ahn: Option<Ahn>,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's GID: reported only for unknown senders, and only by devices with
    /// [`DeviceCaps::CQ_WITH_SGID`](super::DeviceCaps::CQ_WITH_SGID).
    pub gid: Option<Gid>,
}

/// One finished piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The local queue pair whose work it was: several may share a completion queue.
    pub queue_pair: Qpn,
    /// The request's context; 0 for receives into packet buffers.
    pub context: u64,
    /// How it ended. With a status other than [`Status::Ok`] only the buffer is meaningful.
    pub status: Status,
    /// The finished work.
    pub kind: CompletionKind,
}
