//! Work that waits for room in the device's queues.

use std::collections::VecDeque;

use crate::endpoint::base::ids::{OutboundId, PacketId, PeerId, ReceiveId};
use crate::wire::{MsgId, RecvId, SendId};

/// Something to do when the device has room again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Carry out operations of peers that waited for others to end.
    Admission,
    /// Send our HANDSHAKE.
    Handshake(PeerId),
    /// Send requests that do nothing in the place of messages that were lost.
    Fill(PeerId),
    /// Post a packet again.
    Resend(PacketId),
    /// Send packets, or post RDMA writes, of an operation.
    Outbound(OutboundId),
    /// Send a CTS or READ_NACK, or post RDMA reads.
    Inbound(ReceiveId),
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
}

impl Work {
    /// The peer to which an answer goes, if this is one: RECEIPT, EOR or ATOMRSP.
    pub(crate) fn answers(self) -> Option<PeerId> {
        match self {
            Work::Receipt { peer, .. }
            | Work::Eor { peer, .. }
            | Work::AtomicResponse { peer, .. } => Some(peer),
            Work::Admission
            | Work::Handshake(_)
            | Work::Fill(_)
            | Work::Resend(_)
            | Work::Outbound(_)
            | Work::Inbound(_) => None,
        }
    }
}

/// Packets that one operation may post before others get their turn.
pub(crate) const QUANTUM: usize = 32;

/// The order in which work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Priority {
    /// Packets that are to be posted again and hold buffers, which other work may be waiting for.
    Resend,
    /// Packets that are to be posted again and need a buffer. Those that have theirs may have all
    /// the buffers that there are.
    Restock,
    /// Everything else.
    Other,
}

/// Work by its priority, first in, first out within each.
#[derive(Default)]
pub(super) struct WorkQueues {
    queues: [VecDeque<Work>; 3],
}

impl WorkQueues {
    /// Puts work behind the rest of its priority.
    pub(super) fn push(&mut self, priority: Priority, work: Work) {
        self.queues[priority as usize].push_back(work);
    }

    /// Puts work that was taken in front again.
    pub(super) fn put_back(&mut self, priority: Priority, work: Work) {
        self.queues[priority as usize].push_front(work);
    }

    /// Takes the work to do next.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Work> {
        self.queues.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Returns whether there is any work.
    pub(super) fn has_any(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Returns whether there is work that does not begin with posting a packet again. A packet that
    /// is to be posted again counts as a packet in flight.
    pub(super) fn has_other(&self) -> bool {
        !self.queues[Priority::Other as usize].is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;

    #[test]
    fn packets_that_hold_buffers_go_first_and_blocked_work_keeps_its_place() {
        let resend = |index| Work::Resend(PacketId::new(index, 0));
        let mut queues = WorkQueues::default();
        queues.push(Priority::Other, Work::Admission);
        queues.push(Priority::Restock, resend(1));
        queues.push(Priority::Resend, resend(2));
        queues.push(Priority::Resend, resend(3));
        assert!(queues.has_other());
        assert_eq!(queues.pop(), Some(resend(2)));
        queues.put_back(Priority::Resend, resend(2));
        let order: Vec<Work> = core::iter::from_fn(|| queues.pop()).collect();
        assert_eq!(order, [resend(2), resend(3), resend(1), Work::Admission]);
        assert!(!queues.has_other());
    }
}
