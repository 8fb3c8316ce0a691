//! Messages and atomics take their turn: each is processed when all earlier ones of its sender have
//! been, whatever order they arrive in. Where the application does not need that
//! ([`EndpointConfig::ordered`](crate::endpoint::EndpointConfig::ordered)), messages are processed as they
//! arrive, and only atomics wait.

use crate::nic::Nic;
use crate::wire::{Header, MsgId, Packet};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::PacketError;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::receiving::assembly::Assembly;
use crate::endpoint::receiving::held::{HeldId, ReceivedPacket};
use crate::endpoint::receiving::reorder::Position;
use crate::endpoint::subprotocols::message::Rtm;

impl<N: Nic> Endpoint<N> {
    /// Processes a message or atomic when its turn has come, and then those that waited for it.
    #[inline(always)]
    pub(crate) fn in_turn(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        packet: ReceivedPacket,
        incoming: &Packet,
    ) {
        let Some(state) = self.peers.state_mut(peer) else {
            return self.release(packet);
        };
        match state.window.position(msg_id, self.config.reorder_window) {
            Position::Expected => {
                state.window.advance();
                let chains = state.window.take_expected();
                self.first_packet(peer, packet, incoming);
                if chains != [None; 2] {
                    self.process_held(peer, chains);
                }
            }
            position => self.out_of_turn(peer, msg_id, position, packet, incoming),
        }
    }

    #[inline(never)]
    fn out_of_turn(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        position: Position,
        packet: ReceivedPacket,
        incoming: &Packet,
    ) {
        let Some(state) = self.peers.state_mut(peer) else {
            return self.release(packet);
        };
        match position {
            Position::Early if !self.config.ordered && Rtm::of(incoming).is_some() => {
                match state.window.pass(msg_id) {
                    true => self.first_packet(peer, packet, incoming),
                    false => self.later_packet(peer, packet, incoming),
                }
            }
            Position::Early => self.hold_early(peer, msg_id, packet, incoming),
            Position::Expected | Position::Past => self.later_packet(peer, packet, incoming),
            Position::Beyond => {
                let expected = state.window.expected().0;
                let packet_type = incoming.base.packet_type;
                let reason = PacketError::BeyondWindow {
                    msg_id: msg_id.0,
                    expected,
                };
                self.release(packet);
                self.reports.refuse(Some(peer), packet_type.code(), reason);
                self.give_up_peer(peer, packet_type);
            }
        }
    }

    /// Processes what waited for its turn: the chains of the id that is expected now, and of those
    /// behind it as long as there are any.
    fn process_held(&mut self, peer: PeerId, mut chains: [Option<HeldId>; 2]) {
        while chains != [None; 2] {
            let mut is_first = true;
            for chain in chains {
                let mut next = chain;
                while let Some((packet, behind)) = next.and_then(|held| self.take_held(peer, held))
                {
                    next = behind;
                    // An earlier one may have been the end of the conversation.
                    let incoming = match self.is_given_up(peer) {
                        true => None,
                        false => self.parse_again(&packet),
                    };
                    match incoming {
                        None => self.release(packet),
                        Some(incoming) if is_first => self.first_packet(peer, packet, &incoming),
                        Some(incoming) => self.later_packet(peer, packet, &incoming),
                    }
                    is_first = false;
                }
            }
            let Some(state) = self.peers.state_mut(peer) else {
                return;
            };
            state.window.advance();
            chains = state.window.take_expected();
        }
    }

    fn hold_early(
        &mut self,
        peer: PeerId,
        msg_id: MsgId,
        packet: ReceivedPacket,
        incoming: &Packet,
    ) {
        self.reports.statistics.out_of_order += 1;
        match self.hold(peer, packet, None) {
            Ok(id) => {
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
                self.give_up_peer(peer, incoming.base.packet_type);
            }
        }
    }

    /// The first packet of a message or atomic whose turn has come.
    #[inline]
    fn first_packet(&mut self, peer: PeerId, packet: ReceivedPacket, incoming: &Packet) {
        match (Rtm::of(incoming), &incoming.header) {
            (Some(rtm), _) => self.match_message(peer, packet, incoming, &rtm),
            (None, Header::Rta(rta)) => self.on_atomic(peer, packet, incoming, rta),
            (None, _) => self.release(packet),
        }
    }

    /// A packet whose `msg_id` was processed before: a segment, or a mistake.
    fn later_packet(&mut self, peer: PeerId, packet: ReceivedPacket, incoming: &Packet) {
        let (is_segment, msg_id) = match (Rtm::of(incoming), &incoming.header) {
            (Some(rtm), _) => (rtm.is_segment(), rtm.msg_id),
            (None, Header::Rta(rta)) => (false, rta.msg_id),
            (None, _) => return self.release(packet),
        };
        let assembly = match is_segment {
            true => self.assemblies.get(peer, msg_id),
            false => None,
        };
        match assembly {
            Some(Assembly::Receive(id)) => {
                self.message_packet(id, peer, &packet, incoming);
                self.release(packet);
            }
            Some(assembly) => self.keep_segment(peer, assembly, packet, incoming),
            None => {
                self.reports.refuse(
                    Some(peer),
                    incoming.base.packet_type.code(),
                    PacketError::AlreadyProcessed { msg_id: msg_id.0 },
                );
                self.release(packet);
            }
        }
    }

    /// Puts a segment to the others of a message that no receive has taken.
    fn keep_segment(
        &mut self,
        peer: PeerId,
        assembly: Assembly,
        packet: ReceivedPacket,
        incoming: &Packet,
    ) {
        let head = match assembly {
            Assembly::Unexpected { tagged, key } => self.matcher(tagged).unexpected_mut(key).2.head,
            Assembly::Claimed(id) => match self.claims.get(id) {
                Some(claim) => claim.message.head,
                None => return self.release(packet),
            },
            Assembly::Waiting(key) => match self.postponed_parts.head(key) {
                Some(head) => *head,
                None => return self.release(packet),
            },
            Assembly::Receive(_) => return self.release(packet),
        };
        let id = match self.hold(peer, packet, Some(head)) {
            Ok(id) => id,
            Err(packet) => {
                self.release(packet);
                return self.give_up_peer(peer, incoming.base.packet_type);
            }
        };
        match assembly {
            Assembly::Unexpected { tagged, key } => {
                self.matcher(tagged).unexpected_mut(key).2.head = id;
            }
            Assembly::Claimed(claim) => {
                if let Some(claim) = self.claims.get_mut(claim) {
                    claim.message.head = id;
                }
            }
            Assembly::Waiting(key) => {
                if let Some(head) = self.postponed_parts.head(key) {
                    *head = id;
                }
            }
            Assembly::Receive(_) => {}
        }
    }

    /// Parses a packet that was parsed before it had to wait.
    pub(crate) fn parse_again(&self, packet: &ReceivedPacket) -> Option<Packet> {
        Packet::parse(packet.bytes(self.posting.nic())).ok()
    }
}
