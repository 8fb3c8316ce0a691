//! Invariants: what must hold in any capture of RDM traffic, whoever made it.
//!
//! The checker only watches. It needs no scenario and works on what it is given: a capture of one
//! host, of both, or of many; with both ends of each packet or one. Order of arrival proves nothing
//! on EFA, so rules about order are about sets (message ids without gaps, windows that are filled
//! exactly), except where a sender's own knowledge decides (what it had received before it sent).

mod identity;
mod sequence;
mod transfer;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use efa_core::address::{Gid, Qkey};
use efa_core::nic::Status;
use efa_core::wire::Packet;
use efa_emu::capture::Direction;
use efa_emu::frame::Kind;

use crate::trace::{Capture, CapturedPacket};

/// A rule that captures are checked against.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rule {
    /// A name that stays the same.
    pub id: &'static str,
    /// Where the rule comes from.
    pub source: &'static str,
    /// What must hold.
    pub text: &'static str,
}

macro_rules! rules {
    ($($name:ident = $id:literal, $source:literal, $text:literal;)*) => {
        $(pub(crate) const $name: Rule = Rule { id: $id, source: $source, text: $text };)*
        /// All rules.
        pub const RULES: &[Rule] = &[$($name,)*];
    };
}

rules! {
    PACKET_FORM = "packet-form", "spec section 1.3",
        "a packet has an assigned type, version 4 and all the fields that its type and flags announce";
    REQ_FLAGS = "req-flags", "spec section 3.1, table 3.1",
        "RTM packets are marked REQ_MSG, tagged ones also REQ_TAGGED, RTA packets REQ_ATOMIC";
    RAW_ADDRESS_TRUE = "raw-address-true", "spec section 1.4, table 1.5",
        "the raw address in a request is that of its sender";
    RAW_ADDRESS_FIRST = "raw-address-first", "spec section 2.2",
        "a request carries the raw address until its sender has received a HANDSHAKE";
    RAW_ADDRESS_LAST = "raw-address-last", "spec sections 2.2 and 4.3",
        "a request carries no raw address after the HANDSHAKE, unless the peer asked for constant \
         header length";
    ONE_IDENTITY = "one-identity", "stock libfabric since 1.14 (the spec allows both)",
        "a request names its sender by raw address or by connid, not by both";
    CONNID_TRUE = "connid-true", "spec section 4.4",
        "the connid in a packet is that of its sender";
    QKEY_TRUE = "qkey-true", "spec section 1.4",
        "packets go to the Q-key that the receiver's raw address names";
    HANDSHAKE_ONCE = "handshake-once", "spec section 2.1",
        "an endpoint sends each peer one HANDSHAKE";
    HANDSHAKE_ANSWER = "handshake-answer", "spec section 2.1",
        "an endpoint that received a packet of a peer and goes on talking sends it a HANDSHAKE";
    FEATURE_ANNOUNCED = "feature-announced", "spec section 2.1, table 2.1",
        "packets of an extra feature go only to peers that announced it";
    FEATURE_EARLY = "feature-early", "spec section 2.1",
        "packets of an extra feature wait for the peer's HANDSHAKE";
    MSG_ID_ONCE = "msg-id-once", "spec section 3.2",
        "each message to a peer has its own msg_id";
    MSG_ID_GAP = "msg-id-gap", "spec section 3.2",
        "the msg_ids of the messages to a peer leave no gap";
    SEGMENT_BOUNDS = "segment-bounds", "spec section 3.2, tables 3.4 and 3.7",
        "a segment lies within its message";
    SEGMENT_OVERLAP = "segment-overlap", "spec section 3.2",
        "each byte of a message is sent once";
    SEGMENT_AGREEMENT = "segment-agreement", "spec section 3.2, table 3.4",
        "all packets of a message agree on its length, tag and send_id";
    MESSAGE_WHOLE = "message-whole", "spec section 3.2",
        "a message is sent to its end";
    ANSWER_NAMES_REQUEST = "answer-names-request", "spec sections 3.2, 3.3, 4.1, 4.2 and 4.7",
        "CTS, EOR, READ_NACK, RECEIPT, READRSP and ATOMRSP name an operation that the peer announced";
    CTS_POSITIVE = "cts-positive", "spec section 3.2",
        "a CTS allows at least one byte";
    CTS_WINDOW = "cts-window", "spec section 3.2, table 3.6",
        "CTSDATA fills the window of each CTS exactly, and the windows cover the message";
    CTSDATA_NAMES_CTS = "ctsdata-names-cts", "spec section 3.2, table 3.7",
        "CTSDATA names a receive operation that the peer announced";
    IOV_LENGTH = "iov-length", "spec sections 3.3 and 4.1",
        "the lengths of rma_iov and read_iov add up to the length of the data that they describe";
    ONE_ANSWER = "one-answer", "spec sections 4.1 and 4.2",
        "an operation is acknowledged by one EOR or RECEIPT";
    COPIES_AGREE = "copies-agree", "the network delivers packets unchanged",
        "what a host received is what the sender sent";
}

