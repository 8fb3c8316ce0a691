//! Completions of connected queue pairs and of shared receive queues: statuses and operations with
//! the numbers of the verbs, and the completion queue's entry.

use efa_core::address::Qpn;

/// The status of a completion, as `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WcStatus {
    /// Success.
    Success = 0,
    /// A message is longer than its receive.
    LocalLength = 1,
    /// The queue pair does not allow the operation: for example, it may not have outstanding reads.
    LocalOperation = 2,
    /// A local buffer is not registered for the access.
    LocalProtection = 4,
    /// The queue pair entered the error state before the request was executed.
    Flushed = 5,
    /// The peer sent an invalid response.
    BadResponse = 7,
    /// The peer rejected the request as invalid.
    RemoteInvalidRequest = 9,
    /// The peer denied access to its memory.
    RemoteAccess = 10,
    /// The peer failed to execute the request.
    RemoteOperation = 11,
    /// The peer does not respond.
    RetryExceeded = 12,
    /// The peer had no receive posted for all retries.
    RnrRetryExceeded = 13,
    /// A message matched the tag before it could be deleted.
    TagMatching = 22,
    /// The tagged buffer is too small for a rendezvous. It contains the headers of the request.
    RendezvousIncomplete = 23,
}

/// The operation of a completion, as `ibv_wc_opcode`.
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
    /// The number of unexpected messages was reported.
    TagSync = 132,
    /// A tagged message was matched, has arrived, or is unexpected.
    TagRecv = 133,
    /// A message without a tag arrived.
    NoTag = 134,
}

bitflags::bitflags! {
    /// Flags of a completion, as `ibv_wc_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ConnectedFlags: u8 {
        /// There is immediate data.
        const WITH_IMMEDIATE = 1 << 1;
        /// The device needs the number of unexpected messages that the program has handled.
        const SYNC_REQUESTED = 1 << 4;
        /// A tag was matched.
        const MATCH = 1 << 5;
        /// All data has arrived.
        const DATA_VALID = 1 << 6;
        /// The sender requested a solicited event. Not a flag of the verbs, which only have the
        /// event.
        const SOLICITED = 1 << 7;
    }
}

/// The completion of a work request of a connected queue pair or of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectedCompletion {
    /// The program's id of the work request.
    pub wr_id: u64,
    /// The status.
    pub status: WcStatus,
    /// The operation.
    pub operation: WcOperation,
    /// Flags.
    pub flags: ConnectedFlags,
    /// The local queue pair; 0 for an operation on a tag list.
    pub qpn: Qpn,
    /// The peer's queue pair; 0 for an operation on a tag list.
    pub peer_qpn: Qpn,
    /// Number of bytes received or read.
    pub length: u32,
    /// Immediate data, or the program's data of a tag matching header.
    pub data: u32,
    /// The tag of a tag matching header.
    pub tag: u64,
}
