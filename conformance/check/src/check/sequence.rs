//! Message ids of one endpoint towards another, and messages in several requests.

use std::collections::{BTreeMap, BTreeSet};

use efa_wire::{PacketType, SendId};
use foldhash::HashMap;

use super::operation::OpId;
use super::runs::ByteRanges;

/// A message this far ahead of the first missing one does not wait for it: memory is bounded.
const MOST_AHEAD: usize = 1 << 16;
/// The number of messages in several packets that are kept once one packet has arrived.
const MOST_ARRIVING: usize = 1024;
/// The number of messages after a gap that prove that it never closes.
pub(super) const PROOF: usize = 4;

/// Values that all packets of a message share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) packet_type: PacketType,
    /// Length of the message.
    pub(super) length: u64,
    /// The number of its bytes in packets of this type.
    pub(super) in_requests: u64,
    pub(super) tag: Option<u64>,
    pub(super) send_id: Option<SendId>,
}

/// An incomplete message of several packets.
#[derive(Debug)]
pub(super) struct PartialMessage {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) shape: Shape,
    pub(super) cq_data: Option<u64>,
    pub(super) runs: ByteRanges,
    /// The operation of the message, which counts its bytes.
    pub(super) operation: Option<OpId>,
    /// The number of messages that had begun at its last packet.
    pub(super) begun: u64,
    /// Whether its sender has aborted it: missing packets are no longer due.
    pub(super) is_given_up: bool,
}

/// The relation of a packet's id to earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IdState {
    /// The id is new.
    New,
    /// The id belonged to a message that never arrived, because the device failed to send it.
    Again,
    /// The sender aborted the message, and the abort preceded its first packet.
    GivenUp,
    /// The id was used before.
    Used,
}

/// Ids that were skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IdGap {
    /// The first and the last missing id.
    pub(super) missing: (u32, u32),
    /// The packet of the next message, and its type.
    pub(super) packet: u64,
    pub(super) packet_type: PacketType,
    /// Whether the conversation's first message is missing.
    pub(super) is_first: bool,
    /// Whether enough messages follow to prove that the gap is not caused by reordering.
    pub(super) is_proven: bool,
}

/// The messages of one endpoint to another.
///
/// Ids are counted on through wraps, from `LAP` on, so that there is room for ids before the first
/// one in the capture.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// The first id, and the next one: all ids in between have begun.
    expected: Option<(u64, u64)>,
    from_start: bool,
    ahead: BTreeMap<u64, (u64, PacketType)>,
    /// Ids from before the first one.
    before: BTreeSet<u64>,
    /// Messages of several packets that are not whole yet, by msg_id.
    pub(super) parts: HashMap<u32, PartialMessage>,
    /// The number of messages that have begun.
    pub(super) begun: u64,
    /// Ids of messages with a packet that the device failed to send, and without any that arrived.
    lost: BTreeSet<u32>,
    /// Ids of messages in several packets, one of which has arrived.
    arriving: BTreeSet<u32>,
    /// Ids of messages that were aborted before their first packet was captured.
    given_up: BTreeSet<u32>,
}

const LAP: u64 = 1 << 32;

impl Sequence {
    /// Begins a message. Returns the relation of its id to earlier ones, and a gap that is proven
    /// never to close.
    pub(super) fn begin(
        &mut self,
        msg_id: u32,
        packet: u64,
        packet_type: PacketType,
        from_start: bool,
    ) -> (IdState, Option<IdGap>) {
        let (is_new, gap) = self.place(msg_id, packet, packet_type, from_start);
        let is_lost = self.lost.remove(&msg_id);
        let id = match (is_new, is_lost) {
            (true, _) => IdState::New,
            _ if self.given_up.remove(&msg_id) => IdState::GivenUp,
            (false, true) => IdState::Again,
            (false, false) => IdState::Used,
        };
        (id, gap)
    }

    /// Aborts a message, which then delays no others. The network may still deliver packets of it:
    /// the first of them begins the message if no packet preceded it. Returns a gap that is proven
    /// never to close.
    pub(super) fn abort(
        &mut self,
        msg_id: u32,
        packet: u64,
        packet_type: PacketType,
        from_start: bool,
    ) -> Option<IdGap> {
        let (id, gap) = self.begin(msg_id, packet, packet_type, from_start);
        if matches!(id, IdState::New | IdState::GivenUp) {
            self.given_up.insert(msg_id);
            if self.given_up.len() > MOST_ARRIVING {
                self.given_up.pop_first();
            }
        }
        if let Some(part) = self.parts.get_mut(&msg_id) {
            part.is_given_up = true;
        }
        gap
    }

