//! Work that waits for room in the device's queues.

use std::collections::VecDeque;

use crate::endpoint::base::ids::{OutboundId, PacketId, PeerId, ReceiveId};
use crate::wire::{MsgId, RecvId, SendId};

/// Something to do when the device has room again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// End what there is with peers that were given up.
    GiveUp,
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
            Work::GiveUp
            | Work::Admission
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
    /// The end of peers that were given up: nothing is to be sent for their operations.
    GiveUp,
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
    queues: [VecDeque<Work>; 4],
    /// In all queues. There is mostly no work, and that is found out with every progress.
    len: usize,
}

impl WorkQueues {
    /// Puts work behind the rest of its priority.
    pub(super) fn push(&mut self, priority: Priority, work: Work) {
        self.queues[priority as usize].push_back(work);
        self.len += 1;
    }

    /// Puts work that was taken in front again.
    pub(super) fn put_back(&mut self, priority: Priority, work: Work) {
        self.queues[priority as usize].push_front(work);
        self.len += 1;
    }

    /// Takes the work to do next.
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

    /// Returns whether there is work that does not begin with posting a packet again. A packet that
    /// is to be posted again counts as a packet in flight.
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
    fn peers_end_first_then_packets_that_hold_buffers_go_and_blocked_work_keeps_its_place() {
        let resend = |index| Work::Resend(PacketId::new(index, 0));
        let mut queues = WorkQueues::default();
        queues.push(Priority::Other, Work::Admission);
        queues.push(Priority::Restock, resend(1));
        queues.push(Priority::Resend, resend(2));
        queues.push(Priority::Resend, resend(3));
        queues.push(Priority::GiveUp, Work::GiveUp);
        assert!(queues.has_other());
        assert_eq!(queues.pop(), Some(Work::GiveUp));
        assert_eq!(queues.pop(), Some(resend(2)));
        queues.put_back(Priority::Resend, resend(2));
        let order: Vec<Work> = core::iter::from_fn(|| queues.pop()).collect();
        assert_eq!(order, [resend(2), resend(3), resend(1), Work::Admission]);
        assert!(!queues.has_other());
        assert!(!queues.has_any());
        queues.push(Priority::GiveUp, Work::GiveUp);
        assert!(queues.has_other());
    }
}
