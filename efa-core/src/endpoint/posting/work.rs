//! Work that waits for room in the device's queues.

use std::collections::VecDeque;

use crate::endpoint::base::ids::{InboundId, OutboundId, PacketId, PeerId};
use crate::wire::{MsgId, OpeType, RecvId, SendId};

/// Work for the time when the device has room again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// End the operations with peers that were given up.
    GiveUp,
    /// Carry out operations of peers that waited for room.
    Admission,
    /// Send the local HANDSHAKE.
    Handshake(PeerId),
    /// Fill the places of lost messages with requests that do nothing.
    Fill(PeerId),
    /// Post a packet again.
    Retry(PacketId),
    /// Send packets, or post RDMA writes, of a sending operation.
    Outbound(OutboundId),
    /// Send a CTS or READ_NACK, or post RDMA reads, of a transfer.
    Inbound(InboundId),
    /// Send RECEIPT.
    Receipt {
        peer: PeerId,
        send_id: SendId,
        msg_id: MsgId,
    },
    /// Send ATOMRSP.
    AtomicResponse { peer: PeerId, key: u32 },
    /// Send EOR.
    Eor {
        peer: PeerId,
        send_id: SendId,
        recv_id: RecvId,
    },
    /// Send PEER_ERROR.
    PeerError {
        peer: PeerId,
        what: AbandonedMessage,
        code: u32,
    },
}

/// A message that this side has abandoned, as a PEER_ERROR reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AbandonedMessage {
    pub(crate) msg_id: MsgId,
    /// The peer's operation, or [`PeerError::NO_OP`](crate::wire::PeerError::NO_OP).
    pub(crate) op_id: u32,
    /// The role of this endpoint in it.
    pub(crate) side: OpeType,
}

impl Work {
    /// The peer to which a response (RECEIPT, EOR, ATOMRSP or PEER_ERROR) is sent, if this is a
    /// response.
    pub(crate) fn answers(self) -> Option<PeerId> {
        match self {
            Work::Receipt { peer, .. }
            | Work::Eor { peer, .. }
            | Work::PeerError { peer, .. }
            | Work::AtomicResponse { peer, .. } => Some(peer),
            Work::GiveUp
            | Work::Admission
            | Work::Handshake(_)
            | Work::Fill(_)
            | Work::Retry(_)
            | Work::Outbound(_)
            | Work::Inbound(_) => None,
        }
    }
}

/// Packets that one operation may post before others take their turn.
pub(crate) const QUANTUM: usize = 32;

/// The order in which work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Priority {
    /// Ending peers that were given up, before anything is sent for their operations.
    GiveUp,
    /// Resent packets that occupy buffers, for which other work may be waiting.
    Retry,
    /// Resent packets that need a buffer. Resent packets that occupy a buffer have priority,
    /// because they may occupy all buffers.
    RetryWithoutBuffer,
    /// Everything else.
    Other,
}

/// Work by priority, in order of arrival within each.
#[derive(Default)]
pub(super) struct WorkQueues {
    queues: [VecDeque<Work>; 4],
    /// The number of entries in all queues. Every progress reads it, and it is mostly 0.
    len: usize,
}

impl WorkQueues {
    /// Appends work to its priority's queue.
    pub(super) fn push(&mut self, priority: Priority, work: Work) {
        self.queues[priority as usize].push_back(work);
        self.len += 1;
    }

    /// Puts work that was removed back at the front.
    pub(super) fn requeue(&mut self, priority: Priority, work: Work) {
        self.queues[priority as usize].push_front(work);
        self.len += 1;
    }

    /// Removes and returns the next work.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Work> {
        match self.len {
            0 => None,
            _ => self.pop_first(),
        }
    }

    fn pop_first(&mut self) -> Option<Work> {
        let work = self.queues.iter_mut().find_map(VecDeque::pop_front)?;
        self.len -= 1;
        Some(work)
    }

    /// Returns whether there is any work.
    pub(super) fn has_any(&self) -> bool {
        self.len > 0
    }

    /// Returns whether there is work other than resent packets, which count as packets in flight.
    pub(super) fn has_other(&self) -> bool {
        [Priority::GiveUp, Priority::Other]
            .into_iter()
            .any(|priority| !self.queues[priority as usize].is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;

    #[test]
    fn peer_ends_then_buffered_packets_then_blocked_work() {
        let retry = |index| Work::Retry(PacketId::new(index, 0));
        let mut queues = WorkQueues::default();
        queues.push(Priority::Other, Work::Admission);
        queues.push(Priority::RetryWithoutBuffer, retry(1));
        queues.push(Priority::Retry, retry(2));
        queues.push(Priority::Retry, retry(3));
        queues.push(Priority::GiveUp, Work::GiveUp);
        assert!(queues.has_other());
        assert_eq!(queues.pop(), Some(Work::GiveUp));
        assert_eq!(queues.pop(), Some(retry(2)));
        queues.requeue(Priority::Retry, retry(2));
        let order: Vec<Work> = core::iter::from_fn(|| queues.pop()).collect();
        assert_eq!(order, [retry(2), retry(3), retry(1), Work::Admission]);
        assert!(!queues.has_other());
        assert!(!queues.has_any());
        queues.push(Priority::GiveUp, Work::GiveUp);
        assert!(queues.has_other());
    }
}
