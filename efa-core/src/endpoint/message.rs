//! Messages: from the application's send to a subprotocol, and from a request packet through the
//! reorder window and matching to a receive.

use hashbrown::HashTable;

use crate::nic::Nic;
use crate::wire::{MsgId, Packet, PacketType, Repr, SendId};

use super::choice::{self, MessageProtocol, MessageQuery, NoProtocol};
use super::completion::{CompletionFlags, ErrorEntry, PacketError};
use super::error::{EndpointError, Errno, Failure, ProviderError};
use super::hash::Mixer;
use super::held::{HeldId, ReceivedPacket};
use super::ids::{OutboundId, PeerId, ReceiveId};
use super::inbound::{Ending, Inbound, Posted, Supply, Transfer};
use super::incoming::{Body, Incoming, Iovs, Payload, Rtm, RtmProtocol};
use super::iov::{Iov, total_length};
use super::long_cts::SIZE_MISMATCH;
use super::matching::{Filter, Matcher, UnexpectedKey};
use super::operation::{OperationFlags, RecvArgs, SendArgs, TagFilter};
use super::outbound::{Awaited, Bulk, Report};
use super::reorder::Position;
use super::stream::{MessageHead, Request, Stream, segment_size};
use super::{Endpoint, IOV_LIMIT};

/// A message that no receive has taken yet.
pub(super) struct UnexpectedMessage {
    msg_id: MsgId,
    /// Length of the whole message in bytes.
    length: u64,
    cq_data: Option<u64>,
    /// It comes in several packets of the same `msg_id`.
    segmented: bool,
    /// Its packets so far.
    head: HeldId,
}

pub(super) type MessageMatcher = Matcher<UnexpectedMessage>;

/// Where further packets of a message go whose first packet was processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Assembly {
    /// To its other packets.
    Unexpected { tagged: bool, key: UnexpectedKey },
    /// To the receive.
    Receive(ReceiveId),
}

/// Messages of which more packets will come under the same `msg_id`.
pub(super) struct Assemblies {
    table: HashTable<(PeerId, MsgId, Assembly)>,
    mixer: Mixer,
}

impl Assemblies {
    pub(super) fn new(mixer: Mixer) -> Self {
        Assemblies {
            table: HashTable::new(),
            mixer,
        }
    }

