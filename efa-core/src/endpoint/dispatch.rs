//! From a completion of the device to the subprotocol of the packet: parses the packet, identifies
//! its sender, answers a first packet with a HANDSHAKE, and dispatches by type.

use crate::endpoint::channel::UnknownSender;
use crate::endpoint::posting::Work;
use crate::endpoint::requests::MemoryRequest;
use crate::endpoint::subprotocols::incoming_message::{Rtm, Sequenced};
use crate::nic::{BufferId, Completion, CompletionKind, Domain, Nic, Source, Status};
use crate::wire::{Connid, Header, OpeType, Packet, PacketType, PeerError, Reason, ReqFlags};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::PacketError;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::peers::handshake::PeerFeatures;

impl<N: Nic> Endpoint<N> {
    /// Handles one completion of the device.
    #[inline(always)]
    pub(crate) fn on_completion(&mut self, completion: &Completion) {
        let Completion {
            context, status, ..
        } = *completion;
        // Two comparisons distinguish the two most frequent kinds.
        if let CompletionKind::Recv {
            buffer,
            length,
            source,
            immediate: _,
        } = &completion.kind
        {
            self.channel.posting.receive_returned();
            if status == Status::Ok {
                self.on_packet(*buffer, *length, source);
            } else {
                self.channel.receive_failed(*buffer, status);
            }
        } else if let CompletionKind::Send { .. }
        | CompletionKind::RdmaRead
        | CompletionKind::RdmaWrite = completion.kind
        {
            self.on_done(context, status);
        } else {
            self.on_other_completion(completion);
        }
    }

    #[inline(never)]
    fn on_other_completion(&mut self, completion: &Completion) {
        let Completion {
            context, status, ..
        } = *completion;
        match &completion.kind {
            CompletionKind::RecvUser {
                length,
                source,
                immediate,
            } => self.on_user_receive(context, status, *length, source, *immediate),
            CompletionKind::RecvRdmaWithImmediate {
                buffer,
                length,
                source,
                immediate,
            } => {
                if let Some(buffer) = buffer {
                    self.channel.posting.receive_returned();
                    self.channel.posting.recycle(*buffer);
                }
                if status == Status::Ok {
                    // The completion contains no connection id.
                    let peer = self.channel.peers.addresses().identify(source, None);
                    self.channel.reports.written(peer, *length, *immediate);
                }
            }
            CompletionKind::Send { .. }
            | CompletionKind::RdmaRead
            | CompletionKind::RdmaWrite
            | CompletionKind::Recv { .. } => {}
        }
    }

    #[inline(always)]
    fn on_packet(&mut self, buffer: BufferId, length: usize, source: &Source) {
        self.channel.reports.statistics.packets_received += 1;
        let bytes = self.channel.posting.nic().buffer(buffer);
        let length = length.min(bytes.len());
        // Most packets are eager messages of a known peer, in their turn. They are parsed in place,
        // without a `Header`, and their peer is looked up once.
        if let Some((packet_type, eager, payload)) = Packet::parse_eager(&bytes[..length])
            && let connid = eager.options.sender_connid()
            && let Some(peer) = self.channel.peers.addresses().identify(source, connid)
            && !self.is_zero_copy()
            && let Some(state) = self.channel.peers.existing_state_mut(peer)
            && state.takes_at_once(eager.msg_id)
        {
            let packet = ReceivedPacket::in_buffer(buffer, length);
            let rtm = || Rtm::eager(packet_type, &eager, payload);
            return self
                .receive_side()
                .match_message(peer, packet, eager.tag, rtm);
        }
        self.on_other_packet(buffer, length, source);
    }

    #[inline(never)]
    fn on_other_packet(&mut self, buffer: BufferId, length: usize, source: &Source) {
        let packet = ReceivedPacket::in_buffer(buffer, length);
        let bytes = packet.bytes(self.channel.posting.nic());
        match Packet::parse(bytes) {
            Ok(incoming) => {
                let introduction = || UnknownSender {
                    packet_type: incoming.base.packet_type,
                    raw_address: incoming.raw_address(),
                };
                match self.sender(source, incoming.header.connid(), introduction) {
                    Some(peer) => self.dispatch(peer, packet, &incoming),
                    None => self.channel.posting.release(packet),
                }
            }
            Err(error) => {
                let packet_type = bytes.first().copied().unwrap_or(0);
                // The connection id is unknown, so the packet may be from an earlier owner of the
                // queue pair number. This is accurate enough for a report.
                let peer = self.channel.peers.addresses().identify(source, None);
                let reason = match error.reason {
                    Reason::UnsentType { .. } => PacketError::UnsupportedType,
                    _ => PacketError::Malformed(error),
                };
                self.channel.reports.refuse(peer, packet_type, reason);
                self.channel.posting.release(packet);
            }
        }
    }

