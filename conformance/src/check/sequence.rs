//! Message ids, and messages that travel in several request packets.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use efa_core::wire::{Header, MsgId, PacketType, ReqFlags};

use super::{
    Findings, MESSAGE_WHOLE, MSG_ID_GAP, MSG_ID_ONCE, Node, Observed, SEGMENT_AGREEMENT,
    SEGMENT_BOUNDS, SEGMENT_OVERLAP,
};

/// Pieces of a message that have been sent.
#[derive(Default)]
pub(super) struct Pieces(BTreeSet<(u64, u64)>);

impl Pieces {
    /// Adds bytes `start..end`; `false` if any of them were there already.
    pub(super) fn add(&mut self, start: u64, end: u64) -> bool {
        if start == end {
            return true;
        }
        let before = self.0.range(..(end, 0)).next_back();
        if before.is_some_and(|&(_, other)| other > start) {
            return false;
        }
        self.0.insert((start, end));
        true
    }

    /// Bytes sent.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }
}

/// What all packets of a message have to agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    packet_type: PacketType,
    /// Length of the message.
    length: u64,
    /// How much of it travels in packets of this type.
    in_packets: u64,
    tag: Option<u64>,
    send_id: Option<u32>,
}

struct Message {
    first: u64,
    last: u64,
    shape: Shape,
    pieces: Pieces,
}

#[derive(Default)]
struct Sequence {
    messages: HashMap<u32, u64>,
    /// Message ids in the order of the capture: the first one, and the distance of each from it.
    origin: Option<MsgId>,
    distances: BTreeMap<i32, (u64, PacketType)>,
    /// Messages of several packets that are not whole yet.
    parts: HashMap<u32, Message>,
}

#[derive(Default)]
pub(super) struct Sequences(HashMap<(Node, Node), Sequence>);

impl Sequences {
    /// Whether the packet goes on with a message that an earlier one began.
    pub(super) fn sent(&mut self, observed: &Observed<'_>, findings: &mut Findings) -> bool {
        let packet_type = observed.packet.base.packet_type;
        let payload = observed.packet.payload.length as u64;
        // (message, offset of this packet's data, shape) of messages in several packets
        let (msg_id, part) = match &observed.packet.header {
            Header::EagerRtm(h) => (h.msg_id, None),
            Header::LongreadRtm(h) => (h.msg_id, None),
            Header::Rta(h) => (h.msg_id, None),
            Header::LongctsRtm(h) => {
                // The answer to READ_NACK repeats the msg_id on purpose.
                if h.options.flags.contains(ReqFlags::READ_NACK) {
                    return true;
                }
                (h.msg_id, None)
            }
            Header::MediumRtm(h) => (
                h.msg_id,
                Some((
                    h.seg_offset,
                    Shape {
                        packet_type,
                        length: h.msg_length,
                        in_packets: h.msg_length,
                        tag: h.tag,
                        send_id: h.receipt.map(|id| id.0),
                    },
                )),
            ),
            Header::RuntreadRtm(h) => (
                h.msg_id,
                Some((
                    h.seg_offset,
                    Shape {
                        packet_type,
                        length: h.msg_length,
                        in_packets: h.runt_length,
                        tag: h.tag,
                        send_id: Some(h.send_id.0),
                    },
                )),
            ),
            _ => return false,
        };
        let sequence = self.0.entry((observed.from, observed.to)).or_default();
        if let Some((offset, shape)) = part
            && let Some(message) = sequence.parts.get_mut(&msg_id.0)
        {
            message.last = observed.number;
            if message.shape != shape {
                let text = format!(
                    "message {} began in packet {} as {:?}, here it is {shape:?}",
                    msg_id.0, message.first, message.shape
                );
                findings.at(SEGMENT_AGREEMENT, observed, text);
            }
            add_piece(
                &mut message.pieces,
                &shape,
                offset,
                payload,
                observed,
                findings,
            );
            if message.pieces.total() >= message.shape.in_packets {
                sequence.parts.remove(&msg_id.0);
            }
            return true;
        }
        if let Some(&first) = sequence.messages.get(&msg_id.0) {
            let text = format!("message {} was sent in packet {first} already", msg_id.0);
            findings.at(MSG_ID_ONCE, observed, text);
            return false;
        }
        sequence.messages.insert(msg_id.0, observed.number);
        let origin = *sequence.origin.get_or_insert(msg_id);
        sequence
            .distances
            .insert(msg_id.distance_from(origin), (observed.number, packet_type));
        if let Some((offset, shape)) = part {
            let mut message = Message {
                first: observed.number,
                last: observed.number,
                shape,
                pieces: Pieces::default(),
            };
            add_piece(
                &mut message.pieces,
                &shape,
                offset,
                payload,
                observed,
                findings,
            );
            if message.pieces.total() < shape.in_packets {
                sequence.parts.insert(msg_id.0, message);
            }
        }
        false
    }

    /// Judges what two endpoints sent each other so far, and forgets it.
    pub(super) fn forget(&mut self, one: Node, other: Node, findings: &mut Findings) {
        for pair in [(one, other), (other, one)] {
            if let Some(sequence) = self.0.remove(&pair) {
                sequence.end(findings);
            }
        }
    }

    pub(super) fn end(&mut self, findings: &mut Findings) {
        for sequence in self.0.values() {
            sequence.end(findings);
        }
    }
}

impl Sequence {
    /// What can be said when nothing more comes.
    fn end(&self, findings: &mut Findings) {
        let origin = self.origin.unwrap_or_default();
        let mut previous: Option<i32> = None;
        for (&distance, &(number, packet_type)) in &self.distances {
            if let Some(previous) = previous
                && distance != previous + 1
            {
                let id = |distance: i32| origin.0.wrapping_add_signed(distance);
                let text = format!(
                    "message {} follows message {}, those between were never sent",
                    id(distance),
                    id(previous)
                );
                findings.add(MSG_ID_GAP, number, packet_type, text);
            }
            previous = Some(distance);
        }
        for (msg_id, message) in &self.parts {
            let text = format!(
                "{} of {} bytes of message {msg_id} were sent",
                message.pieces.total(),
                message.shape.in_packets
            );
            findings.add(MESSAGE_WHOLE, message.last, message.shape.packet_type, text);
        }
    }
}

fn add_piece(
    pieces: &mut Pieces,
    shape: &Shape,
    offset: u64,
    payload: u64,
    observed: &Observed<'_>,
    findings: &mut Findings,
) {
    match offset.checked_add(payload) {
        Some(end) if end <= shape.in_packets && shape.in_packets <= shape.length => {
            if !pieces.add(offset, end) {
                let text = format!("bytes {offset} to {end} overlap bytes sent before");
                findings.at(SEGMENT_OVERLAP, observed, text);
            }
        }
        _ => {
            let text = format!(
                "{payload} bytes from {offset} on do not fit into {} of {}",
                shape.in_packets, shape.length
            );
            findings.at(SEGMENT_BOUNDS, observed, text);
        }
    }
}