    fn hash(&self, peer: PeerId, msg_id: MsgId) -> u64 {
        self.mixer.hash(peer.to_bits(), u64::from(msg_id.0))
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn get(&self, peer: PeerId, msg_id: MsgId) -> Option<Assembly> {
        self.table
            .find(self.hash(peer, msg_id), |(other, id, _)| {
                *other == peer && *id == msg_id
            })
            .map(|(.., assembly)| *assembly)
    }

    pub(super) fn set(&mut self, peer: PeerId, msg_id: MsgId, assembly: Assembly) {
        let hash = self.hash(peer, msg_id);
        let mixer = self.mixer;
        match self
            .table
            .find_mut(hash, |(other, id, _)| *other == peer && *id == msg_id)
        {
            Some((.., current)) => *current = assembly,
            None => {
                self.table
                    .insert_unique(hash, (peer, msg_id, assembly), |(peer, id, _)| {
                        mixer.hash(peer.to_bits(), u64::from(id.0))
                    });
            }
        }
    }

    pub(super) fn remove(&mut self, peer: PeerId, msg_id: MsgId) {
        let hash = self.hash(peer, msg_id);
        let entry = self
            .table
            .find_entry(hash, |(other, id, _)| *other == peer && *id == msg_id);
        if let Ok(entry) = entry {
            entry.remove();
        }
    }
}

fn message_flags(tagged: bool, direction: CompletionFlags) -> CompletionFlags {
    direction
        | if tagged {
            CompletionFlags::TAGGED
        } else {
            CompletionFlags::MSG
        }
}

// The sender's side.
impl<N: Nic> Endpoint<N> {
    pub(super) fn start_send(&mut self, args: &SendArgs<'_>) -> Result<(), EndpointError> {
        let length = total_length(args.data);
        let inject = args.flags.contains(OperationFlags::INJECT);
        check_pieces(args.data.len())?;
        self.check_inject(inject, length)?;
        self.check_peer(args.peer)?;
        let options = self.request_options(args.peer, args.cq_data);
        // Stock libfabric keeps injected data out of delivery complete: nobody hears of its end.
        let delivery_complete = args.flags.contains(OperationFlags::DELIVERY_COMPLETE) && !inject;
        let header = super::eager::header_length(args.tag.is_some(), delivery_complete, &options);
        let query = MessageQuery {
            length,
            eager_capacity: self.mtu.saturating_sub(header) as u64,
            runt_budget: self.runt_budget(args.peer),
            delivery_complete,
            inject,
        };
        let features = self.peers.state(args.peer).and_then(|state| state.features);
        let protocol = match choice::message(&self.local, features.as_ref(), &query) {
            Ok(protocol) => protocol,
            Err(reason) => return self.no_protocol(args.peer, reason),
        };
        let head = MessageHead {
            msg_id: self.next_msg_id(args.peer),
            tag: args.tag,
            delivery_complete,
            options,
        };
        if protocol == MessageProtocol::Eager {
            self.send_eager(args, length, &head)?;
        } else {
            let report = Self::send_report(args);
            let source = Iov::new(args.data)?;
            let request = Request::Message(head);
            let peer = args.peer;
            match protocol {
                MessageProtocol::Eager | MessageProtocol::Medium => {
                    self.send_medium(peer, report, source, length, head)?;
                }
                MessageProtocol::LongCts => {
                    self.start_long_cts(peer, report, source, length, request)?;
                }
                MessageProtocol::LongRead => {
                    self.start_long_read(peer, report, source, length, request)?;
                }
                MessageProtocol::RuntRead(runt) => {
                    self.start_runt_read(peer, report, source, length, head, runt)?;
                }
            }
        }
        // Only now: an id that was not used would be a gap that stalls the peer for good.
        if let Some(state) = self.peers.state_mut(args.peer) {
            state.next_msg_id = state.next_msg_id.next();
            state.request_sent = true;
        }
        Ok(())
    }

    /// Sends a message as segments, without flow control (spec section 3.2, medium message).
    fn send_medium(
        &mut self,
        peer: PeerId,
        report: Report,
        source: Iov,
        length: u64,
        head: MessageHead,
    ) -> Result<(), EndpointError> {
        // The id has a fixed width, so any serves to measure the header.
        let header = head.medium(OutboundId::from_wire(0), length, 0);
        let size = segment_size(length, self.mtu.saturating_sub(header.header_len()));
        let awaited = Awaited::for_packets(head.delivery_complete);
        let bulk = Bulk::new(source, length, Stream::Medium(head, size));
        let id = self.new_bulk(peer, Some(report), length, awaited, bulk)?;
        self.start_stream(id)
    }

    /// Starts an operation whose data the peer asks for, window by window.
    pub(super) fn start_long_cts(
        &mut self,
        peer: PeerId,
        report: Report,
        source: Iov,
        length: u64,
        request: Request,
    ) -> Result<OutboundId, EndpointError> {
        let delivery_complete = match request {
            Request::Message(head) => head.delivery_complete,
            Request::Write(head) => head.delivery_complete,
        };
        let bulk = Bulk {
            allowed: 0,
            ..Bulk::new(source, length, Stream::LongCts(request))
        };
        let awaited = Awaited::for_packets(delivery_complete);
        let id = self.new_bulk(peer, Some(report), length, awaited, bulk)?;
        self.start_stream(id)?;
        Ok(id)
    }

    /// Refuses an operation for which there is no protocol, now or at all.
    pub(super) fn no_protocol(
        &mut self,
        peer: PeerId,
        reason: NoProtocol,
    ) -> Result<(), EndpointError> {
        match reason {
            NoProtocol::AwaitHandshake => {
                self.provoke_handshake(peer)?;
                Err(EndpointError::TryAgain)
            }
            NoProtocol::Unsupported(what) => Err(EndpointError::Unsupported(what)),
        }
    }