    /// Identifies the sender of a packet, and queues the local HANDSHAKE for it if none was sent.
    /// Returns `None` if the packet must be dropped.
    fn sender(
        &mut self,
        source: &Source,
        connid: Option<Connid>,
        introduction: impl FnOnce() -> UnknownSender,
    ) -> Option<PeerId> {
        let peer = match self.channel.peers.addresses().identify(source, connid) {
            Some(peer) => peer,
            None => self.introduce(source, &introduction())?,
        };
        let state = self.channel.peers.state_mut(peer)?;
        state.heard = true;
        if state.failure.is_some() {
            self.channel.reports.statistics.from_failed_peers += 1;
            trace_packet_of_failed_peer(peer);
            return None;
        }
        if state.handshake.mark_sent() {
            self.channel.posting.queue(Work::Handshake(peer));
        }
        Some(peer)
    }

    #[inline]
    fn dispatch(&mut self, peer: PeerId, packet: ReceivedPacket, incoming: &Packet) {
        let payload = incoming.payload;
        match &incoming.header {
            // The response to READ_NACK has the `msg_id` of the refused request, so it takes no
            // turn.
            Header::LongctsRtm(long) if long.options.flags.contains(ReqFlags::READ_NACK) => {
                self.receive_side()
                    .on_nack_answer(peer, incoming.base.packet_type, long);
            }
            Header::EagerRtm(_)
            | Header::MediumRtm(_)
            | Header::LongctsRtm(_)
            | Header::LongreadRtm(_)
            | Header::RuntreadRtm(_)
                if self.is_zero_copy() =>
            {
                self.refuse_header(peer, incoming.base.packet_type);
            }
            Header::EagerRtm(_)
            | Header::MediumRtm(_)
            | Header::LongctsRtm(_)
            | Header::LongreadRtm(_)
            | Header::RuntreadRtm(_)
            | Header::Rta(_) => {
                return match Sequenced::of(incoming) {
                    Some(request) => self.turns().in_turn(peer, packet, &request),
                    None => self.channel.posting.release(packet),
                };
            }
            Header::LongctsRtw(_) | Header::LongreadRtw(_) | Header::Rtr(_) => {
                return match MemoryRequest::of(incoming) {
                    Some(request) => self.on_request(peer, packet, &request),
                    None => self.channel.posting.release(packet),
                };
            }
            Header::EagerRtw(eager) => {
                let packet_type = incoming.base.packet_type;
                self.receive_side()
                    .on_eager_write(peer, packet_type, eager, &packet, payload);
            }
            Header::Handshake(handshake) => self.on_handshake(peer, handshake.into()),
            Header::Cts(cts) => self.send_side().on_cts(peer, cts),
            Header::CtsData(data) => self
                .receive_side()
                .on_cts_data(peer, data, &packet, payload),
            Header::Receipt(receipt) => self.send_side().on_receipt(peer, receipt),
            Header::Eor(eor) => self.send_side().on_eor(peer, eor),
            Header::ReadNack(nack) => self.send_side().on_read_nack(peer, nack),
            Header::ReadRsp(response) => self
                .receive_side()
                .on_read_response(peer, response, &packet, payload),
            Header::AtomRsp(response) => self
                .receive_side()
                .on_atomic_response(peer, response, &packet, payload),
            Header::PeerError(error) => self.on_peer_error(peer, error),
        }
        self.channel.posting.release(packet);
    }

    /// Handles a PEER_ERROR: the peer has abandoned its half of a message.
    #[cold]
    fn on_peer_error(&mut self, peer: PeerId, error: &PeerError) {
        let taken = match error.emitter_ope_type {
            OpeType::TXE => self.turns().on_sender_error(peer, error),
            OpeType::RXE => self.send_side().on_receiver_error(peer, error),
            _ => Err(PacketError::UnsupportedType),
        };
        if let Err(reason) = taken {
            let packet_type = PacketType::PeerError.code();
            self.channel.reports.refuse(Some(peer), packet_type, reason);
        }
    }

    /// Processes a peer's HANDSHAKE.
    pub(crate) fn on_handshake(&mut self, peer: PeerId, features: PeerFeatures) {
        let Some(state) = self.channel.peers.state_mut(peer) else {
            return;
        };
        tracing::info!(
            %peer,
            features = ?features.extra,
            device_version = features.device_version,
            user_recv_qpn = features.user_recv_qp.map(|(qpn, _)| qpn.0),
            peer_to_peer = features.peer_to_peer,
            "HANDSHAKE received"
        );
        let waited = state.handshake.receive(features);
        for id in waited.refused_reads {
            self.receive_side().refuse_read(peer, id);
        }
        for id in waited.granted_data {
            self.sending.dequeue(id);
            self.send_side().queue_outbound(id);
        }
        self.channel.send_pending_aborts(peer);
    }
}

#[cold]
fn trace_packet_of_failed_peer(peer: PeerId) {
    tracing::debug!(%peer, reason = "the peer was given up", "packet dropped");
}
