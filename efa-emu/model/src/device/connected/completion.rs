//! Completions of connected queue pairs and of shared receive queues: statuses and operations, in
//! the numbers of the verbs, and their entry of a completion queue.

use efa_core::address::Qpn;

/// How a work request ended, in the numbers of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WcStatus {
    /// It was carried out.
    Success = 0,
    /// A message is longer than the receive that it came for.
    LocalLength = 1,
    /// The queue pair cannot do it: it may not have reads outstanding, for one.
    LocalOperation = 2,
    /// A local buffer is not registered for what it was used for.
    LocalProtection = 4,
    /// The queue pair failed, or was taken to the error state, before its turn.
    Flushed = 5,
    /// The answer of the peer makes no sense.
    BadResponse = 7,
    /// The peer says that the request makes no sense.
    RemoteInvalidRequest = 9,
    /// The peer says that its memory may not be accessed.
    RemoteAccess = 10,
    /// The peer could not carry the request out.
    RemoteOperation = 11,
    /// The peer does not answer.
    RetryExceeded = 12,
    /// The peer had no receive posted, again and again.
    RnrRetryExceeded = 13,
    /// The tag was taken by a message before it could be deleted.
    TagMatching = 22,
    /// The tagged buffer is too small for a rendezvous; it has the headers of the request.
    RendezvousIncomplete = 23,
}

/// What has completed, in the numbers of `ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WcOperation {
    /// A send.
    Send = 0,
    /// An RDMA write.
    RdmaWrite = 1,
    /// An RDMA read.
    RdmaRead = 2,
    /// A compare and swap.
    CompareSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// A message arrived.
    Recv = 128,
    /// A write with immediate arrived.
    RecvRdmaWithImmediate = 129,
    /// A tag was added.
    TagAdd = 130,
    /// A tag was deleted.
    TagDelete = 131,
    /// The count of unexpected messages was taken.
    TagSync = 132,
    /// A tagged message was matched, arrived, or came unexpected.
    TagRecv = 133,
    /// A message without a tag arrived.
    NoTag = 134,
}

bitflags::bitflags! {
    /// What else a completion says, in the numbers of `ibv_wc_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ConnectedFlags: u8 {
        /// There is immediate data.
        const WITH_IMMEDIATE = 1 << 1;
        /// The device wants to be told how many unexpected messages were handled.
        const SYNC_REQUESTED = 1 << 4;
        /// A tag was matched.
        const MATCH = 1 << 5;
        /// All data is there.
        const DATA_VALID = 1 << 6;
        /// The sender wants the receiver woken. Not a flag of the verbs, which have it in events only.
        const SOLICITED = 1 << 7;
    }
}

/// The completion of a work request of a connected queue pair or of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectedCompletion {
    /// The program's own name of the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub operation: WcOperation,
    /// What else there is.
    pub flags: ConnectedFlags,
    /// The local queue pair; 0 for an operation on a list of tags, which belongs to none.
    pub qpn: Qpn,
    /// The peer's queue pair; 0 likewise.
    pub peer_qpn: Qpn,
    /// Bytes that arrived or were read.
    pub length: u32,
    /// Immediate data, or the program's data of a tag matching header.
    pub data: u32,
    /// The tag of a tag matching header.
    pub tag: u64,
}