    /// Whether an operation with a peer can be started now.
    pub(super) fn check_peer(&self, peer: PeerId) -> Result<(), EndpointError> {
        if !self.peers.contains(peer) {
            return Err(EndpointError::UnknownPeer(peer));
        }
        match self.peers.state(peer) {
            Some(state) if state.failed => Err(EndpointError::PeerFailed(peer)),
            Some(state) if state.backoff.is_some() => Err(EndpointError::TryAgain),
            _ => Ok(()),
        }
    }

    /// The id of the next message to a peer.
    pub(super) fn next_msg_id(&self, peer: PeerId) -> MsgId {
        self.peers
            .state(peer)
            .map_or(MsgId(self.config.first_msg_id), |state| state.next_msg_id)
    }

    /// What to tell the application of a send.
    pub(super) fn send_report(args: &SendArgs<'_>) -> Report {
        Report {
            context: args.context,
            flags: message_flags(args.tag.is_some(), CompletionFlags::SEND),
            success: args.flags.contains(OperationFlags::COMPLETION)
                && !args.flags.contains(OperationFlags::INJECT),
        }
    }
}

pub(super) fn check_pieces(count: usize) -> Result<(), EndpointError> {
    if count > IOV_LIMIT {
        return Err(EndpointError::OutOfRange {
            what: "number of buffer pieces",
            value: count as u64,
            limit: IOV_LIMIT as u64,
        });
    }
    Ok(())
}

// The receiver's side.
impl<N: Nic> Endpoint<N> {
    pub(super) fn matcher(&mut self, tagged: bool) -> &mut MessageMatcher {
        if tagged {
            &mut self.tagged
        } else {
            &mut self.untagged
        }
    }

    pub(super) fn start_recv(&mut self, args: &RecvArgs<'_>) -> Result<ReceiveId, EndpointError> {
        if let super::SourceFilter::Peer(peer) = args.source
            && !self.peers.contains(peer)
        {
            return Err(EndpointError::UnknownPeer(peer));
        }
        let target = Iov::new(args.buffer)?;
        let capacity = total_length(args.buffer);
        let tagged = args.tag.is_some();
        let filter = Filter {
            source: args.source,
            tag: args.tag.unwrap_or(TagFilter::exact(0)),
        };
        if self.inbound.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let report_success = args.flags.contains(OperationFlags::COMPLETION);
        if let Some(key) = self.matcher(tagged).find_unexpected(&filter) {
            let (peer, tag, message) = self.matcher(tagged).remove_unexpected(key);
            let ending = Ending {
                context: args.context,
                report_success,
                flags: receive_flags(tagged, message.cq_data),
                tag,
                cq_data: message.cq_data,
                request: None,
            };
            let mut transfer = Transfer::new(peer, message.length, target, capacity, ending);
            transfer.msg_id = message.msg_id;
            transfer.assembled = message.segmented;
            let Ok(id) = self.inbound.insert(Inbound::Active(transfer)) else {
                return Err(EndpointError::TryAgain);
            };
            self.receive_held(id, peer, &message);
            return Ok(id);
        }
        // The matcher needs the id and the receive its place in the matcher: it gets it at once.
        let posted = Posted {
            context: args.context,
            report_success,
            target,
            capacity,
            tagged,
            key: super::matching::PostedKey::NOWHERE,
        };
        let Ok(id) = self.inbound.insert(Inbound::Posted(posted)) else {
            return Err(EndpointError::TryAgain);
        };
        let key = self.matcher(tagged).post(id, filter);
        if let Some(Inbound::Posted(posted)) = self.inbound.get_mut(id) {
            posted.key = key;
        }
        Ok(id)
    }

    /// Gives a receive the packets of a message that was unexpected.
    fn receive_held(&mut self, id: ReceiveId, peer: PeerId, message: &UnexpectedMessage) {
        if message.segmented {
            self.assemblies
                .set(peer, message.msg_id, Assembly::Receive(id));
        }
        let mut next = Some(message.head);
        while let Some((packet, behind)) = next.and_then(|held| self.held.take(held)) {
            next = behind;
            match self.parse_again(&packet) {
                Some(Incoming {
                    body: Body::Message(rtm),
                    payload,
                    packet_type,
                    ..
                }) => {
                    self.message_packet(id, peer, &packet, &rtm, payload, packet_type);
                }
                _ => debug_assert!(false, "only messages wait for receives"),
            }
            self.release(packet);
        }
    }

