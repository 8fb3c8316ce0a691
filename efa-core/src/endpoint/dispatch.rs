//! From a device completion to the subprotocol that a packet belongs to: parse, find out who sent
//! it, answer a first packet with a handshake, dispatch.

use crate::address::RawAddress;
use crate::endpoint::posting::Work;
use crate::endpoint::requests::MemoryRequest;
use crate::endpoint::subprotocols::incoming_message::{Rtm, Sequenced};
use crate::nic::{BufferId, Completion, CompletionKind, Domain, Nic, Source, Status};
use crate::wire::{Connid, Header, Packet, PacketType, Reason, ReqFlags};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{Event, PacketError};
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::channel::Conversation;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::peers::handshake::PeerFeatures;

/// What a packet says of its sender.
struct Stated {
    packet_type: PacketType,
    connid: Option<Connid>,
    raw_address: Option<RawAddress>,
}

impl<N: Nic> Endpoint<N> {
    /// Handles one completion of the device.
    #[inline]
    pub(crate) fn on_completion(&mut self, completion: &Completion) {
        let Completion {
            context, status, ..
        } = *completion;
        match completion.kind {
            CompletionKind::Send { .. } | CompletionKind::RdmaRead | CompletionKind::RdmaWrite => {
                self.on_done(context, status);
            }
            CompletionKind::Recv {
                buffer,
                length,
                source,
                immediate: _,
            } => {
                self.channel.posting.receive_returned();
                if status == Status::Ok {
                    self.on_packet(buffer, length, &source);
                } else {
                    self.on_receive_failed(buffer, status);
                }
            }
            CompletionKind::RecvRdmaWithImmediate {
                buffer,
                length,
                source,
                immediate,
            } => {
                if let Some(buffer) = buffer {
                    self.channel.posting.receive_returned();
                    self.channel.posting.recycle(buffer);
                }
                if status == Status::Ok {
                    // No connection id comes with it.
                    let peer = self.channel.peers.identify(&source, None);
                    self.channel.reports.written(peer, length, immediate);
                }
            }
        }
    }

    /// A receive buffer came back empty: the queue pair is going away, or refused it.
    fn on_receive_failed(&mut self, buffer: BufferId, status: Status) {
        self.channel.posting.retire(buffer);
        if status != Status::Flushed {
            self.channel.reports.event(Event::ReceiveFailed(status));
        }
    }

    fn on_packet(&mut self, buffer: BufferId, length: usize, source: &Source) {
        self.channel.reports.statistics.packets_received += 1;
        let bytes = self.channel.posting.nic().buffer(buffer);
        let length = length.min(bytes.len());
        let bytes = &bytes[..length];
        // What most packets are has a way of its own: it is parsed where it stays.
        let Some((packet_type, eager, payload)) = Packet::parse_eager(bytes) else {
            return self.on_other_packet(buffer, length, source);
        };
        let packet = ReceivedPacket::in_buffer(buffer, length);
        let stated = Stated {
            packet_type,
            connid: eager.options.sender_connid(),
            raw_address: eager.options.raw_address.map(|header| header.address()),
        };
        match self.sender(source, &stated) {
            Some(peer) => {
                let rtm = Rtm::eager(packet_type, &eager, payload);
                self.in_turn(peer, packet, &Sequenced::Message(rtm));
            }
            None => self.channel.posting.release(packet),
        }
    }

    #[inline(never)]
    fn on_other_packet(&mut self, buffer: BufferId, length: usize, source: &Source) {
        let packet = ReceivedPacket::in_buffer(buffer, length);
        let bytes = packet.bytes(self.channel.posting.nic());
        match Packet::parse(bytes) {
            Ok(incoming) => {
                let stated = Stated {
                    packet_type: incoming.base.packet_type,
                    connid: incoming.header.connid(),
                    raw_address: incoming.raw_address(),
                };
                match self.sender(source, &stated) {
                    Some(peer) => self.dispatch(peer, packet, &incoming),
                    None => self.channel.posting.release(packet),
                }
            }
            Err(error) => {
                let packet_type = bytes.first().copied().unwrap_or(0);
                // The connection id is unknown, so the sender may be an older incarnation: good
                // enough for a report.
                let peer = self.channel.peers.identify(source, None);
                let reason = match error.reason {
                    Reason::UnsentType { .. } => PacketError::UnsupportedType,
                    _ => PacketError::Malformed(error),
                };
                self.channel.reports.refuse(peer, packet_type, reason);
                self.channel.posting.release(packet);
            }
        }
    }

    /// The peer that sent a packet, which gets our HANDSHAKE if it has not. `None` if nothing is to be
    /// done with the packet.
    #[inline(always)]
    fn sender(&mut self, source: &Source, stated: &Stated) -> Option<PeerId> {
        let peer = match self.channel.peers.identify(source, stated.connid) {
            Some(peer) => peer,
            None => self.introduce(source, stated)?,
        };
        let state = self.channel.peers.state_mut(peer)?;
        state.heard = true;
        if state.failure.is_some() {
            self.channel.reports.statistics.from_failed_peers += 1;
            return None;
        }
        if state.handshake.greet() {
            self.channel.posting.queue(Work::Handshake(peer));
        }
        Some(peer)
    }

