//! Completions of connected queue pairs and of shared receive queues: statuses, operations and
//! flags with the numbers and names of the verbs, and the completion queue's entry.

use efa_core::address::Qpn;
use serde::Deserialize;

/// Declares an enumeration of the verbs: each value with its number, and its name without the
/// beginning `IBV_WC_`, by which serde reads it.
macro_rules! verbs_enumeration {
    ($(#[$about:meta])* $type:ident {
        $($(#[$meaning:meta])* $value:ident = $number:literal, $name:literal;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
        #[repr(u8)]
        pub enum $type {
            $($(#[$meaning])* #[serde(rename = $name)] $value = $number,)*
        }

        impl $type {
            /// The name of a number, without `IBV_WC_`; the number if it has none here.
            pub fn name_of(number: u32) -> String {
                match number {
                    $($number => $name.to_owned(),)*
                    other => other.to_string(),
                }
            }
        }
    };
}

verbs_enumeration! {
    /// The status of a completion, as `ibv_wc_status`.
    WcStatus {
        /// Success.
        Success = 0, "SUCCESS";
        /// A message is longer than its receive.
        LocalLength = 1, "LOC_LEN_ERR";
        /// The queue pair does not allow the operation: for example, it may not have outstanding
        /// reads.
        LocalOperation = 2, "LOC_QP_OP_ERR";
        /// A local buffer is not registered for the access.
        LocalProtection = 4, "LOC_PROT_ERR";
        /// The queue pair entered the error state before the request was executed.
        Flushed = 5, "WR_FLUSH_ERR";
        /// The peer sent an invalid response.
        BadResponse = 7, "BAD_RESP_ERR";
        /// The peer rejected the request as invalid.
        RemoteInvalidRequest = 9, "REM_INV_REQ_ERR";
        /// The peer denied access to its memory.
        RemoteAccess = 10, "REM_ACCESS_ERR";
        /// The peer failed to execute the request.
        RemoteOperation = 11, "REM_OP_ERR";
        /// The peer does not respond.
        RetryExceeded = 12, "RETRY_EXC_ERR";
        /// The peer had no receive posted for all retries.
        RnrRetryExceeded = 13, "RNR_RETRY_EXC_ERR";
        /// The peer has no such queue pair. EFA only, as the next three.
        UnknownQueuePair = 15, "REM_INV_RD_REQ_ERR";
        /// The peer ended the request.
        RemoteAborted = 16, "REM_ABORT_ERR";
        /// The peer did not respond, or cannot be reached.
        ResponseTimeout = 20, "RESP_TIMEOUT_ERR";
        /// The device reported a code that is not known.
        General = 21, "GENERAL_ERR";
        /// A message matched the tag before it could be deleted.
        TagMatching = 22, "TM_ERR";
        /// The tagged buffer is too small for a rendezvous. It contains the headers of the request.
        RendezvousIncomplete = 23, "TM_RNDV_INCOMPLETE";
    }
}

verbs_enumeration! {
    /// The operation of a completion, as `ibv_wc_opcode`.
    WcOperation {
        /// A send.
        Send = 0, "SEND";
        /// An RDMA write.
        RdmaWrite = 1, "RDMA_WRITE";
        /// An RDMA read.
        RdmaRead = 2, "RDMA_READ";
        /// A compare and swap.
        CompareSwap = 3, "COMP_SWAP";
        /// A fetch and add.
        FetchAdd = 4, "FETCH_ADD";
        /// A message arrived.
        Recv = 128, "RECV";
        /// A write with immediate arrived.
        RecvRdmaWithImmediate = 129, "RECV_RDMA_WITH_IMM";
        /// A tag was added.
        TagAdd = 130, "TM_ADD";
        /// A tag was deleted.
        TagDelete = 131, "TM_DEL";
        /// The number of unexpected messages was reported.
        TagSync = 132, "TM_SYNC";
        /// A tagged message was matched, has arrived, or is unexpected.
        TagRecv = 133, "TM_RECV";
        /// A message without a tag arrived.
        NoTag = 134, "TM_NO_TAG";
    }
}

bitflags::bitflags! {
    /// Flags of a completion, as `ibv_wc_flags`, with its names.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ConnectedFlags: u8 {
        /// There is immediate data.
        const WITH_IMM = 1 << 1;
        /// The device needs the number of unexpected messages that the program has handled.
        const TM_SYNC_REQ = 1 << 4;
        /// A tag was matched.
        const TM_MATCH = 1 << 5;
        /// All data has arrived.
        const TM_DATA_VALID = 1 << 6;
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