    /// Gives up a message that no receive took.
    pub(super) fn drop_unexpected(&mut self, peer: PeerId, message: &UnexpectedMessage) {
        if message.segmented {
            self.assemblies.remove(peer, message.msg_id);
        }
        self.drop_held(message.head);
    }

    /// Gives up a chain of packets that wait.
    pub(super) fn drop_held(&mut self, head: HeldId) {
        let mut next = Some(head);
        while let Some((packet, behind)) = next.and_then(|held| self.held.take(held)) {
            next = behind;
            self.release(packet);
        }
    }

    /// Parses a packet that was parsed before it had to wait.
    fn parse_again(&self, packet: &ReceivedPacket) -> Option<Incoming> {
        let bytes = packet.bytes(&self.nic);
        let parsed = Packet::parse(bytes).ok()?;
        Some(Incoming::new(&parsed, bytes.len()))
    }

    pub(super) fn cancel_receive(&mut self, id: ReceiveId) -> bool {
        let Some(Inbound::Posted(posted)) = self.inbound.get(id) else {
            return false;
        };
        let (tagged, key) = (posted.tagged, posted.key);
        self.matcher(tagged).remove_receive(key);
        self.end_posted(id, Failure::new(Errno::ECANCELED, ProviderError::None));
        true
    }

    /// Ends a receive that is not among the posted ones any more.
    pub(super) fn end_posted(&mut self, id: ReceiveId, failure: Failure) {
        if let Some(Inbound::Posted(posted)) = self.inbound.remove(id) {
            self.report_error(ErrorEntry {
                context: posted.context,
                flags: message_flags(posted.tagged, CompletionFlags::RECV),
                length: 0,
                overflow_length: 0,
                data: 0,
                tag: 0,
                source: None,
                failure,
            });
        }
    }

    /// Processes a message or atomic when its turn has come, and then those that waited for it.
    pub(super) fn in_turn(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        packet: ReceivedPacket,
        incoming: &Incoming,
    ) {
        let Some(state) = self.peers.state_mut(peer) else {
            return self.release(packet);
        };
        match state.window.position(msg_id, self.config.reorder_window) {
            Position::Expected => {
                state.window.advance();
                let mut chains = state.window.take_expected();
                self.first_packet(peer, packet, incoming);
                while chains != [None; 2] {
                    let mut first = true;
                    for chain in chains {
                        let mut next = chain;
                        while let Some((packet, behind)) =
                            next.and_then(|held| self.held.take(held))
                        {
                            next = behind;
                            let Some(incoming) = self.parse_again(&packet) else {
                                self.release(packet);
                                continue;
                            };
                            if first {
                                first = false;
                                self.first_packet(peer, packet, &incoming);
                            } else {
                                self.later_packet(peer, packet, &incoming);
                            }
                        }
                    }
                    let Some(state) = self.peers.state_mut(peer) else {
                        return;
                    };
                    state.window.advance();
                    chains = state.window.take_expected();
                }
            }
            Position::Early => self.hold_early(peer, msg_id, packet, incoming),
            Position::Past => self.later_packet(peer, packet, incoming),
            Position::Beyond => {
                let expected = state.window.expected().0;
                let packet_type = incoming.packet_type;
                let reason = PacketError::BeyondWindow {
                    msg_id: msg_id.0,
                    expected,
                };
                self.release(packet);
                self.refuse(Some(peer), packet_type.code(), reason);
                self.give_up_peer(peer, packet_type);
            }
        }
    }

    fn hold_early(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        packet: ReceivedPacket,
        incoming: &Incoming,
    ) {
        self.statistics.out_of_order += 1;
        match self.held.hold(&self.nic, packet, None) {
            Ok((id, freed)) => {
                if let Some(buffer) = freed {
                    self.recycle(buffer);
                }
                if let Some(state) = self.peers.state_mut(peer) {
                    let held = &mut self.held;
                    state.window.hold(msg_id, |next| {
                        held.set_next(id, next);
                        id
                    });
                }
            }
            Err(packet) => {
                self.release(packet);
                self.give_up_peer(peer, incoming.packet_type);
            }
        }
    }

