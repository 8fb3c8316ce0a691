//! Ladders: the recorded packets next to the actual ones.

use std::collections::{BTreeSet, HashMap};

use efa_capture::Direction;
use efa_capture::frame::FrameKind;
use efa_check::capture::CapturedPacket;
use efa_core::address::Gid;
use efa_core::nic::Status;
use efa_core::wire::PacketType;
use efa_core::wire::fields::{self, Value, field_of, fields_of};
use efa_play::operation::EndpointIndex;
use efa_play::trace::Trace;
use efa_replay::replay::{ExchangedEvent, WireEvent};
use serde::{Deserialize, Serialize};

/// A message from one endpoint to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MessageKind {
    Packet,
    /// A request to a device to read or write memory.
    Request,
    /// A device's refusal.
    Refusal,
}

/// A packet or device operation from one endpoint to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LadderMessage {
    /// Its type, such as `EAGER_MSGRTM`.
    pub(crate) kind: String,
    /// The fields that distinguish it from others of its type.
    pub(crate) detail: String,
    /// The number of the recorded packet that it is, or that it corresponds to.
    pub(crate) number: Option<u64>,
    pub(crate) nature: MessageKind,
}

/// A rung: a recorded message, the actual one in its place, or both.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Rung {
    pub(crate) from: EndpointIndex,
    pub(crate) to: EndpointIndex,
    pub(crate) expected: Option<LadderMessage>,
    pub(crate) actual: Option<LadderMessage>,
}

/// The recorded messages and the actual ones.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ladder {
    pub(crate) endpoints: Vec<String>,
    /// The rungs in the order of time.
    pub(crate) rungs: Vec<Rung>,
}

/// The fields that a ladder shows, by which a reader follows a message.
const TELLING: [&str; 8] = [
    "msg_id",
    "send_id",
    "recv_id",
    "msg_length",
    "runt_length",
    "seg_offset",
    "recv_length",
    "user_recv_qp.qpn",
];

/// The fields that distinguish a packet from others of its type.
fn detail(packet: &[u8]) -> String {
    let mut words: Vec<String> = TELLING
        .iter()
        .filter_map(|name| match field_of(packet, name)?.value {
            Value::Unsigned(value) => Some(format!("{name} {value}")),
            _ => None,
        })
        .collect();
    if let Some(field) = fields_of(packet)
        .into_iter()
        .flatten()
        .find(|field| field.descriptor.kind == fields::FieldKind::Data)
    {
        words.push(format!("{} B", field.bytes.len()));
    }
    words.join(", ")
}

fn of_packet(packet: &[u8], headerless: bool, number: Option<u64>) -> LadderMessage {
    let packet_type = PacketType::peek(packet).filter(|_| !headerless);
    let (kind, detail) = match packet_type {
        Some(packet_type) => (packet_type.to_string(), detail(packet)),
        None if headerless => (
            "message without header".into(),
            format!("{} B", packet.len()),
        ),
        None => (
            match packet.first() {
                Some(code) => format!("packet of unassigned type {code}"),
                None => "empty packet".into(),
            },
            format!("{} B", packet.len()),
        ),
    };
    LadderMessage {
        kind,
        detail,
        number,
        nature: MessageKind::Packet,
    }
}

fn of_rdma(
    writes: bool,
    length: u64,
    immediate: Option<u32>,
    number: Option<u64>,
) -> LadderMessage {
    let mut detail = format!("{length} B");
    if let Some(immediate) = immediate {
        detail += &format!(", immediate {immediate:#x}");
    }
    LadderMessage {
        kind: if writes { "RDMA write" } else { "RDMA read" }.into(),
        detail,
        number,
        nature: MessageKind::Request,
    }
}

fn of_refusal(status: Status, number: Option<u64>) -> LadderMessage {
    LadderMessage {
        kind: status.describe().to_owned(),
        detail: String::new(),
        number,
        nature: MessageKind::Refusal,
    }
}

/// The message for a recorded frame; `None` for retransmissions and acknowledgements.
fn of_frame(frame: &CapturedPacket) -> Option<LadderMessage> {
    let header = &frame.header;
    if header.retransmission {
        return None;
    }
    let number = Some(frame.number);
    match header.kind {
        FrameKind::Send => Some(of_packet(&frame.payload, frame.headerless, number)),
        FrameKind::RdmaReadRequest(rdma) => {
            Some(of_rdma(false, rdma.total_length.into(), None, number))
        }
        FrameKind::RdmaWrite(rdma) if rdma.offset == 0 => Some(of_rdma(
            true,
            rdma.total_length.into(),
            header.immediate,
            number,
        )),
        FrameKind::Response(status) if status != Status::Ok => Some(of_refusal(status, number)),
        _ => None,
    }
}

impl Ladder {
    /// Returns whether the ladder has no rungs, because nothing was sent or no ladder was
    /// requested.
    pub(crate) fn is_empty(&self) -> bool {
        self.rungs.is_empty()
    }

