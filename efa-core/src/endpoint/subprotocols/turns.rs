//! Messages and atomics in turn: each is processed when all earlier ones of its sender have been
//! processed, independent of the order in which they arrive. If the application does not need that
//! ([`EndpointConfig::ordered`](crate::endpoint::EndpointConfig::ordered)), messages are processed
//! as they arrive, and only atomics wait.

use crate::nic::Nic;

use crate::endpoint::api::completion::PacketError;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::channel::Channel;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::one_sided::OneSided;
use crate::endpoint::posting::DeferredPacketId;
use crate::endpoint::receiving::{Position, Receiving, Segment};
use crate::endpoint::subprotocols::ReceiveSide;
use crate::endpoint::subprotocols::atomics::AtomicTarget;
use crate::endpoint::subprotocols::incoming_message::Sequenced;

/// State that messages and atomics need to take their turn.
pub(crate) struct OrderedDelivery<'a, N> {
    pub(crate) channel: &'a mut Channel<N>,
    pub(crate) receiving: &'a mut Receiving,
    pub(crate) one_sided: &'a mut OneSided,
}

impl<N: Nic> OrderedDelivery<'_, N> {
    #[inline(always)]
    pub(super) fn receive_side(&mut self) -> ReceiveSide<'_, N> {
        ReceiveSide {
            channel: self.channel,
            receiving: self.receiving,
            exposed: &self.one_sided.exposed,
        }
    }

    /// Processes a message or atomic when its turn has come, and then those that waited for it.
    pub(crate) fn in_turn(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        request: &Sequenced<'_>,
    ) {
        let Some(state) = self.channel.peers.existing_state_mut(peer) else {
            return self.channel.posting.release(packet);
        };
        let msg_id = request.msg_id();
        match state
            .window
            .position(msg_id, self.channel.config.reorder_window)
        {
            Position::Expected => {
                state.window.advance();
                let chains = state.window.take_expected();
                self.first_packet(peer, packet, request);
                if chains != [None; 2] {
                    self.process_deferred(peer, chains);
                }
            }
            position => self.out_of_turn(peer, position, packet, request),
        }
    }

    fn out_of_turn(
        &mut self,
        peer: PeerId,
        position: Position,
        packet: ReceivedPacket,
        request: &Sequenced<'_>,
    ) {
        let msg_id = request.msg_id();
        let Some(state) = self.channel.peers.state_mut(peer) else {
            return self.channel.posting.release(packet);
        };
        match position {
            Position::Early
                if !self.channel.config.ordered && matches!(request, Sequenced::Message(_)) =>
            {
                match state.window.pass(msg_id) {
                    true => self.first_packet(peer, packet, request),
                    false => self.later_packet(peer, packet, request),
                }
            }
            // The sender has abandoned it.
            Position::Early if state.window.has_passed(msg_id) => {
                self.later_packet(peer, packet, request);
            }
            Position::Early => self.hold_early(peer, packet, request),
            Position::Expected | Position::Past => self.later_packet(peer, packet, request),
            Position::Beyond => {
                let expected = state.window.expected().0;
                let packet_type = request.packet_type();
                let reason = PacketError::BeyondWindow {
                    msg_id: msg_id.0,
                    expected,
                };
                self.channel.posting.release(packet);
                self.channel
                    .reports
                    .refuse(Some(peer), packet_type.code(), reason);
                self.channel.give_up(peer, packet_type);
            }
        }
    }

    /// Processes packets that waited for their turn: the chains of the expected id, and of the ids
    /// that follow it without a gap.
    pub(super) fn process_deferred(
        &mut self,
        peer: PeerId,
        mut chains: [Option<DeferredPacketId>; 2],
    ) {
        while chains != [None; 2] {
            let mut is_first = true;
            for chain in chains {
                let mut next = chain;
                while let Some((packet, behind)) =
                    next.and_then(|deferred| self.channel.take_deferred(peer, deferred))
                {
                    next = behind;
                    // The peer may have been given up because of an earlier packet.
                    let incoming = match self.channel.peers.is_given_up(peer) {
                        true => None,
                        false => self.channel.posting.parse_again(&packet),
                    };
                    match incoming.as_ref().and_then(Sequenced::of) {
                        None => self.channel.posting.release(packet),
                        Some(request) if is_first => self.first_packet(peer, packet, &request),
                        Some(request) => self.later_packet(peer, packet, &request),
                    }
                    is_first = false;
                }
            }
            let Some(state) = self.channel.peers.state_mut(peer) else {
                return;
            };
            state.window.advance();
            chains = state.window.take_expected();
        }
    }

    fn hold_early(&mut self, peer: PeerId, packet: ReceivedPacket, request: &Sequenced<'_>) {
        self.channel.reports.statistics.out_of_order += 1;
        match self.channel.defer(peer, packet, None) {
            Ok(id) => {
                let Channel { peers, posting, .. } = &mut *self.channel;
                if let Some(state) = peers.state_mut(peer) {
                    state.window.defer(request.msg_id(), |next| {
                        posting.link_deferred(id, next);
                        id
                    });
                }
            }
            Err(packet) => {
                self.channel.posting.release(packet);
                self.channel.give_up(peer, request.packet_type());
            }
        }
    }

    /// The first packet of a message or atomic whose turn has come.
    fn first_packet(&mut self, peer: PeerId, packet: ReceivedPacket, request: &Sequenced<'_>) {
        match request {
            Sequenced::Message(rtm) => {
                self.receive_side()
                    .match_message(peer, packet, rtm.tag, || *rtm);
            }
            Sequenced::Atomic(rta, incoming) => {
                let mut target = AtomicTarget {
                    channel: self.channel,
                    one_sided: self.one_sided,
                };
                target.on_atomic(peer, &packet, incoming, rta);
                self.channel.posting.release(packet);
            }
        }
    }

    /// Handles a packet whose `msg_id` was processed before: a further segment of a message, or an
    /// error.
    fn later_packet(&mut self, peer: PeerId, packet: ReceivedPacket, request: &Sequenced<'_>) {
        let msg_id = request.msg_id();
        let rtm = match request {
            Sequenced::Message(rtm) if rtm.is_segment() => Some(rtm),
            _ => None,
        };
        let segment = match rtm {
            Some(_) => self.receiving.unexpected.segment(peer, msg_id),
            None => Segment::Unknown,
        };
        match segment {
            Segment::Transfer(id) => {
                if let Some(rtm) = rtm {
                    self.receive_side().message_packet(id, peer, &packet, rtm);
                }
                self.channel.posting.release(packet);
            }
            Segment::Deferred(head) => self.join_deferred(peer, packet, request, head),
            Segment::Unknown => {
                self.channel.reports.refuse(
                    Some(peer),
                    request.packet_type().code(),
                    PacketError::AlreadyProcessed { msg_id: msg_id.0 },
                );
                self.channel.posting.release(packet);
            }
        }
    }

    /// Handles a further segment of a message that no receive has matched. Unless it is a
    /// duplicate, it is added to the waiting packets, whose last one is `head`.
    #[inline(never)]
    fn join_deferred(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        request: &Sequenced<'_>,
        head: DeferredPacketId,
    ) {
        let Sequenced::Message(rtm) = request else {
            return self.channel.posting.release(packet);
        };
        let unexpected = &mut self.receiving.unexpected;
        let (msg_id, offset) = (rtm.msg_id, rtm.offset());
        if !unexpected.admits_segment(peer, msg_id, offset, rtm.payload.length as u64) {
            let reason = PacketError::RepeatedData { offset };
            let packet_type = request.packet_type().code();
            let reports = &mut self.channel.reports;
            reports.refuse(Some(peer), packet_type, reason);
            return self.channel.posting.release(packet);
        }
        match self.channel.defer(peer, packet, Some(head)) {
            Ok(id) => self.receiving.unexpected.add_segment(peer, msg_id, id),
            Err(packet) => {
                self.channel.posting.release(packet);
                self.channel.give_up(peer, request.packet_type());
            }
        }
    }
}