    /// The first packet of a message or atomic whose turn has come.
    #[inline]
    fn first_packet(&mut self, peer: PeerId, packet: ReceivedPacket, incoming: &Incoming) {
        match &incoming.body {
            Body::Message(rtm) => self.match_message(peer, packet, incoming, rtm),
            Body::Atomic(rta) => self.on_atomic(peer, packet, incoming, rta),
            _ => self.release(packet),
        }
    }

    /// A packet whose `msg_id` was processed before: a segment, or a mistake.
    fn later_packet(&mut self, peer: PeerId, packet: ReceivedPacket, incoming: &Incoming) {
        let packet_type = incoming.packet_type.code();
        let (rtm, msg_id) = match &incoming.body {
            Body::Message(rtm) => (Some(rtm), rtm.msg_id),
            Body::Atomic(rta) => (None, rta.msg_id),
            _ => return self.release(packet),
        };
        let assembly = rtm
            .filter(|rtm| rtm.is_segment())
            .and_then(|_| self.assemblies.get(peer, msg_id));
        match (assembly, rtm) {
            (Some(Assembly::Receive(id)), Some(rtm)) => {
                let Incoming {
                    payload,
                    packet_type,
                    ..
                } = *incoming;
                self.message_packet(id, peer, &packet, rtm, payload, packet_type);
                self.release(packet);
            }
            (Some(Assembly::Unexpected { tagged, key }), Some(_)) => {
                let head = self.matcher(tagged).unexpected_mut(key).2.head;
                match self.held.hold(&self.nic, packet, Some(head)) {
                    Ok((id, freed)) => {
                        self.matcher(tagged).unexpected_mut(key).2.head = id;
                        if let Some(buffer) = freed {
                            self.recycle(buffer);
                        }
                    }
                    Err(packet) => {
                        self.release(packet);
                        self.give_up_peer(peer, incoming.packet_type);
                    }
                }
            }
            _ => {
                self.refuse(
                    Some(peer),
                    packet_type,
                    PacketError::AlreadyProcessed { msg_id: msg_id.0 },
                );
                self.release(packet);
            }
        }
    }

    /// Finds the receive for a message, or keeps the message.
    #[inline]
    fn match_message(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        incoming: &Incoming,
        rtm: &Rtm,
    ) {
        let tagged = rtm.tag.is_some();
        let tag = rtm.tag.unwrap_or(0);
        let Some(id) = self.matcher(tagged).take_receive(peer, tag) else {
            return self.keep_unexpected(peer, packet, incoming, rtm);
        };
        if let RtmProtocol::Eager { receipt } = rtm.protocol {
            self.receive_eager(id, peer, &packet, incoming.payload, rtm, receipt);
            return self.release(packet);
        }
        let Some(Inbound::Posted(posted)) = self.inbound.get_mut(id) else {
            return self.release(packet);
        };
        let ending = Ending {
            context: posted.context,
            report_success: posted.report_success,
            flags: receive_flags(tagged, rtm.cq_data),
            tag,
            cq_data: rtm.cq_data,
            request: None,
        };
        let capacity = posted.capacity;
        let target = posted.target.clone();
        let length = rtm.length(incoming.payload);
        let mut transfer = Transfer::new(peer, length, target, capacity, ending);
        transfer.msg_id = rtm.msg_id;
        transfer.assembled = rtm.is_segment();
        if let Some(slot) = self.inbound.get_mut(id) {
            *slot = Inbound::Active(transfer);
        }
        if rtm.is_segment() {
            self.assemblies.set(peer, rtm.msg_id, Assembly::Receive(id));
        }
        self.message_packet(
            id,
            peer,
            &packet,
            rtm,
            incoming.payload,
            incoming.packet_type,
        );
        self.release(packet);
    }

