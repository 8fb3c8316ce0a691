//! Arguments of the application's calls: sends, receives and one-sided operations.

use crate::nic::{Region, RemoteKey, UserSlice};
use crate::wire::{AtomicDatatype, AtomicOp};

use crate::endpoint::base::ids::{ClaimId, PeerId};

/// Pieces that one buffer may consist of (libfabric's `iov_limit` of the efa provider).
pub const IOV_LIMIT: usize = 4;

/// A piece of the application's memory, with its registration if it has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoVec {
    /// The memory.
    pub memory: UserSlice,
    /// Its registration (libfabric's `desc`). If there is one, the device accesses the memory
    /// directly; otherwise the endpoint copies, or registers the memory for the operation.
    pub region: Option<Region>,
}

impl IoVec {
    /// Unregistered memory.
    pub const fn new(memory: UserSlice) -> Self {
        IoVec {
            memory,
            region: None,
        }
    }
}

impl From<UserSlice> for IoVec {
    fn from(memory: UserSlice) -> Self {
        IoVec::new(memory)
    }
}

bitflags::bitflags! {
    /// Options of an operation, in libfabric's bit numbers.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OperationFlags: u64 {
        /// More operations follow immediately (`FI_MORE`). The next operation without the flag, or
        /// `progress`, rings the doorbell.
        const MORE = 1 << 18;
        /// A success is reported. Without the flag only errors are reported (selective completion).
        const COMPLETION = 1 << 24;
        /// The memory may be reused as soon as the call returns. A success is not reported.
        const INJECT = 1 << 25;
        /// A success is reported only when the data is in the target's memory.
        const DELIVERY_COMPLETE = 1 << 28;
    }
}

/// The senders from which a receive accepts messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SourceFilter {
    /// Any sender (`FI_ADDR_UNSPEC`).
    Any,
    /// One peer (a directed receive).
    Peer(PeerId),
}

/// The tags that a tagged receive accepts: those that equal `tag` in every bit that is 0 in
/// `ignore`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TagFilter {
    /// The tag.
    pub tag: u64,
    /// The bits that are not compared.
    pub ignore: u64,
}

impl TagFilter {
    /// Accepts exactly this tag.
    pub const fn exact(tag: u64) -> Self {
        TagFilter { tag, ignore: 0 }
    }

    /// Returns whether a message with this tag is accepted.
    pub const fn accepts(self, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0
    }
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendArgs<'a> {
    /// The destination.
    pub peer: PeerId,
    /// The data: at most [`IOV_LIMIT`] pieces.
    pub data: &'a [IoVec],
    /// The tag; `None` for an untagged message.
    pub tag: Option<u64>,
    /// Remote CQ data for the receiver's completion.
    pub cq_data: Option<u64>,
    /// How to send.
    pub flags: OperationFlags,
    /// Returned in the completion (`op_context`).
    pub context: u64,
}

impl<'a> SendArgs<'a> {
    /// An untagged message without CQ data, reported when it is sent.
    #[inline]
    pub const fn new(peer: PeerId, data: &'a [IoVec], context: u64) -> Self {
        SendArgs {
            peer,
            data,
            tag: None,
            cq_data: None,
            flags: OperationFlags::COMPLETION,
            context,
        }
    }
}

/// A receive to post.
#[derive(Clone, Copy, Debug)]
pub struct RecvArgs<'a> {
    /// The accepted senders.
    pub source: SourceFilter,
    /// The destination: at most [`IOV_LIMIT`] pieces.
    pub buffer: &'a [IoVec],
    /// The accepted tags; `None` for untagged messages.
    pub tag: Option<TagFilter>,
    /// Only [`OperationFlags::COMPLETION`] has an effect.
    pub flags: OperationFlags,
    /// Returned in the completion (`op_context`).
    pub context: u64,
}

impl<'a> RecvArgs<'a> {
    /// Accepts an untagged message, and reports it.
    #[inline]
    pub const fn new(source: SourceFilter, buffer: &'a [IoVec], context: u64) -> Self {
        RecvArgs {
            source,
            buffer,
            tag: None,
            flags: OperationFlags::COMPLETION,
            context,
        }
    }
}

