//! Requests of peers: carried out now, or when there is room; and the answers to them.

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::Failure;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::one_sided::AtomicResponse;
use crate::endpoint::posting::Work;
use crate::endpoint::receiving::{Ending, HeldId, Postponed, PostponedPart, UnexpectedMessage};
use crate::nic::Nic;
use crate::wire::{
    Header, LongctsRtw, LongreadRtw, MsgId, Packet, PacketType, Payload, RecvId, Rtr, SendId,
};

/// A peer's request for our memory that takes more than the packet of the request.
pub(crate) struct MemoryRequest<'a> {
    packet_type: PacketType,
    access: MemoryAccess<'a>,
    /// Where the data of the packet is.
    payload: Payload,
}

enum MemoryAccess<'a> {
    LongctsWrite(&'a LongctsRtw),
    LongreadWrite(&'a LongreadRtw),
    Read(&'a Rtr),
}

impl<'a> MemoryRequest<'a> {
    /// `None` if the packet is no such request.
    pub(crate) fn of(incoming: &'a Packet) -> Option<Self> {
        let access = match &incoming.header {
            Header::LongctsRtw(long) => MemoryAccess::LongctsWrite(long),
            Header::LongreadRtw(long) => MemoryAccess::LongreadWrite(long),
            Header::Rtr(rtr) => MemoryAccess::Read(rtr),
            _ => return None,
        };
        Some(MemoryRequest {
            packet_type: incoming.base.packet_type,
            access,
            payload: incoming.payload,
        })
    }
}

// Counting what is done for peers.
impl<N: Nic> Endpoint<N> {
    /// Notes that a request of a peer is pending. Returns false if it is one too many: the peer was
    /// given up.
    pub(crate) fn begin_request(&mut self, peer: PeerId, packet_type: PacketType) -> bool {
        let Some(state) = self.peers.state_mut(peer) else {
            return false;
        };
        let begun = self.quota.begin_request(&mut state.share);
        if !begun {
            self.give_up_peer(peer, packet_type);
        }
        begun
    }

    /// Notes that a request of a peer was carried out or given up.
    pub(crate) fn end_request(&mut self, peer: PeerId) {
        let state = self.peers.state_mut(peer);
        self.quota.end_request(state.map(|state| &mut state.share));
    }

    /// Notes that an answer was sent, or that there is nobody to send it to.
    pub(crate) fn end_answer(&mut self, peer: PeerId) {
        let state = self.peers.state_mut(peer);
        self.quota.end_answer(state.map(|state| &mut state.share));
    }

    /// Returns whether an operation of a peer that has just come may be carried out now.
    pub(crate) fn is_admitted(&mut self, peer: PeerId) -> bool {
        let state = self.peers.state_mut(peer);
        state.is_some_and(|state| self.quota.admits(&state.share))
    }

    /// Notes that an operation of a peer is carried out.
    pub(crate) fn begin_operation(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.state_mut(peer) {
            self.quota.begin_operation(&mut state.share);
        }
    }

    /// Notes that an operation of a peer ended.
    pub(crate) fn end_operation(&mut self, peer: PeerId) {
        let state = self.peers.state_mut(peer);
        let share = state.map(|state| &mut state.share);
        if self.quota.end_operation(share) {
            self.posting.queue(Work::Admission);
        }
    }
}

// Answers.
impl<N: Nic> Endpoint<N> {
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
        if self.begin_answer(peer, packet_type) {
            self.posting.queue(work);
        }
    }

    /// Sends ATOMRSP when there is room for it.
    pub(crate) fn queue_atomic_response(&mut self, response: AtomicResponse) {
        let peer = response.peer;
        if self.begin_answer(peer, PacketType::AtomRsp) {
            let key = self.one_sided.keep_response(response);
            self.posting.queue(Work::AtomicResponse { peer, key });
        }
    }

    fn begin_answer(&mut self, peer: PeerId, packet_type: PacketType) -> bool {
        let Some(state) = self.peers.state_mut(peer) else {
            return false;
        };
        let begun = self.quota.begin_answer(&mut state.share);
        if !begun {
            self.give_up_peer(peer, packet_type);
        }
        begun
    }
}

// Requests.
impl<N: Nic> Endpoint<N> {
    /// Takes a request for our memory: carries it out, or makes it wait.
    pub(crate) fn on_request(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        request: &MemoryRequest<'_>,
    ) {
        if self.is_admitted(peer) {
            self.serve_request(peer, &packet, request);
            return self.release(packet);
        }
        let packet_type = request.packet_type;
        if self.begin_request(peer, packet_type) {
            match self.make_wait(peer, packet, packet_type) {
                Some(head) => self.postpone(peer, Postponed::Request(head)),
                None => self.end_request(peer),
            }
        } else {
            self.release(packet);
        }
    }

    fn serve_request(
        &mut self,
        peer: PeerId,
        packet: &ReceivedPacket,
        request: &MemoryRequest<'_>,
    ) {
        let packet_type = request.packet_type;
        match request.access {
            MemoryAccess::LongctsWrite(long) => {
                self.on_longcts_write(peer, packet_type, long, packet, request.payload);
            }
            MemoryAccess::LongreadWrite(long) => self.on_longread_write(peer, packet_type, long),
            MemoryAccess::Read(rtr) => self.on_read(peer, rtr, packet_type),
        }
    }

    /// Makes a message wait that has its place in a multi-receive buffer.
    pub(crate) fn postpone_part(
        &mut self,
        peer: PeerId,
        message: UnexpectedMessage,
        target: IoVec,
        ending: Ending,
    ) {
        let part = PostponedPart {
            message,
            target,
            ending,
        };
        let operation = self.receiving.postpone(peer, part);
        self.postpone(peer, operation);
    }

    /// Keeps the first packet of an operation that is to wait. `None` if there is no room for it
    /// either: the peer was given up.
    pub(crate) fn make_wait(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        packet_type: PacketType,
    ) -> Option<HeldId> {
        // In the device's last buffers they would keep out the packets that make room for them.
        let held = match self.receiving.has_memory_for(&packet) {
            true => self.hold(peer, packet, None),
            false => Err(packet),
        };
        held.inspect_err(|_| self.give_up_peer(peer, packet_type))
            .map_err(|packet| self.release(packet))
            .ok()
    }

    fn postpone(&mut self, peer: PeerId, operation: Postponed) {
        if let Some(state) = self.peers.state_mut(peer) {
            self.quota.postpone(peer, &mut state.share, operation);
        }
    }

    /// Carries out what waited and has room now, one operation of each peer in turn.
    pub(crate) fn admit_waiting(&mut self) {
        self.quota.review();
        while let Some((peer, operation)) = self.next_admitted() {
            self.admit(peer, operation);
        }
    }

    fn next_admitted(&mut self) -> Option<(PeerId, Postponed)> {
        self.quota.next_admitted(&mut self.peers, |peers, peer| {
            peers.state_mut(peer).map(|state| &mut state.share)
        })
    }

    fn admit(&mut self, peer: PeerId, operation: Postponed) {
        match operation {
            Postponed::Request(head) => {
                self.end_request(peer);
                let Some((packet, _)) = self.take_held(peer, head) else {
                    return;
                };
                let incoming = self.parse_again(&packet);
                if let Some(request) = incoming.as_ref().and_then(MemoryRequest::of) {
                    self.serve_request(peer, &packet, &request);
                }
                self.release(packet);
            }
            Postponed::Part(key) => {
                let PostponedPart {
                    message,
                    target,
                    ending,
                } = self.receiving.take_postponed(key);
                self.receive_part(peer, &message, target, ending);
            }
        }
    }

    /// Ends what waits of a peer.
    pub(crate) fn end_waiting(&mut self, peer: PeerId, failure: Failure) {
        let Some(state) = self.peers.state_mut(peer) else {
            return;
        };
        for operation in self.quota.withdraw(&mut state.share) {
            match operation {
                Postponed::Request(head) => {
                    self.end_request(peer);
                    self.drop_held(peer, head);
                }
                Postponed::Part(key) => {
                    let part = self.receiving.take_postponed(key);
                    self.drop_unexpected(peer, &part.message);
                    let (length, capacity) = (part.message.length, part.target.memory.length);
                    self.end_inbound(&part.ending, peer, length, capacity as u64, Some(failure));
                }
            }
        }
    }
}