    fn keep_unexpected(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        incoming: &Incoming,
        rtm: &Rtm,
    ) {
        self.statistics.unexpected_messages += 1;
        match self.held.hold(&self.nic, packet, None) {
            Ok((head, freed)) => {
                if let Some(buffer) = freed {
                    self.recycle(buffer);
                }
                let tagged = rtm.tag.is_some();
                let message = UnexpectedMessage {
                    msg_id: rtm.msg_id,
                    length: rtm.length(incoming.payload),
                    cq_data: rtm.cq_data,
                    segmented: rtm.is_segment(),
                    head,
                };
                let key = self
                    .matcher(tagged)
                    .add_unexpected(peer, rtm.tag.unwrap_or(0), message);
                if rtm.is_segment() {
                    self.assemblies
                        .set(peer, rtm.msg_id, Assembly::Unexpected { tagged, key });
                }
            }
            Err(packet) => {
                self.release(packet);
                self.give_up_peer(peer, incoming.packet_type);
            }
        }
    }

    /// Takes one packet of a message for its receive. A packet that contradicts the message ends the
    /// receive with an error: the data that it was to bring will not come.
    fn message_packet(
        &mut self,
        id: ReceiveId,
        peer: PeerId,
        packet: &ReceivedPacket,
        rtm: &Rtm,
        payload: Payload,
        packet_type: PacketType,
    ) {
        let taken = match rtm.protocol {
            RtmProtocol::Eager { receipt } => {
                self.note_receipt(id, receipt);
                self.take_data(id, packet, payload, 0)
            }
            RtmProtocol::Medium {
                msg_length,
                seg_offset,
                receipt,
            } => {
                self.note_receipt(id, receipt);
                self.same_length(id, msg_length) && self.take_data(id, packet, payload, seg_offset)
            }
            RtmProtocol::LongCts {
                send_id,
                delivery_complete,
                ..
            } => {
                self.note_receipt(id, delivery_complete.then_some(send_id));
                if let Some(transfer) = self.transfer_mut(id) {
                    transfer.send_id = send_id;
                    transfer.supply = Supply::Windows { granted: 0 };
                }
                self.take_data(id, packet, payload, 0)
            }
            RtmProtocol::LongRead {
                send_id, read_iov, ..
            } => self.start_message_read(id, send_id, read_iov, 0),
            RtmProtocol::RuntRead {
                msg_length,
                send_id,
                seg_offset,
                runt_length,
                read_iov,
            } => {
                self.same_length(id, msg_length)
                    && self.start_message_read(id, send_id, read_iov, runt_length)
                    && self.take_data(id, packet, payload, seg_offset)
            }
        };
        if taken {
            self.go_on_with(id);
        } else {
            self.refuse(Some(peer), packet_type.code(), PacketError::SizeMismatch);
            self.fail_inbound(id, SIZE_MISMATCH);
        }
    }

    /// Starts to read a message's data, with the first packet that says where it is. Returns false
    /// if the sizes contradict each other.
    fn start_message_read(
        &mut self,
        id: ReceiveId,
        send_id: SendId,
        read_iov: Iovs,
        in_packets: u64,
    ) -> bool {
        let Some(transfer) = self.transfer_mut(id) else {
            return false;
        };
        let started = transfer.plan.is_some()
            || matches!(transfer.supply, Supply::Refused { .. } | Supply::Nacked)
            || transfer.failure.is_some();
        if started || in_packets == transfer.length {
            return true;
        }
        if in_packets > transfer.length || read_iov.total_length() != Some(transfer.length) {
            return false;
        }
        transfer.send_id = send_id;
        self.start_reads(id, read_iov, in_packets);
        true
    }

    fn same_length(&mut self, id: ReceiveId, length: u64) -> bool {
        self.transfer_mut(id)
            .is_some_and(|transfer| transfer.length == length)
    }

    fn note_receipt(&mut self, id: ReceiveId, receipt: Option<SendId>) {
        if let Some(send_id) = receipt
            && let Some(transfer) = self.transfer_mut(id)
        {
            transfer.send_id = send_id;
            transfer.wants_receipt = true;
        }
    }
}

/// The flags of a receive's completion.
pub(super) fn receive_flags(tagged: bool, cq_data: Option<u64>) -> CompletionFlags {
    let mut flags = message_flags(tagged, CompletionFlags::RECV);
    flags.set(CompletionFlags::REMOTE_CQ_DATA, cq_data.is_some());
    flags
}