    /// Whether a packet of a message has been captured.
    pub(super) fn knows(&self, msg_id: u32) -> bool {
        let Some((origin, expected)) = self.expected else {
            return false;
        };
        let id = nearest(msg_id, expected);
        let is_placed = match id < expected {
            true => id >= origin || self.before.contains(&id),
            false => self.ahead.contains_key(&id),
        };
        is_placed && !self.given_up.contains(&msg_id)
    }

    /// Records that the device failed to send a packet of a message, which may then be aborted or
    /// sent again.
    pub(super) fn lost(&mut self, msg_id: u32) {
        if self.lost.len() < MOST_AHEAD && !self.arriving.contains(&msg_id) {
            self.lost.insert(msg_id);
        }
    }

    /// Records that a packet of a message has arrived; `is_piece` if the message has several.
    pub(super) fn arrived(&mut self, msg_id: u32, is_piece: bool) {
        self.lost.remove(&msg_id);
        if is_piece {
            self.arriving.insert(msg_id);
            if self.arriving.len() > MOST_ARRIVING {
                self.arriving.pop_first();
            }
        }
    }

    /// Forgets a message in several packets, if none of them has arrived and the device failed to
    /// send one: its id may then be reused.
    pub(super) fn give_up(&mut self, msg_id: u32) -> bool {
        let is_lost = self.lost.contains(&msg_id);
        if is_lost {
            self.parts.remove(&msg_id);
        }
        is_lost
    }

    /// Returns whether an id is new, and a gap that is proven never to close.
    fn place(
        &mut self,
        msg_id: u32,
        packet: u64,
        packet_type: PacketType,
        from_start: bool,
    ) -> (bool, Option<IdGap>) {
        self.begun += 1;
        let (origin, expected) = *self.expected.get_or_insert_with(|| {
            self.from_start = from_start;
            let first = LAP + if from_start { 0 } else { u64::from(msg_id) };
            (first, first)
        });
        let id = nearest(msg_id, expected);
        if id < expected {
            let is_new = id < origin && self.before.insert(id);
            if self.before.len() > MOST_AHEAD {
                self.before.pop_first();
            }
            return (is_new, None);
        }
        if id == expected {
            self.expected = Some((origin, id + 1));
            self.close();
            return (true, None);
        }
        if self.ahead.contains_key(&id) {
            return (false, None);
        }
        self.ahead.insert(id, (packet, packet_type));
        let is_given_up = self.ahead.len() > MOST_AHEAD;
        (true, if is_given_up { self.skip() } else { None })
    }

    /// Advances over consecutive ids.
    fn close(&mut self) {
        while let Some((_, expected)) = &mut self.expected
            && self.ahead.remove(expected).is_some()
        {
            *expected += 1;
        }
    }

    /// Skips the first gap.
    fn skip(&mut self) -> Option<IdGap> {
        let (origin, expected) = self.expected?;
        let (&next, &(packet, packet_type)) = self.ahead.first_key_value()?;
        let gap = IdGap {
            missing: (expected as u32, (next - 1) as u32),
            packet,
            packet_type,
            is_first: self.from_start && expected == origin,
            is_proven: self.ahead.len() >= PROOF,
        };
        self.expected = Some((origin, next));
        self.close();
        Some(gap)
    }

    /// The gaps at the end of the capture.
    pub(super) fn gaps(&mut self) -> Vec<IdGap> {
        std::iter::from_fn(|| self.skip()).collect()
    }

    /// The messages that are incomplete at the end of the capture, and whether that is proven.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = (&PartialMessage, bool)> {
        self.parts
            .values()
            .filter(|part| !part.is_given_up)
            .map(|part| (part, self.begun - part.begun >= PROOF as u64))
    }
}

/// Of all ids that a msg_id may represent, the id nearest to the next one.
fn nearest(msg_id: u32, expected: u64) -> u64 {
    let distance = msg_id.wrapping_sub(expected as u32) as i32;
    expected.wrapping_add_signed(distance.into())
}
