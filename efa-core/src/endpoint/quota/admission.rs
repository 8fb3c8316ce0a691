//! Which operations of peers are carried out now, and which wait.
//!
//! Peers start operations here: emulated writes and reads, and messages for multi-receive buffers. If
//! each took what it wants, a few busy peers would take all the room that there is for operations,
//! and those of other peers would find none. So a peer may have as many as are left over for others
//! (a dynamic threshold, as switches divide a buffer among their ports): whoever has little, or has
//! only just come, finds room. What does not may wait, as the peer waits for an answer anyway.

use std::collections::VecDeque;

use slab::Slab;

use crate::nic::Nic;
use crate::wire::{Header, Packet, PacketType};

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::Failure;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::posting::work::Work;
use crate::endpoint::receiving::assembly::Assembly;
use crate::endpoint::receiving::held::{HeldId, ReceivedPacket};
use crate::endpoint::receiving::transfer::Ending;
use crate::endpoint::subprotocols::message::UnexpectedMessage;

/// An operation of a peer that waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiting {
    /// A request to write or read.
    Request(HeldId),
    /// A message for a part of a multi-receive buffer.
    Part(PartKey),
}

/// Names a [`WaitingPart`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartKey(u32);

/// A message that has its place in a multi-receive buffer, and its packets so far.
struct WaitingPart {
    message: UnexpectedMessage,
    target: IoVec,
    ending: Ending,
}

/// What waits for room, of all peers together.
#[derive(Default)]
pub(crate) struct Admission {
    /// Operations of peers that are carried out.
    running: usize,
    waiting: usize,
    parts: Slab<WaitingPart>,
    /// Peers of which something waits, in turn.
    turns: VecDeque<PeerId>,
    /// In the queue of work.
    queued: bool,
}

impl Admission {
    /// Operations that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The packets so far of a message that waits.
    pub(crate) fn part_head(&mut self, PartKey(key): PartKey) -> Option<&mut HeldId> {
        let part = self.parts.get_mut(key as usize)?;
        Some(&mut part.message.head)
    }
}

impl<N: Nic> Endpoint<N> {
    /// Whether another operation of a peer may be carried out now.
    fn has_room_for(&self, peer: PeerId) -> bool {
        let own = self.peers.state(peer).map_or(0, |state| state.operations);
        self.admission.running + own < self.config.remote_operations
    }

    /// Whether an operation of a peer that has just come may be carried out now.
    pub(crate) fn is_admitted(&self, peer: PeerId) -> bool {
        let waits = |peer| {
            let state = self.peers.state(peer);
            state.is_some_and(|state| !state.waiting.is_empty())
        };
        (self.admission.waiting == 0 || !waits(peer)) && self.has_room_for(peer)
    }

    /// Notes that an operation of a peer is carried out.
    pub(crate) fn begin_operation(&mut self, peer: PeerId) {
        self.admission.running += 1;
        if let Some(state) = self.peers.state_mut(peer) {
            state.operations += 1;
        }
    }

    /// Notes that an operation of a peer ended.
    pub(crate) fn end_operation(&mut self, peer: PeerId) {
        self.admission.running -= 1;
        if let Some(state) = self.peers.state_mut(peer) {
            state.operations -= 1;
        }
        if self.admission.waiting > 0 && !self.admission.queued {
            self.admission.queued = true;
            self.queue_work(Work::Admission);
        }
    }

    /// Takes a request to write or read: carries it out, or makes it wait.
    pub(crate) fn on_request(&mut self, peer: PeerId, packet: ReceivedPacket, incoming: &Packet) {
        let at_once = matches!(incoming.header, Header::EagerRtw(_));
        if at_once || self.is_admitted(peer) {
            self.carry_out_request(peer, &packet, incoming);
            return self.release(packet);
        }
        let packet_type = incoming.base.packet_type;
        if self.begin_service(peer, packet_type) {
            match self.make_wait(peer, packet, packet_type) {
                Some(head) => self.enqueue(peer, Waiting::Request(head)),
                None => self.end_service(peer),
            }
        } else {
            self.release(packet);
        }
    }