    /// Compares a trace with the messages of its replay.
    pub(crate) fn of(trace: &Trace, exchanged: &[ExchangedEvent]) -> Self {
        let frames = &trace.capture.frames;
        let owners: HashMap<Gid, EndpointIndex> = frames
            .iter()
            .filter(|frame| frame.direction == Some(Direction::Outbound))
            .map(|frame| (frame.source, trace.endpoint_of[frame.interface]))
            .collect();
        let recorded = frames.iter().filter_map(|frame| {
            let outbound = frame.direction == Some(Direction::Outbound);
            Some(Rung {
                from: trace.endpoint_of[frame.interface],
                to: *owners.get(&frame.destination)?,
                expected: Some(of_frame(frame).filter(|_| outbound)?),
                actual: None,
            })
        });
        let happened = exchanged.iter().map(|exchanged| {
            let frame = exchanged.place.map(|place| &frames[place]);
            let number = frame.map(|frame| frame.number);
            let actual = match (&exchanged.event, frame) {
                (WireEvent::Packet(bytes), _) => {
                    of_packet(bytes, frame.is_some_and(|frame| frame.headerless), number)
                }
                (WireEvent::DutRdma { writes, length }, _) => {
                    of_rdma(*writes, *length, None, number)
                }
                (WireEvent::Refused(status), _) => of_refusal(*status, number),
                (WireEvent::Rdma, Some(frame)) => of_frame(frame)?,
                (WireEvent::Rdma, None) => return None,
            };
            Some(Rung {
                from: exchanged.from,
                to: exchanged.to,
                expected: None,
                actual: Some(actual),
            })
        });
        Ladder {
            endpoints: trace
                .scenario
                .endpoints
                .iter()
                .map(|endpoint| endpoint.name.clone())
                .collect(),
            rungs: beside(recorded.collect(), happened.flatten().collect()),
        }
    }
}

/// Joins recorded and actual messages: messages of the longest part in recorded order share rungs,
/// and all others have separate rungs.
fn beside(recorded: Vec<Rung>, happened: Vec<Rung>) -> Vec<Rung> {
    let places: HashMap<u64, usize> = recorded
        .iter()
        .enumerate()
        .filter_map(|(place, rung)| Some((rung.expected.as_ref()?.number?, place)))
        .collect();
    let place_of = |rung: &Rung| places.get(&rung.actual.as_ref()?.number?).copied();
    let stands_for: Vec<Option<usize>> = happened.iter().map(place_of).collect();
    let in_order = longest_rising(&stands_for);
    let mut recorded = recorded.into_iter().enumerate().peekable();
    let mut rungs = Vec::new();
    for (index, mut rung) in happened.into_iter().enumerate() {
        let Some(place) = stands_for[index].filter(|_| in_order.contains(&index)) else {
            rungs.push(rung);
            continue;
        };
        while let Some((_, missed)) = recorded.next_if(|(before, _)| *before < place) {
            rungs.push(missed);
        }
        rung.expected = recorded.next().and_then(|(_, found)| found.expected);
        rungs.push(rung);
    }
    rungs.extend(recorded.map(|(_, missed)| missed));
    rungs
}

/// The indices of a longest strictly rising subsequence of the present values.
fn longest_rising(values: &[Option<usize>]) -> BTreeSet<usize> {
    // `ends[n]` is the index of the smallest value with which a subsequence of n + 1 values can
    // end.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = vec![None; values.len()];
    for (index, value) in values.iter().enumerate() {
        if value.is_none() {
            continue;
        }
        let length = ends.partition_point(|end| values[*end] < *value);
        before[index] = length.checked_sub(1).map(|shorter| ends[shorter]);
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut chosen = BTreeSet::new();
    let mut at = ends.last().copied();
    while let Some(index) = at {
        chosen.insert(index);
        at = before[index];
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: Option<u64>) -> Option<LadderMessage> {
        Some(LadderMessage {
            kind: "CTS".into(),
            detail: String::new(),
            number,
            nature: MessageKind::Packet,
        })
    }

    fn recorded(number: u64) -> Rung {
        Rung {
            from: 0,
            to: 1,
            expected: message(Some(number)),
            actual: None,
        }
    }

    fn happened(number: Option<u64>) -> Rung {
        Rung {
            from: 0,
            to: 1,
            expected: None,
            actual: message(number),
        }
    }

    /// Rungs as pairs of the numbers on their two sides; 0 for a message without a number.
    fn numbers(rungs: &[Rung]) -> Vec<(Option<u64>, Option<u64>)> {
        let number =
            |side: &Option<LadderMessage>| side.as_ref().map(|side| side.number.unwrap_or(0));
        rungs
            .iter()
            .map(|rung| (number(&rung.expected), number(&rung.actual)))
            .collect()
    }

    #[test]
    fn missing_late_and_surplus_packets_get_rungs() {
        let recorded = [1, 3, 4, 6, 7].map(recorded).to_vec();
        let happened = [Some(1), Some(4), None, Some(3), Some(7)]
            .map(happened)
            .to_vec();
        let rungs = beside(recorded, happened);
        assert_eq!(
            numbers(&rungs),
            [
                (Some(1), Some(1)),
                (None, Some(4)),
                (None, Some(0)),
                (Some(3), Some(3)),
                (Some(4), None),
                (Some(6), None),
                (Some(7), Some(7)),
            ]
        );
    }

    #[test]
    fn the_longest_rising_choice_is_found() {
        let values = [Some(5), Some(1), None, Some(2), Some(2), Some(9), Some(3)];
        let chosen = longest_rising(&values);
        assert_eq!(chosen.len(), 3);
        let chosen: Vec<_> = chosen.iter().map(|index| values[*index]).collect();
        assert!(chosen.is_sorted_by(|a, b| a < b), "{chosen:?}");
    }
}
