//! Requests of peers, counted against each peer's share, and the answers to them.

use crate::endpoint::api::error::Failure;
use crate::endpoint::base::ids::{InboundId, PeerId};
use crate::endpoint::posting::{Abandoned, Work};
use crate::nic::Nic;
use crate::wire::{ExtraFeatures, MsgId, PacketType, RecvId, SendId};

use super::Channel;

impl<N: Nic> Channel<N> {
    /// Counts a pending request of a peer. Returns false if the peer has too many: it was given up.
    pub(crate) fn begin_request(&mut self, peer: PeerId, packet_type: PacketType) -> bool {
        let begun = self.quota.begin_request(peer);
        if !begun {
            self.give_up(peer, packet_type);
        }
        begun
    }

    /// Notes that an operation of a peer ended.
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

    /// Tells a peer that an operation with it failed on this side, if that is news to it and it
    /// understands the packet. Returns whether it is told.
    pub(crate) fn abandon(&mut self, peer: PeerId, what: Abandoned, failure: Failure) -> bool {
        let features = self.peers.features(peer);
        let understands =
            features.is_some_and(|features| features.extra.contains(ExtraFeatures::PEER_ERROR));
        let is_news = failure != Failure::PEER_ABORTED
            && !failure.is_peer_gone()
            && !self.peers.is_given_up(peer);
        if understands && is_news {
            let code = failure.provider.code();
            let work = Work::PeerError { peer, what, code };
            self.queue_answer(peer, work, PacketType::PeerError);
        }
        understands && is_news
    }

    fn queue_answer(&mut self, peer: PeerId, work: Work, packet_type: PacketType) {
        if self.begin_answer(peer, packet_type) {
            self.posting.queue(work);
        }
    }

    /// Counts an answer to a peer that waits to be sent. Returns false if the peer has too many: it
    /// was given up.
    pub(crate) fn begin_answer(&mut self, peer: PeerId, packet_type: PacketType) -> bool {
        let begun = self.quota.begin_answer(peer);
        if !begun {
            self.give_up(peer, packet_type);
        }
        begun
    }
}