    /// Finds or makes the peer of a packet whose sender is not in the address vector, by the address
    /// that the packet states.
    #[cold]
    fn introduce(&mut self, source: &Source, stated: &Stated) -> Option<PeerId> {
        let Some(address) = stated.raw_address else {
            self.channel.reports.statistics.unknown_senders += 1;
            return None;
        };
        if !self.channel.peers.is_plausible(source, &address) {
            self.channel.reports.refuse(
                None,
                stated.packet_type.code(),
                PacketError::ForeignAddress,
            );
            return None;
        }
        if let Some(peer) = self.channel.peers.find(&address) {
            return Some(peer);
        }
        self.forget_dead_owners(source);
        if self.channel.peers.implicit_len() >= self.channel.config.max_implicit_peers
            && !self.forget_idle_peer()
        {
            self.channel.reports.statistics.unknown_senders += 1;
            self.channel
                .reports
                .refuse(None, stated.packet_type.code(), PacketError::TooManyPeers);
            return None;
        }
        self.channel
            .peers
            .addresses_mut()
            .add(&mut **self.channel.posting.nic_mut(), address, false)
            .inspect_err(|_| self.channel.reports.statistics.unknown_senders += 1)
            .ok()
    }

    /// Makes room for a peer that introduces itself: forgets one that did so before, has nothing under
    /// way, and, as far as a few are looked at, was silent longest. Returns whether there was one.
    #[cold]
    fn forget_idle_peer(&mut self) -> bool {
        /// A packet costs no more than this many looks.
        const LOOKS: usize = 32;
        let mut candidate = None;
        for _ in 0..LOOKS.min(self.channel.peers.implicit_len()) {
            let Some(peer) = self.channel.peers.addresses_mut().next_introduced() else {
                break;
            };
            if self.is_idle(peer) {
                let state = self.channel.peers.state_mut(peer);
                if !state.is_some_and(|state| core::mem::take(&mut state.heard)) {
                    self.forget_introduced(peer);
                    return true;
                }
                candidate.get_or_insert(peer);
            }
            self.channel.peers.addresses_mut().remember_introduced(peer);
        }
        if let Some(peer) = candidate {
            self.forget_introduced(peer);
        }
        candidate.is_some()
    }

    /// Returns whether nothing is under way with a peer, at any endpoint.
    fn is_idle(&self, peer: PeerId) -> bool {
        !self.channel.peers.is_others(peer)
            && self
                .channel
                .peers
                .state(peer)
                .is_none_or(Conversation::is_idle)
            && self.channel.quota.is_idle(peer)
            && self.sending.has_none_with(peer)
            && self.receiving.has_none_of(peer)
    }

    fn forget_introduced(&mut self, peer: PeerId) {
        if let Some(address) = self.channel.peers.address(peer) {
            self.channel
                .reports
                .event(Event::PeerForgotten { peer, address });
        }
        // An error can only be about an address handle that nobody needs any more.
        let _ = self.drop_address(peer);
    }

    /// Makes room among the owners of a queue pair number for a new one: the others are dead. One
    /// sender that makes up connection ids must not take the room of all others.
    fn forget_dead_owners(&mut self, source: &Source) {
        let Some(ahn) = source.ahn else {
            return;
        };
        if let Some(oldest) = self.channel.peers.surplus_owner(ahn, source.qpn) {
            // An error can only be about an address handle that nobody needs any more.
            let _ = self.drop_address(oldest);
        }
    }

    #[inline]
    fn dispatch(&mut self, peer: PeerId, packet: ReceivedPacket, incoming: &Packet) {
        let payload = incoming.payload;
        match &incoming.header {
            // It takes no turn of its own: its `msg_id` is that of the request that was refused.
            Header::LongctsRtm(long) if long.options.flags.contains(ReqFlags::READ_NACK) => {
                self.receive_side()
                    .on_nack_answer(peer, incoming.base.packet_type, long);
            }
            Header::EagerRtm(_)
            | Header::MediumRtm(_)
            | Header::LongctsRtm(_)
            | Header::LongreadRtm(_)
            | Header::RuntreadRtm(_)
            | Header::Rta(_) => {
                return match Sequenced::of(incoming) {
                    Some(request) => self.other_in_turn(peer, packet, &request),
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
            // Nothing that a release of libfabric sends.
            Header::PeerError(_) => self.channel.reports.refuse(
                Some(peer),
                incoming.base.packet_type.code(),
                PacketError::UnsupportedType,
            ),
        }
        self.channel.posting.release(packet);
    }

    /// Takes a peer's HANDSHAKE.
    pub(crate) fn on_handshake(&mut self, peer: PeerId, features: PeerFeatures) {
        let Some(state) = self.channel.peers.state_mut(peer) else {
            return;
        };
        let waited = state.handshake.receive(features);
        for id in waited.refused_reads {
            self.receive_side().refuse_read(peer, id);
        }
        for id in waited.granted_data {
            self.sending.dequeue(id);
            self.send_side().queue_outbound(id);
        }
    }
}