    fn carry_out_request(&mut self, peer: PeerId, packet: &ReceivedPacket, incoming: &Packet) {
        match &incoming.header {
            Header::Rtr(rtr) => self.on_read(peer, rtr, incoming.base.packet_type),
            _ => self.on_write(peer, packet, incoming),
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
        let (msg_id, segmented) = (message.msg_id, message.segmented);
        let part = WaitingPart {
            message,
            target,
            ending,
        };
        let key = PartKey(self.admission.parts.insert(part) as u32);
        if segmented {
            self.assemblies.set(peer, msg_id, Assembly::Waiting(key));
        }
        self.enqueue(peer, Waiting::Part(key));
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
        let held = match self.held.has_memory_for(&packet) {
            true => self.hold(peer, packet, None),
            false => Err(packet),
        };
        held.inspect_err(|_| self.give_up_peer(peer, packet_type))
            .map_err(|packet| self.release(packet))
            .ok()
    }

    /// Puts an operation behind the others of its peer.
    fn enqueue(&mut self, peer: PeerId, waiting: Waiting) {
        if let Some(state) = self.peers.state_mut(peer) {
            if state.waiting.is_empty() {
                self.admission.turns.push_back(peer);
            }
            state.waiting.push_back(waiting);
            self.admission.waiting += 1;
        }
    }

    /// Carries out what waited and has room now, one operation of each peer in turn.
    pub(crate) fn admit_waiting(&mut self) {
        self.admission.queued = false;
        let mut refused = 0;
        while refused < self.admission.turns.len()
            && let Some(peer) = self.admission.turns.pop_front()
        {
            if !self.has_room_for(peer) {
                self.admission.turns.push_back(peer);
                refused += 1;
                continue;
            }
            refused = 0;
            let Some(state) = self.peers.state_mut(peer) else {
                continue;
            };
            let Some(next) = state.waiting.pop_front() else {
                continue;
            };
            if !state.waiting.is_empty() {
                self.admission.turns.push_back(peer);
            }
            self.admission.waiting -= 1;
            self.admit(peer, next);
        }
    }

    fn admit(&mut self, peer: PeerId, waiting: Waiting) {
        match waiting {
            Waiting::Request(head) => {
                self.end_service(peer);
                let Some((packet, _)) = self.take_held(peer, head) else {
                    return;
                };
                if let Some(incoming) = self.parse_again(&packet) {
                    self.carry_out_request(peer, &packet, &incoming);
                }
                self.release(packet);
            }
            Waiting::Part(PartKey(key)) => {
                let WaitingPart {
                    message,
                    target,
                    ending,
                } = self.admission.parts.remove(key as usize);
                self.receive_part(peer, &message, target, ending);
            }
        }
    }

    /// Ends what waits of a peer.
    pub(crate) fn end_waiting(&mut self, peer: PeerId, failure: Failure) {
        let Some(state) = self.peers.state_mut(peer) else {
            return;
        };
        let waiting = core::mem::take(&mut state.waiting);
        if waiting.is_empty() {
            return;
        }
        self.admission.turns.retain(|other| *other != peer);
        for waiting in waiting {
            self.admission.waiting -= 1;
            match waiting {
                Waiting::Request(head) => {
                    self.end_service(peer);
                    self.drop_held(peer, head);
                }
                Waiting::Part(PartKey(key)) => {
                    let part = self.admission.parts.remove(key as usize);
                    self.drop_unexpected(peer, &part.message);
                    let (length, capacity) = (part.message.length, part.target.memory.length);
                    self.end_inbound(&part.ending, peer, length, capacity as u64, Some(failure));
                }
            }
        }
    }

    /// Receives a message into its part of a multi-receive buffer.
    pub(crate) fn receive_part(
        &mut self,
        peer: PeerId,
        message: &UnexpectedMessage,
        target: IoVec,
        ending: Ending,
    ) {
        self.begin_operation(peer);
        let capacity = target.memory.length as u64;
        // What peers start always has room in the table.
        let received = self.receive_kept(peer, message, Iov::One(target), capacity, ending);
        debug_assert!(received.is_ok());
    }
}
