//! Requests of peers, counted against each peer's share, and the responses to them.

use crate::endpoint::base::ids::{InboundId, PeerId};
use crate::endpoint::posting::Work;
use crate::nic::Nic;
use crate::wire::{MsgId, PacketType, RecvId, SendId};

use super::Channel;

impl<N: Nic> Channel<N> {
    /// Counts a pending request of a peer. Returns false if the peer exceeded its share: the
    /// channel gave it up.
    pub(crate) fn begin_request(&mut self, peer: PeerId, packet_type: PacketType) -> bool {
        let begun = self.quota.begin_request(peer);
        if !begun {
            self.give_up(peer, packet_type);
        }
        begun
    }

    /// Records that an operation of a peer ended.
    pub(crate) fn end_operation(&mut self, peer: PeerId) {
        if self.quota.end_operation(peer) {
            self.posting.queue(Work::Admission);
        }
    }

    /// Queues an EOR.
    pub(crate) fn queue_eor(&mut self, peer: PeerId, send_id: SendId, id: InboundId) {
        let recv_id = RecvId(id.to_wire());
        let work = Work::Eor {
            peer,
            send_id,
            recv_id,
        };
        self.queue_answer(peer, work, PacketType::Eor);
    }

    /// Queues a RECEIPT.
    pub(crate) fn queue_receipt(&mut self, peer: PeerId, send_id: SendId, msg_id: MsgId) {
        let work = Work::Receipt {
            peer,
            send_id,
            msg_id,
        };
        self.queue_answer(peer, work, PacketType::Receipt);
    }

    fn queue_answer(&mut self, peer: PeerId, work: Work, packet_type: PacketType) {
        if self.begin_answer(peer, packet_type) {
            self.posting.queue(work);
        }
    }

    /// Counts a response to a peer that waits to be sent. Returns false if the peer exceeded its
    /// share: the channel gave it up.
    pub(crate) fn begin_answer(&mut self, peer: PeerId, packet_type: PacketType) -> bool {
        let begun = self.quota.begin_answer(peer);
        if !begun {
            self.give_up(peer, packet_type);
        }
        begun
    }
}
