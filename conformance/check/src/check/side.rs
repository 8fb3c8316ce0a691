//! The state of one end of a conversation.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use efa_wire::{ExtraFeatures, PacketType};
use foldhash::HashMap;

use super::device::Requests;
use super::frame::FrameContext;
use super::node::{Node, NodeId};
use super::operation::{OpId, Operation, OperationNames};
use super::sequence::Sequence;

/// The number of messages with refused packets that are kept.
const MOST_REFUSED: usize = 1024;
/// The number of connection ids of former endpoints that are kept.
const MOST_FORMER: usize = 64;

/// State of one end of a conversation.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) node: Node,
    pub(super) id: NodeId,
    /// The connection id, and the packet that stated it.
    pub(super) connid: Option<(u32, u64)>,
    /// The last Q-key that packets were sent to.
    pub(super) addressed: Option<u32>,
    /// The known connection id, and the first and the last frame with it.
    pub(super) confirmed: Option<(u32, RangeInclusive<u64>)>,
    /// The run of requests of its last packet.
    pub(super) run: Option<u64>,
    /// The run of requests of the last packet that stated its connection id.
    pub(super) named_run: Option<u64>,
    /// The connection ids of earlier owners of the queue pair.
    pub(super) former: Vec<u32>,
    /// The packet number of its HANDSHAKE.
    pub(super) handshake: Option<u64>,
    pub(super) features: ExtraFeatures,
    /// The number of its first packet.
    pub(super) first: Option<u64>,
    /// The number of its first request without a raw address.
    pub(super) without_address: Option<u64>,
    /// The first answer that it sent.
    pub(super) answered: Option<(u64, PacketType)>,
    /// Its first packet, other than a HANDSHAKE, after the first packet from the peer.
    pub(super) went_on: Option<(u64, PacketType)>,
    pub(super) sequence: Sequence,
    /// Operations by the ids that it assigned.
    pub(super) send_ids: OperationNames,
    pub(super) recv_ids: OperationNames,
    pub(super) fetch_ids: OperationNames,
    /// Messages whose receiver may refuse to read them, by msg_id.
    pub(super) readable: HashMap<u32, OpId>,
    /// Operations whose memory the peer will read, in their order.
    pub(super) long_reads: Vec<OpId>,
    pub(super) requests: Requests,
    /// The number of its requests that were refused.
    pub(super) refusals: u64,
    /// Its messages with packets that were refused and not sent again yet, by msg_id.
    pub(super) refused: BTreeMap<u32, RefusedMessage>,
    /// Packets of extra features that it sent before the peer's HANDSHAKE.
    pub(super) early: Vec<(FrameContext, PacketType)>,
    /// The number of earlier owners of the queue pair number, as far as sequence numbers show.
    pub(super) generation: u32,
    /// The least progress of the endpoint that its answers prove.
    pub(super) come_to: Progress,
    /// The times at which the windows that the endpoint has filled were opened.
    pub(super) filled: VecDeque<u64>,
    /// Frames that it sent.
    pub(super) frames: u64,
    /// The last of them, and the last frame of the previous endpoint.
    pub(super) last_frame: u64,
    pub(super) former_frame: u64,
    /// The time of its queue pair's first request, if the capture has it.
    pub(super) born: Option<u64>,
}

/// A message with packets that the receiver refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedMessage {
    /// The number of packets that were not sent again yet.
    pub(super) packets: u64,
    /// The number and type of the first of them.
    pub(super) first: (u64, PacketType),
    /// The number of messages that had begun then.
    pub(super) begun: u64,
    /// The device has repeated one of these requests: the next repetition is an equal frame, which
    /// may be missing from the capture.
    pub(super) is_repeated: bool,
}

/// The ids that an endpoint assigns to operations.
pub(super) struct IdSpace {
    /// The packet field with an id.
    pub(super) field: &'static str,
    pub(super) of: fn(&mut Side) -> &mut OperationNames,
    /// Whether an id still refers to its operation, from the view of the endpoint that assigned it.
    pub(super) holds: fn(&Operation) -> bool,
}

pub(super) const SEND_IDS: IdSpace = IdSpace {
    field: "send_id",
    of: |side| &mut side.send_ids,
    holds: Operation::holds_send_id,
};
pub(super) const RECV_IDS: IdSpace = IdSpace {
    field: "recv_id",
    of: |side| &mut side.recv_ids,
    holds: Operation::holds_recv_id,
};
/// The `recv_id` of fetching atomics.
pub(super) const FETCH_IDS: IdSpace = IdSpace {
    field: "recv_id",
    of: |side| &mut side.fetch_ids,
    holds: Operation::holds_recv_id,
};

/// The least progress of an endpoint that its answers prove.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) arrival: Option<u64>,
    pub(super) matched: HashMap<Option<u64>, u32>,
    pub(super) atomic: Option<u32>,
    pub(super) keys: Vec<u64>,
    /// The times at which the packets that it answered last arrived.
    pub(super) recent: VecDeque<u64>,
}

