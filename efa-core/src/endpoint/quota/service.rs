//! What is done for the requests of peers, and how much of it at a time.
//!
//! A peer can ask for work without end: writes and reads to be carried out, answers to be sent. Each
//! takes memory until it is done, and a peer that lets nothing through makes it last. So every peer
//! has a share ([`EndpointConfig::peer_operations`](crate::endpoint::EndpointConfig::peer_operations)), and one
//! that asks for more is given up instead of starving the others.

use crate::nic::Nic;
use crate::wire::{MsgId, PacketType, RecvId, SendId};

use crate::endpoint::Endpoint;
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::posting::work::Work;
use crate::endpoint::subprotocols::atomic::AtomicResponse;

impl<N: Nic> Endpoint<N> {
    /// Notes that a request of a peer is pending. Returns false if it is one too many: the peer was
    /// given up.
    pub(crate) fn begin_service(&mut self, peer: PeerId, packet_type: PacketType) -> bool {
        let limit = self.config.peer_operations;
        let Some(state) = self.peers.state_mut(peer) else {
            return false;
        };
        if state.served >= limit {
            self.give_up_peer(peer, packet_type);
            return false;
        }
        state.served += 1;
        self.served += 1;
        true
    }

    /// Notes that a request of a peer was carried out, or was given up.
    pub(crate) fn end_service(&mut self, peer: PeerId) {
        self.served -= 1;
        if let Some(state) = self.peers.state_mut(peer) {
            state.served -= 1;
        }
    }

    /// Sends EOR as soon as there is room.
    pub(crate) fn queue_eor(&mut self, peer: PeerId, send_id: SendId, id: ReceiveId) {
        let recv_id = RecvId(id.to_wire());
        let work = Work::Eor {
            peer,
            send_id,
            recv_id,
        };
        self.queue_answer(peer, work, PacketType::Eor);
    }

    /// Sends RECEIPT as soon as there is room.
    pub(crate) fn queue_receipt(&mut self, peer: PeerId, send_id: SendId, msg_id: MsgId) {
        let work = Work::Receipt {
            peer,
            send_id,
            msg_id,
        };
        self.queue_answer(peer, work, PacketType::Receipt);
    }

    fn queue_answer(&mut self, peer: PeerId, work: Work, packet_type: PacketType) {
        if self.begin_service(peer, packet_type) {
            self.owed += 1;
            self.queue_work(work);
        }
    }

    /// Sends ATOMRSP when there is room for it.
    pub(crate) fn queue_atomic_response(&mut self, response: AtomicResponse) {
        let peer = response.peer;
        if self.begin_service(peer, PacketType::AtomRsp) {
            let key = self.atomic_responses.insert(response) as u32;
            self.owed += 1;
            self.queue_work(Work::AtomicResponse { peer, key });
        }
    }

    /// Notes that an answer was sent, or that there is nobody to send it to.
    pub(crate) fn end_answer(&mut self, peer: PeerId) {
        self.owed -= 1;
        self.end_service(peer);
    }
}
