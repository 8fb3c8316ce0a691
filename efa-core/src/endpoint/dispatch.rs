//! From a device completion to the subprotocol that a packet belongs to: parse, find out who sent
//! it, answer a first packet with a handshake, dispatch.

use crate::address::RawAddress;
use crate::endpoint::posting::Work;
use crate::endpoint::subprotocols::admission::MemoryRequest;
use crate::endpoint::subprotocols::message::{Rtm, Sequenced};
use crate::nic::{BufferId, Completion, CompletionKind, Domain, Nic, Source, Status};
use crate::wire::{Connid, Header, Packet, PacketType, Reason, ReqFlags};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{Event, PacketError};
use crate::endpoint::api::error::{Errno, Failure, ProviderError};
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::conversation::Conversation;
use crate::endpoint::memory::packet::ReceivedPacket;

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
                self.posting.receive_returned();
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
                    self.posting.receive_returned();
                    self.recycle(buffer);
                }
                if status == Status::Ok {
                    self.on_written(&source, length, immediate);
                }
            }
        }
    }

    /// A receive buffer came back empty: the queue pair is going away, or refused it.
    fn on_receive_failed(&mut self, buffer: BufferId, status: Status) {
        self.posting.retire(buffer);
        if status != Status::Flushed {
            self.reports.event(Event::ReceiveFailed(status));
        }
    }

    fn on_packet(&mut self, buffer: BufferId, length: usize, source: &Source) {
        self.reports.statistics.packets_received += 1;
        let bytes = self.posting.nic().buffer(buffer);
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
            None => self.release(packet),
        }
    }

    #[inline(never)]
    fn on_other_packet(&mut self, buffer: BufferId, length: usize, source: &Source) {
        let packet = ReceivedPacket::in_buffer(buffer, length);
        let bytes = packet.bytes(self.posting.nic());
        match Packet::parse(bytes) {
            Ok(incoming) => {
                let stated = Stated {
                    packet_type: incoming.base.packet_type,
                    connid: incoming.header.connid(),
                    raw_address: incoming.raw_address(),
                };
                match self.sender(source, &stated) {
                    Some(peer) => self.dispatch(peer, packet, &incoming),
                    None => self.release(packet),
                }
            }
            Err(error) => {
                let packet_type = bytes.first().copied().unwrap_or(0);
                // The connection id is unknown, so the sender may be an older incarnation: good
                // enough for a report.
                let peer = self.peers.identify(source, None);
                let reason = match error.reason {
                    Reason::UnsentType { .. } => PacketError::UnsupportedType,
                    _ => PacketError::Malformed(error),
                };
                self.reports.refuse(peer, packet_type, reason);
                self.release(packet);
            }
        }
    }

    /// The peer that sent a packet, which gets our HANDSHAKE if it has not. `None` if nothing is to be
    /// done with the packet.
    #[inline(always)]
    fn sender(&mut self, source: &Source, stated: &Stated) -> Option<PeerId> {
        let peer = match self.peers.identify(source, stated.connid) {
            Some(peer) => peer,
            None => self.introduce(source, stated)?,
        };
        let state = self.peers.state_mut(peer)?;
        state.heard = true;
        if state.failure.is_some() {
            self.reports.statistics.from_failed_peers += 1;
            return None;
        }
        if state.handshake.greet() {
            self.posting.queue(Work::Handshake(peer));
        }
        Some(peer)
    }

    /// Finds or makes the peer of a packet whose sender is not in the address vector, by the address
    /// that the packet states.
    #[cold]
    fn introduce(&mut self, source: &Source, stated: &Stated) -> Option<PeerId> {
        let Some(address) = stated.raw_address else {
            self.reports.statistics.unknown_senders += 1;
            return None;
        };
        if !self.peers.is_plausible(source, &address) {
            self.reports
                .refuse(None, stated.packet_type.code(), PacketError::ForeignAddress);
            return None;
        }
        if let Some(peer) = self.peers.find(&address) {
            return Some(peer);
        }
        self.forget_dead_owners(source);
        if self.peers.implicit_len() >= self.config.max_implicit_peers && !self.forget_idle_peer() {
            self.reports.statistics.unknown_senders += 1;
            self.reports
                .refuse(None, stated.packet_type.code(), PacketError::TooManyPeers);
            return None;
        }
        self.peers
            .addresses_mut()
            .add(&mut **self.posting.nic_mut(), address, false)
            .inspect_err(|_| self.reports.statistics.unknown_senders += 1)
            .ok()
    }

    /// Makes room for a peer that introduces itself: forgets one that did so before, has nothing under
    /// way, and, as far as a few are looked at, was silent longest. Returns whether there was one.
    #[cold]
    fn forget_idle_peer(&mut self) -> bool {
        /// A packet costs no more than this many looks.
        const LOOKS: usize = 32;
        let mut candidate = None;
        for _ in 0..LOOKS.min(self.peers.implicit_len()) {
            let Some(peer) = self.peers.addresses_mut().next_introduced() else {
                break;
            };
            if self.is_idle(peer) {
                let state = self.peers.state_mut(peer);
                if !state.is_some_and(|state| core::mem::take(&mut state.heard)) {
                    self.forget_introduced(peer);
                    return true;
                }
                candidate.get_or_insert(peer);
            }
            self.peers.addresses_mut().remember_introduced(peer);
        }
        if let Some(peer) = candidate {
            self.forget_introduced(peer);
        }
        candidate.is_some()
    }

    /// Returns whether nothing is under way with a peer, at any endpoint.
    fn is_idle(&self, peer: PeerId) -> bool {
        !self.peers.is_others(peer)
            && self.peers.state(peer).is_none_or(Conversation::is_idle)
            && self.sending.has_none_with(peer)
            && self.receiving.has_none_of(peer)
    }

    fn forget_introduced(&mut self, peer: PeerId) {
        if let Some(address) = self.peers.address(peer) {
            self.reports.event(Event::PeerForgotten { peer, address });
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
        if let Some(oldest) = self.peers.surplus_owner(ahn, source.qpn) {
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
                self.on_nack_answer(peer, incoming.base.packet_type, long);
            }
            Header::EagerRtm(_)
            | Header::MediumRtm(_)
            | Header::LongctsRtm(_)
            | Header::LongreadRtm(_)
            | Header::RuntreadRtm(_)
            | Header::Rta(_) => {
                return match Sequenced::of(incoming) {
                    Some(request) => self.other_in_turn(peer, packet, &request),
                    None => self.release(packet),
                };
            }
            Header::LongctsRtw(_) | Header::LongreadRtw(_) | Header::Rtr(_) => {
                return match MemoryRequest::of(incoming) {
                    Some(request) => self.on_request(peer, packet, &request),
                    None => self.release(packet),
                };
            }
            Header::EagerRtw(eager) => {
                let packet_type = incoming.base.packet_type;
                self.on_eager_write(peer, packet_type, eager, &packet, payload);
            }
            Header::Handshake(handshake) => self.on_handshake(peer, handshake.into()),
            Header::Cts(cts) => self.on_cts(peer, cts),
            Header::CtsData(data) => self.on_cts_data(peer, data, &packet, payload),
            Header::Receipt(receipt) => self.on_receipt(peer, receipt),
            Header::Eor(eor) => self.on_eor(peer, eor),
            Header::ReadNack(nack) => self.on_read_nack(peer, nack),
            Header::ReadRsp(response) => self.on_read_response(peer, response, &packet, payload),
            Header::AtomRsp(response) => self.on_atomic_response(peer, response, &packet, payload),
            // Nothing that a release of libfabric sends.
            Header::PeerError(_) => self.reports.refuse(
                Some(peer),
                incoming.base.packet_type.code(),
                PacketError::UnsupportedType,
            ),
        }
        self.release(packet);
    }

    /// Gives up a packet that was handled.
    #[inline(always)]
    pub(crate) fn release(&mut self, packet: ReceivedPacket) {
        if let Some(buffer) = self.receiving.release(packet) {
            self.recycle(buffer);
        }
    }

    /// Whether a peer was given up: what it sent is dropped.
    pub(crate) fn is_given_up(&self, peer: PeerId) -> bool {
        self.failure_of(peer).is_some()
    }

    /// Why operations with a peer fail, if they do: it was removed or given up.
    #[inline]
    pub(crate) fn failure_of(&self, peer: PeerId) -> Option<Failure> {
        match self.peers.state(peer) {
            Some(state) => state.failure,
            None => Some(Failure::CANCELED),
        }
    }

    /// Gives up a peer that broke the protocol in a way that cannot be mended.
    #[cold]
    pub(crate) fn give_up_peer(&mut self, peer: PeerId, packet_type: PacketType) {
        let failure = Failure::new(Errno::EIO, ProviderError::for_request(packet_type));
        self.reports.event(Event::PeerFailed { peer, failure });
        self.end_operations_with(peer, failure);
    }
}