impl Side {
    pub(super) fn new(node: Node, id: NodeId) -> Side {
        Side {
            node,
            id,
            connid: None,
            addressed: None,
            confirmed: None,
            run: None,
            named_run: None,
            former: Vec::new(),
            handshake: None,
            features: ExtraFeatures::empty(),
            first: None,
            without_address: None,
            answered: None,
            went_on: None,
            sequence: Sequence::default(),
            send_ids: OperationNames::default(),
            recv_ids: OperationNames::default(),
            fetch_ids: OperationNames::default(),
            readable: HashMap::default(),
            long_reads: Vec::new(),
            requests: Requests::default(),
            refusals: 0,
            refused: BTreeMap::new(),
            early: Vec::new(),
            generation: 0,
            come_to: Progress::default(),
            filled: VecDeque::new(),
            frames: 0,
            last_frame: 0,
            former_frame: 0,
            born: None,
        }
    }

    /// Resets the state for the next endpoint on this queue pair or on the peer's.
    pub(super) fn renew(&mut self, is_another: bool) {
        let mut fresh = Side::new(self.node, self.id);
        std::mem::swap(&mut fresh.requests, &mut self.requests);
        std::mem::swap(&mut fresh.former, &mut self.former);
        fresh.former_frame = match is_another {
            // The previous endpoint may have sent nothing.
            true => self.last_frame.max(self.former_frame),
            false => self.former_frame,
        };
        fresh.run = self.run;
        fresh.generation = self.generation;
        // The present frame may be the first of the next endpoint.
        let former_frame = fresh.former_frame;
        fresh.born = self.born.filter(|&at| at > former_frame);
        *self = fresh;
    }

    /// Its connection id as it states it or, before it does, as its peer states it.
    pub(super) fn known(&self) -> Option<u32> {
        self.connid.map(|(connid, _)| connid).or(self.addressed)
    }

    /// Records that the frame `at` stated the connection id, or was sent to it.
    pub(super) fn confirm(&mut self, connid: u32, at: u64) {
        if self.known() != Some(connid) {
            return;
        }
        let first = match &self.confirmed {
            Some((known, frames)) if *known == connid => *frames.start(),
            _ => at,
        };
        self.confirmed = Some((connid, first..=at));
    }

    /// Whether its connection id was known when that of `peer` was last confirmed.
    pub(super) fn is_known_with(&self, peer: &Side) -> bool {
        let frames = self.confirmed.as_ref().zip(peer.confirmed.as_ref());
        frames.is_some_and(|((_, own), (_, of_peer))| own.start() <= of_peer.end())
    }

    /// Whether a connection id belongs to a new endpoint.
    pub(super) fn is_another(&self, connid: u32) -> bool {
        self.known().is_some_and(|known| known != connid) && !self.is_former(connid)
    }

    /// Records that a packet of a message was refused, and has to be sent again.
    pub(super) fn left_behind(
        &mut self,
        msg_id: u32,
        number: u64,
        packet_type: PacketType,
        is_repeated: bool,
    ) {
        let begun = self.sequence.begun;
        let is_known = self.refused.contains_key(&msg_id);
        if !is_known && self.refused.len() >= MOST_REFUSED {
            return;
        }
        let refused = self.refused.entry(msg_id).or_insert(RefusedMessage {
            packets: 0,
            first: (number, packet_type),
            begun,
            is_repeated: false,
        });
        refused.packets += 1;
        refused.is_repeated |= is_repeated;
    }

    /// Records that a refused packet of a message was sent again.
    pub(super) fn sent_again(&mut self, msg_id: u32) {
        if let Some(refused) = self.refused.get_mut(&msg_id) {
            refused.packets -= 1;
            if refused.packets == 0 {
                self.refused.remove(&msg_id);
            }
        }
    }

    /// Records that a message will not be sent again.
    pub(super) fn take_back(&mut self, msg_id: u32) {
        self.refused.remove(&msg_id);
    }

    /// The messages that were not sent again, and the number of messages since then that were not
    /// refused.
    pub(super) fn abandoned(&self) -> Vec<(u32, RefusedMessage, u64)> {
        let behind = |refused: &RefusedMessage| {
            let later = self
                .refused
                .values()
                .filter(|other| other.begun > refused.begun);
            (self.sequence.begun - refused.begun).saturating_sub(later.count() as u64)
        };
        let abandoned = self.refused.iter();
        abandoned
            .map(|(msg_id, refused)| (*msg_id, *refused, behind(refused)))
            .filter(|(.., behind)| *behind > 0)
            .collect()
    }

    pub(super) fn is_former(&self, connid: u32) -> bool {
        self.former.contains(&connid)
    }

    pub(super) fn retire(&mut self) {
        if let Some((connid, _)) = self.connid {
            if self.former.len() >= MOST_FORMER {
                self.former.remove(0);
            }
            self.former.push(connid);
        }
    }
}