/// A rule that a capture breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The packet at which it shows.
    pub packet: u64,
    /// The packet's type.
    pub kind: String,
    /// What is wrong there.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "packet {} ({}): {}: {} ({}: {})",
            self.packet, self.kind, self.rule.id, self.text, self.rule.source, self.rule.text
        )
    }
}

/// A queue pair, as the network names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Node {
    gid: Gid,
    qpn: u16,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]:{}", self.gid, self.qpn)
    }
}

/// A packet on its way, parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed<'a> {
    number: u64,
    from: Node,
    to: Node,
    qkey: Qkey,
    packet: &'a Packet,
}

/// Violations, as they are found.
#[derive(Default)]
pub(crate) struct Findings {
    violations: Vec<Violation>,
}

/// A checker stops telling after so many violations.
const ENOUGH: usize = 1000;

impl Findings {
    fn add(&mut self, rule: Rule, packet: u64, kind: impl fmt::Display, text: String) {
        if self.violations.len() < ENOUGH {
            self.violations.push(Violation {
                rule,
                packet,
                kind: kind.to_string(),
                text,
            });
        }
    }

    fn at(&mut self, rule: Rule, observed: &Observed<'_>, text: String) {
        let kind = observed.packet.base.packet_type;
        self.add(rule, observed.number, kind, text);
    }
}

/// What came of checking a capture.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Packets that were looked at, each counted once.
    pub packets: usize,
    /// Broken rules, in the order of the capture.
    pub violations: Vec<Violation>,
}

/// Checks a capture.
pub fn check(capture: &Capture) -> Checked {
    let mut findings = Findings::default();
    let void = void_attempts(capture);
    // Hosts whose own sends, and whose arrivals, are in the capture: for the others the far end's
    // copy has to stand in.
    let outbound = hosts(capture, Direction::Outbound);
    let inbound = hosts(capture, Direction::Inbound);

    let mut identity = identity::Identities::default();
    let mut sequence = sequence::Sequences::default();
    let mut transfer = transfer::Transfers::default();
    let mut packets = 0;
    let mut copies = Copies::default();
    for (place, frame) in capture.frames.iter().enumerate() {
        let Some(bytes) = frame.rdm() else { continue };
        if void.contains(&place) {
            continue;
        }
        let is_sent = match frame.direction {
            Some(Direction::Outbound) | None => true,
            Some(Direction::Inbound) => !outbound.contains(&frame.source),
        };
        let is_received = match frame.direction {
            Some(Direction::Inbound) | None => true,
            Some(Direction::Outbound) => !inbound.contains(&frame.destination),
        };
        copies.check(frame, &mut findings);
        let parsed = match Packet::parse(bytes) {
            Ok(parsed) => parsed,
            Err(error) => {
                if is_sent {
                    packets += 1;
                    findings.add(PACKET_FORM, frame.number, frame.kind(), error.to_string());
                }
                continue;
            }
        };
        let observed = Observed {
            number: frame.number,
            from: Node {
                gid: frame.source,
                qpn: frame.header.source_qpn.0,
            },
            to: Node {
                gid: frame.destination,
                qpn: frame.header.destination_qpn.0,
            },
            qkey: frame.header.qkey,
            packet: &parsed,
        };
        if is_sent && identity.takes_over(&observed) {
            identity.forget(observed.from, observed.to, &mut findings);
            sequence.forget(observed.from, observed.to, &mut findings);
            transfer.forget(observed.from, observed.to, &mut findings);
        }
        if is_sent {
            packets += 1;
            identity.sent(&observed, &mut findings);
            let goes_on = sequence.sent(&observed, &mut findings);
            transfer.sent(&observed, goes_on, &mut findings);
        }
        if is_received {
            identity.received(&observed);
        }
    }
    identity.end(&mut findings);
    sequence.end(&mut findings);
    transfer.end(&mut findings);
    let mut violations = findings.violations;
    violations.sort_by_key(|violation| violation.packet);
    Checked {
        packets,
        violations,
    }
}