/// A buffer to post for several messages (`FI_MULTI_RECV`). Every message is reported.
#[derive(Clone, Copy, Debug)]
pub struct MultiRecvArgs {
    /// The accepted senders.
    pub source: SourceFilter,
    /// The buffer. Messages are placed consecutively.
    pub buffer: IoVec,
    /// The buffer accepts no more messages when fewer free bytes than these remain
    /// (`FI_OPT_MIN_MULTI_RECV`). At least 1, at most the buffer's length.
    pub min_free: usize,
    /// Returned in the completions (`op_context`).
    pub context: u64,
}

/// A message that no receive has matched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageInfo {
    /// The sender.
    pub source: PeerId,
    /// Its tag; `None` for an untagged message.
    pub tag: Option<u64>,
    /// Its whole length in bytes, whether or not all of it has arrived.
    pub length: u64,
    /// Its CQ data.
    pub cq_data: Option<u64>,
}

/// A receive for a message that was claimed.
#[derive(Clone, Copy, Debug)]
pub struct ClaimedRecvArgs<'a> {
    /// The message.
    pub claim: ClaimId,
    /// The destination: at most [`IOV_LIMIT`] pieces.
    pub buffer: &'a [IoVec],
    /// Only [`OperationFlags::COMPLETION`] has an effect.
    pub flags: OperationFlags,
    /// Returned in the completion (`op_context`).
    pub context: u64,
}

/// A piece of a peer's registered memory (`fi_rma_iov`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteIoVec {
    /// First byte, in the peer's address space.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The peer's key for it.
    pub key: RemoteKey,
}

impl RemoteIoVec {
    /// The `length` bytes from `address` on.
    #[inline]
    pub const fn new(address: u64, length: u64, key: RemoteKey) -> Self {
        RemoteIoVec {
            address,
            length,
            key,
        }
    }
}

/// A write of a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct WriteArgs<'a> {
    /// The owner of the memory.
    pub peer: PeerId,
    /// The data: at most [`IOV_LIMIT`] pieces.
    pub data: &'a [IoVec],
    /// The destination; as long as `data`.
    pub remote: &'a [RemoteIoVec],
    /// Remote CQ data. If it is present, the target gets a completion.
    pub cq_data: Option<u64>,
    /// How to write.
    pub flags: OperationFlags,
    /// Returned in the completion (`op_context`).
    pub context: u64,
}

/// A read of a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct ReadArgs<'a> {
    /// The owner of the memory.
    pub peer: PeerId,
    /// The destination of the data: at most [`IOV_LIMIT`] pieces.
    pub buffer: &'a [IoVec],
    /// Remote memory to read; as long as `buffer`.
    pub remote: &'a [RemoteIoVec],
    /// Only [`OperationFlags::COMPLETION`] has an effect.
    pub flags: OperationFlags,
    /// Returned in the completion (`op_context`).
    pub context: u64,
}

/// An atomic operation on a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct AtomicArgs<'a> {
    /// The owner of the memory.
    pub peer: PeerId,
    /// The type of the elements.
    pub datatype: AtomicDatatype,
    /// The operation on each element.
    pub operation: AtomicOp,
    /// The operands: at most [`IOV_LIMIT`] pieces. Their length counts even if the operation
    /// ignores their values ([`AtomicOp::ATOMIC_READ`]).
    pub operand: &'a [IoVec],
    /// Whether the old values are fetched, and which values they are compared with.
    pub kind: AtomicKind<'a>,
    /// The elements; as long as `operand`. Stock libfabric 2.x mishandles several pieces of a
    /// compare: use one.
    pub remote: &'a [RemoteIoVec],
    /// How to do it.
    pub flags: OperationFlags,
    /// Returned in the completion (`op_context`).
    pub context: u64,
}

/// The three calls for atomics: `fi_atomic`, `fi_fetch_atomic`, `fi_compare_atomic`.
#[derive(Clone, Copy, Debug)]
pub enum AtomicKind<'a> {
    /// Only changes the elements.
    Write,
    /// Changes the elements and fetches the old ones.
    Fetch {
        /// The destination of the old elements; as long as the operand.
        result: &'a [IoVec],
    },
    /// Changes the elements depending on a comparison, and fetches the old ones.
    Compare {
        /// The destination of the old elements; as long as the operand.
        result: &'a [IoVec],
        /// Comparands of the old elements; as long as the operand.
        comparand: &'a [IoVec],
    },
}

impl AtomicKind<'_> {
    pub(crate) const fn is_compare(self) -> bool {
        matches!(self, AtomicKind::Compare { .. })
    }
}
