//! Requests of peers for access to local memory. They are carried out immediately, or wait for
//! room.

use crate::endpoint::Endpoint;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::receiving::DeferredOperation;
use crate::nic::Nic;
use crate::wire::{Header, LongctsRtw, LongreadRtw, Packet, PacketType, Payload, Rtr};

/// A peer's request for local memory that needs more packets than the request.
pub(crate) struct MemoryRequest<'a> {
    packet_type: PacketType,
    access: MemoryAccess<'a>,
    /// The position of the data in the packet.
    payload: Payload,
}

enum MemoryAccess<'a> {
    LongctsWrite(&'a LongctsRtw),
    LongreadWrite(&'a LongreadRtw),
    Read(&'a Rtr),
}

impl<'a> MemoryRequest<'a> {
    /// Returns `None` if the packet is of another type.
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

impl<N: Nic> Endpoint<N> {
    /// Handles a request for local memory: carries it out, or makes it wait.
    pub(crate) fn on_request(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        request: &MemoryRequest<'_>,
    ) {
        if self.channel.quota.admits(peer) {
            self.serve_request(peer, &packet, request);
            return self.channel.posting.release(packet);
        }
        let packet_type = request.packet_type;
        if self.channel.begin_request(peer, packet_type) {
            match self.channel.make_wait(peer, packet, packet_type) {
                Some(head) => self
                    .channel
                    .quota
                    .defer(peer, DeferredOperation::Request(head)),
                None => self.channel.quota.end_request(peer),
            }
        } else {
            self.channel.posting.release(packet);
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
                self.receive_side().on_longcts_write(
                    peer,
                    packet_type,
                    long,
                    packet,
                    request.payload,
                );
            }
            MemoryAccess::LongreadWrite(long) => {
                self.receive_side()
                    .on_longread_write(peer, packet_type, long)
            }
            MemoryAccess::Read(rtr) => self.send_side().on_read(peer, rtr, packet_type),
        }
    }

    /// Carries out waiting operations for which there is room, one of each peer in turn.
    pub(crate) fn admit_waiting(&mut self) {
        self.channel.quota.review();
        while let Some((peer, operation)) = self.channel.quota.next_admitted() {
            self.admit(peer, operation);
            self.end_given_up();
        }
    }

    fn admit(&mut self, peer: PeerId, operation: DeferredOperation) {
        match operation {
            DeferredOperation::Request(head) => {
                self.channel.quota.end_request(peer);
                let Some((packet, _)) = self.channel.take_deferred(peer, head) else {
                    return;
                };
                let incoming = self.channel.posting.parse_again(&packet);
                if let Some(request) = incoming.as_ref().and_then(MemoryRequest::of) {
                    self.serve_request(peer, &packet, &request);
                }
                self.channel.posting.release(packet);
            }
            DeferredOperation::Part(key) => self.receive_side().receive_deferred_part(peer, key),
        }
    }
}
