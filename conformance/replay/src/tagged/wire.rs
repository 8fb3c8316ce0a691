//! The traffic of a connection: the packets of a capture, and their comparison with those of a run.
//!
//! Numbers that differ between runs are compared by their meaning: queue pairs by end, addresses
//! and keys by the memory of a rendezvous. Retransmissions are omitted. So are positive
//! acknowledgements, of which a device may send any number, and data, which the ends compare.

use std::collections::HashSet;
use std::io::Read;

use efa_capture::{Direction, ReadError, Reader};
use efa_check::capture::{CapturedItem, Frames};
use efa_core::rules::Severity;
use efa_core::wire::infiniband::{Aeth, RcOpcode, Reth, Rvh, Tmh};

use crate::compare::Finding;

/// Syndromes of at least this value refuse a request. Lower ones are acknowledgements and NAKs that
/// request a retry.
const REFUSALS: u8 = 0b011_00001;

/// A packet of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WirePacket {
    /// Its number in the capture.
    pub number: u64,
    /// The sending end: 0 is `a`.
    pub from: usize,
    opcode: RcOpcode,
    /// Bytes of payload.
    length: usize,
    syndrome: Option<u8>,
    /// Memory in its RETH or RVH.
    memory: Option<Memory>,
    /// The header of a message: operation, the sender's data, tag.
    message: Option<(u8, u32, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Memory {
    address: u64,
    key: u32,
    length: u32,
}

impl WirePacket {
    fn kind(&self) -> String {
        format!("RC {}", self.opcode.name())
    }

    /// The requests and the responses of an end are independent streams.
    fn stream(&self) -> (usize, bool) {
        (self.from, self.opcode.is_response())
    }

    fn operation(&self) -> Option<u8> {
        self.message.map(|(operation, ..)| operation)
    }
}

/// Packet sequence numbers have 24 bits.
const NUMBERS: u32 = 1 << 24;

/// The packets in the order in which they were sent, without retransmissions. `mtu` is the path
/// MTU.
///
/// # Errors
/// If the capture cannot be read.
pub fn packets<R: Read>(reader: Reader<R>, mtu: u32) -> Result<Vec<WirePacket>, ReadError> {
    let mut frames = Frames::new(reader);
    let mut packets = Vec::new();
    let mut second_end = None;
    let mut answered = HashSet::new();
    let mut next_requests = [None; 2];
    while let Some(item) = frames.next_item()? {
        let CapturedItem::Connected(packet) = item else {
            continue;
        };
        let Some(transport) = packet.transport() else {
            continue;
        };
        // `a` begins, so the first packet is for `b`.
        let to = (packet.destination, transport.destination);
        let from = usize::from(*second_end.get_or_insert(to) != to);
        let syndrome = transport.aeth.map(|aeth: Aeth| aeth.syndrome);
        let is_refusal = syndrome.is_some_and(|syndrome| syndrome >= REFUSALS);
        let (opcode, is_response) = (transport.opcode, transport.opcode.is_response());
        if packet.direction == Some(Direction::Inbound)
            || (opcode == RcOpcode::Acknowledge && !is_refusal)
        {
            continue;
        }
        let psn = transport.psn;
        let is_new = match is_response {
            true => answered.insert((from, psn)),
            false => {
                // A read uses as many numbers as its answer. A repeated read may request only the
                // rest.
                let length = transport.reth.map_or(0, |reth: Reth| reth.length.get());
                let numbers = match opcode {
                    RcOpcode::ReadRequest => length.div_ceil(mtu).max(1),
                    _ => 1,
                };
                let next = next_requests[from].unwrap_or(psn);
                let is_new = psn.wrapping_sub(next) % NUMBERS < NUMBERS / 2;
                if is_new {
                    next_requests[from] = Some((psn + numbers) % NUMBERS);
                }
                is_new
            }
        };
        if !is_new {
            continue;
        }
        let begins = matches!(
            opcode,
            RcOpcode::SendFirst | RcOpcode::SendOnly | RcOpcode::SendOnlyImmediate
        );
        let tmh = Tmh::read(transport.payload).filter(|_| begins);
        let rvh = tmh.filter(|tmh| [Tmh::RENDEZVOUS, Tmh::FINISH].contains(&tmh.operation));
        let rvh = rvh.and_then(|_| Rvh::read(transport.payload.get(Tmh::LENGTH..)?));
        let of_rvh = rvh.map(|rvh| Memory {
            address: rvh.address.get(),
            key: rvh.key.get(),
            length: rvh.length.get(),
        });
        let of_reth = transport.reth.map(|reth: Reth| Memory {
            address: reth.address.get(),
            key: reth.key.get(),
            length: reth.length.get(),
        });
        packets.push(WirePacket {
            number: packet.number,
            from,
            opcode,
            length: transport.payload_length,
            syndrome: syndrome.filter(|_| is_refusal),
            memory: of_rvh.or(of_reth),
            message: tmh.map(|tmh| (tmh.operation, tmh.data.get(), tmh.tag.get())),
        });
    }
    Ok(packets)
}

/// The memory of each rendezvous, in a capture and in a run.
struct Rendezvous(Vec<[Memory; 2]>);

impl Rendezvous {
    fn of(recorded: &[WirePacket], actual: &[WirePacket]) -> Rendezvous {
        fn named(packets: &[WirePacket]) -> impl Iterator<Item = Memory> {
            let requests = packets.iter();
            let requests = requests.filter(|it| it.operation() == Some(Tmh::RENDEZVOUS));
            requests.filter_map(|it| it.memory)
        }
        let pairs = named(recorded).zip(named(actual));
        Rendezvous(pairs.map(|(recorded, actual)| [recorded, actual]).collect())
    }

    /// Whether both are the same part of the memory of one rendezvous.
    fn agree(&self, recorded: Memory, actual: Memory) -> bool {
        recorded.length == actual.length
            && self.0.iter().any(|[of_recorded, of_actual]| {
                let offset = |part: Memory, whole: &Memory| {
                    let offset = part.address.wrapping_sub(whole.address);
                    let is_inside =
                        offset.saturating_add(part.length.into()) <= whole.length.into();
                    (is_inside && part.key == whole.key).then_some(offset)
                };
                let offsets = (offset(recorded, of_recorded), offset(actual, of_actual));
                matches!(offsets, (Some(one), Some(other)) if one == other)
            })
    }
}

/// Compares the packets of a run with the packets of a capture. Returns the number of compared
/// packets.
pub fn compare(recorded: &[WirePacket], actual: &[WirePacket]) -> (usize, Vec<Finding>) {
    let rendezvous = Rendezvous::of(recorded, actual);
    let (mut compared, mut findings) = (0, Vec::new());
    for stream in [(0, false), (0, true), (1, false), (1, true)] {
        let of_stream = |packets: &[WirePacket]| -> Vec<WirePacket> {
            let packets = packets.iter().filter(|it| it.stream() == stream);
            packets.cloned().collect()
        };
        let (recorded, actual) = (of_stream(recorded), of_stream(actual));
        let who = ["a", "b"][stream.0];
        let mut is_same = true;
        for (recorded, actual) in recorded.iter().zip(&actual) {
            compared += 1;
            if let Some((field, text)) = difference(recorded, actual, &rendezvous) {
                findings.push(finding(recorded, field, text));
                is_same = false;
                // Further differences would only be consequences.
                break;
            }
        }
        if !is_same {
            continue;
        }
        if let Some(missing) = recorded.get(actual.len()) {
            let text = format!("`{who}` does not send it");
            findings.push(finding(missing, "", text));
        }
        if let Some(more) = actual.get(recorded.len()) {
            let text = format!(
                "`{who}` sends {} that the capture does not have, packet {} of the run",
                more.kind(),
                more.number
            );
            findings.push(Finding::plain(Severity::Error, text));
        }
    }
    (compared, findings)
}

fn finding(packet: &WirePacket, field: &str, text: String) -> Finding {
    Finding {
        packet: Some(packet.number),
        packet_type: packet.kind(),
        field: field.to_owned(),
        ..Finding::plain(Severity::Error, text)
    }
}

/// The first field in which two packets differ.
fn difference(
    recorded: &WirePacket,
    actual: &WirePacket,
    rendezvous: &Rendezvous,
) -> Option<(&'static str, String)> {
    let differs = |field, expected: String, found: String| {
        let text = format!("expected {expected}, actual {found}");
        (expected != found).then_some((field, text))
    };
    differs("bth.opcode", recorded.kind(), actual.kind())
        .or_else(|| {
            let (expected, found) = (recorded.message, actual.message);
            let field = |at: usize, of: Option<(u8, u32, u64)>| match (of, at) {
                (None, _) => "none".to_owned(),
                (Some((operation, ..)), 0) => operation.to_string(),
                (Some((_, data, _)), 1) => format!("{data:#x}"),
                (Some((.., tag)), _) => format!("{tag:#x}"),
            };
            let names = ["tmh.operation", "tmh.data", "tmh.tag"];
            let mut fields = names.into_iter().enumerate();
            fields.find_map(|(at, name)| differs(name, field(at, expected), field(at, found)))
        })
        .or_else(|| {
            let lengths = [recorded, actual].map(|it| it.length.to_string());
            let [expected, found] = lengths;
            differs("length", expected, found)
        })
        .or_else(|| {
            let [expected, found] = [recorded, actual].map(|it| format!("{:x?}", it.syndrome));
            differs("aeth.syndrome", expected, found)
        })
        .or_else(|| match (recorded.memory, actual.memory) {
            (Some(one), Some(other)) if rendezvous.agree(one, other) => None,
            (None, None) => None,
            (one, other) => {
                let text = format!(
                    "not the part of the rendezvous that it is in the capture: expected {one:x?}, \
                     actual {other:x?}"
                );
                Some(("memory", text))
            }
        })
}
