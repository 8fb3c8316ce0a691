//! libfabric's guarantees, checked against records of requests and reports.

use efa_core::endpoint::{CompletionFlags, Errno, Failure, ReceiveId};

use crate::combine::Combine;
use crate::plan::{Buffer, SendMode};

/// Identifies a program. Programs are numbered in the order in which they start.
pub(crate) type ProgramId = usize;

/// A message that a program was asked to send.
pub(crate) struct Message {
    pub(crate) from: ProgramId,
    pub(crate) to: ProgramId,
    pub(crate) length: usize,
    pub(crate) tag: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) mode: SendMode,
    pub(crate) address: u64,
    pub(crate) buffer: Buffer,
    pub(crate) state: RequestState,
    /// The receive that took it.
    pub(crate) taken: Option<usize>,
    /// Its receive failed, and the sender could not be told.
    pub(crate) lost: bool,
    /// Its send or its receive failed, and the other side was told.
    pub(crate) aborted: bool,
}

/// The state of the sender's, or requester's, side of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestState {
    /// Not yet accepted by the endpoint.
    Waiting,
    /// Refused for good.
    Refused,
    Started,
    Ended(Result<(), Failure>),
}

/// A consumer of messages: a posted receive, a multi-receive buffer, a claim.
pub(crate) struct Receive {
    pub(crate) at: ProgramId,
    pub(crate) from: Option<ProgramId>,
    pub(crate) tag: Option<(u64, u64)>,
    pub(crate) capacity: usize,
    pub(crate) address: u64,
    pub(crate) kind: ReceiveKind,
    pub(crate) id: Option<ReceiveId>,
    /// When the application cancelled it: before the end of the run or only to clean up.
    pub(crate) cancelled: bool,
    pub(crate) cleared: bool,
    pub(crate) taken: Vec<usize>,
    pub(crate) ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReceiveKind {
    Posted,
    Multi,
    Claim,
    /// A buffer of a zero-copy receiver.
    ZeroCopy,
}

impl Receive {
    pub(crate) fn accepts(&self, message: &Message) -> bool {
        let source = self.from.is_none_or(|from| from == message.from);
        let tag = match (self.tag, message.tag) {
            (None, None) => true,
            (Some((tag, ignore)), Some(sent)) => (tag ^ sent) & !ignore == 0,
            _ => false,
        };
        self.at == message.to && source && tag
    }
}

/// A one-sided operation.
pub(crate) struct OneSided {
    pub(crate) from: ProgramId,
    pub(crate) to: ProgramId,
    pub(crate) length: usize,
    pub(crate) kind: OneSidedKind,
    pub(crate) mode: SendMode,
    pub(crate) local: u64,
    pub(crate) remote: u64,
    pub(crate) buffer: Buffer,
    /// Whether the target gets CQ data.
    pub(crate) announces: bool,
    pub(crate) announced: bool,
    /// The target's memory was deregistered before the operation completed.
    pub(crate) orphaned: bool,
    pub(crate) state: RequestState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OneSidedKind {
    Write,
    Read,
    Add,
    FetchAdd,
    Claim,
    Combine(Combine),
}

impl OneSidedKind {
    /// Whether it is ordered with the messages.
    pub(crate) fn is_atomic(self) -> bool {
        !matches!(self, OneSidedKind::Write | OneSidedKind::Read)
    }

    pub(crate) fn flags(self) -> CompletionFlags {
        match self {
            OneSidedKind::Write => CompletionFlags::RMA | CompletionFlags::WRITE,
            OneSidedKind::Read => CompletionFlags::RMA | CompletionFlags::READ,
            OneSidedKind::Add => CompletionFlags::ATOMIC | CompletionFlags::WRITE,
            OneSidedKind::FetchAdd | OneSidedKind::Claim => {
                CompletionFlags::ATOMIC | CompletionFlags::READ
            }
            OneSidedKind::Combine(combine) => combine.flags(),
        }
    }
}

/// Whether the loss of a peer may cause this error.
pub(crate) fn is_loss(failure: Failure) -> bool {
    [
        Errno::ENOTCONN,
        Errno::ECONNABORTED,
        Errno::EHOSTUNREACH,
        Errno::ECANCELED,
        Errno::EIO,
        // An RDMA request to the next owner of the queue pair number, or to memory that was
        // deregistered.
        Errno::EINVAL,
    ]
    .contains(&failure.errno)
}

/// Whether an error belongs to a message that one of its sides aborts: on that side, or on the
/// other.
pub(crate) fn is_abort(failure: Failure) -> bool {
    [
        Errno::EREMOTEIO,
        Errno::EMSGSIZE,
        Errno::EINVAL,
        Errno::ECANCELED,
    ]
    .contains(&failure.errno)
}

/// The bytes of an operation; its number comes first.
pub(crate) fn pattern(number: usize, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length)
        .map(|index| (number.wrapping_mul(31) ^ index.wrapping_mul(7) ^ (index >> 8)) as u8)
        .collect();
    for (byte, value) in bytes.iter_mut().zip((number as u64).to_le_bytes()) {
        *byte = value;
    }
    bytes
}

/// Checks the receives of a program, and returns the first error.
pub(crate) fn check_matching(
    messages: &[Message],
    receives: &[Receive],
    ordered: bool,
) -> Result<(), String> {
    for (number, message) in messages.iter().enumerate() {
        let Some(taker) = message.taken else { continue };
        let older = &receives[..taker];
        for (index, receive) in older.iter().enumerate() {
            // A receive that stayed until the end was posted when the message arrived.
            let idle = receive.kind == ReceiveKind::Posted
                && receive.cleared
                && receive.taken.is_empty()
                && receive.accepts(message);
            if idle {
                return Err(format!(
                    "message {number} went to receive {taker} although the older receive {index} \
                     accepts it and stayed empty"
                ));
            }
        }
        if !ordered {
            continue;
        }
        for (later, other) in messages.iter().enumerate().skip(number + 1) {
            let Some(other_taker) = other.taken else {
                continue;
            };
            if (other.from, other.to) == (message.from, message.to)
                && other_taker < taker
                // Messages without headers are unordered.
                && receives[other_taker].kind != ReceiveKind::ZeroCopy
                && receives[other_taker].accepts(message)
            {
                return Err(format!(
                    "message {later} overtook message {number} of the same sender: receive \
                     {other_taker} accepts both and is older than receive {taker}"
                ));
            }
        }
    }
    Ok(())
}