fn hosts(capture: &Capture, direction: Direction) -> BTreeSet<Gid> {
    capture
        .frames
        .iter()
        .filter(|frame| frame.direction == Some(direction))
        .map(|frame| match direction {
            Direction::Outbound => frame.source,
            Direction::Inbound => frame.destination,
        })
        .collect()
}

type RequestKey = (Gid, u16, u32);

fn request_key(frame: &CapturedPacket) -> RequestKey {
    (
        frame.source,
        frame.header.source_qpn.0,
        frame.header.sequence,
    )
}

/// Places of sends that do not count: the responder's device refused them, so that the sender's device
/// or the protocol above sends them again, or they repeat one that counts.
fn void_attempts(capture: &Capture) -> HashSet<usize> {
    let mut void = HashSet::new();
    // The attempts at each request that have not been refused so far, as each direction shows them.
    let mut standing: HashMap<RequestKey, Vec<(Option<Direction>, usize)>> = HashMap::new();
    for (place, frame) in capture.frames.iter().enumerate() {
        match frame.header.kind {
            Kind::Send => {
                let attempts = standing.entry(request_key(frame)).or_default();
                let repeats = attempts.iter().any(|(side, _)| *side == frame.direction);
                if frame.header.retransmission && repeats {
                    void.insert(place);
                } else {
                    attempts.push((frame.direction, place));
                }
            }
            Kind::Response(status) if status != Status::Ok => {
                let key = (
                    frame.destination,
                    frame.header.destination_qpn.0,
                    frame.header.sequence,
                );
                let refused = standing.remove(&key).unwrap_or_default();
                void.extend(refused.into_iter().map(|(_, place)| place));
            }
            _ => {}
        }
    }
    void
}

/// Compares both ends' copies of each packet.
#[derive(Default)]
struct Copies<'a> {
    sent: HashMap<RequestKey, &'a CapturedPacket>,
}

impl<'a> Copies<'a> {
    fn check(&mut self, frame: &'a CapturedPacket, findings: &mut Findings) {
        match frame.direction {
            Some(Direction::Outbound) => {
                self.sent.insert(request_key(frame), frame);
            }
            Some(Direction::Inbound) => {
                let Some(sent) = self.sent.get(&request_key(frame)) else {
                    return;
                };
                if sent.payload != frame.payload {
                    let text = difference(sent, frame);
                    findings.add(COPIES_AGREE, frame.number, frame.kind(), text);
                }
            }
            None => {}
        }
    }
}

fn difference(sent: &CapturedPacket, received: &CapturedPacket) -> String {
    fn fields(frame: &CapturedPacket) -> Vec<efa_core::wire::fields::Field<'_>> {
        let walk = efa_core::wire::fields::fields_of(&frame.payload);
        walk.into_iter().flatten().collect()
    }
    let (before, after) = (fields(sent), fields(received));
    let differing = before.iter().find(|field| {
        !after
            .iter()
            .any(|other| other.name() == field.name() && other.bytes == field.bytes)
    });
    match differing {
        Some(field) => {
            let show = |field: &efa_core::wire::fields::Field<'_>| {
                field
                    .descriptor
                    .display(field.packet_type, field.value)
                    .to_string()
            };
            let other = after.iter().find(|other| other.name() == field.name());
            format!(
                "field `{}` ({}): expected {} as sent in packet {}, actual {}",
                field.name(),
                field.descriptor.source,
                show(field),
                sent.number,
                other.map_or_else(|| "absent".into(), show)
            )
        }
        None => format!(
            "expected {} bytes as sent in packet {}, actual {}",
            sent.payload.len(),
            sent.number,
            received.payload.len()
        ),
    }
}

#[cfg(test)]
mod tests;
