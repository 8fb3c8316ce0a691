//! `check` finds single mistakes in correct captures of stock software; each mistake is listed with
//! the rule that has to be reported.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_capture::frame::FrameKind;
use efa_check::capture::{Capture, CapturedPacket};
use efa_check::check::{Checked, NEED_ORDER, check};
use efa_testing::fields::{number, write};
use efa_testing::workspace::traces;
use efa_wire::rules::{Rule, Severity};

/// A packet of a trace: its type, and its index among the packets of this type that its host sends.
type Packet = (&'static str, usize);

/// A mistake.
#[derive(Clone, Copy, Debug)]
enum Mistake {
    /// A field has another value.
    Set(&'static str, u64),
    /// A number is added to a field (modulo the field's width).
    Add(&'static str, u64),
    /// A flag is not set.
    Clear(u16),
    /// Two fields are exchanged.
    Swap(&'static str, &'static str),
    /// The packet is never sent.
    Missing,
    /// The packet is sent twice.
    Twice,
    /// The packet is sent before another one.
    Before(Packet),
    /// It carries fewer bytes.
    Shorter(usize),
}

use Mistake::*;

const LESS: u64 = u64::MAX;

/// (trace, packet, mistake, rule)
const MISTAKES: &[(&str, Packet, Mistake, &str)] = &[
    (
        "eager-tagged",
        ("EAGER_TAGRTM", 0),
        Set("version", 3),
        "packet-form",
    ),
    ("eager-tagged", ("EAGER_TAGRTM", 0), Clear(4), "req-flags"),
    ("eager-tagged", ("EAGER_TAGRTM", 0), Clear(8), "req-flags"),
    (
        "eager-tagged",
        ("EAGER_TAGRTM", 0),
        Add("raw_addr.qpn", 1),
        "raw-address-true",
    ),
    (
        "eager-tagged",
        ("EAGER_TAGRTM", 0),
        Add("raw_addr.connid", 1),
        "connid-true",
    ),
    ("eager-tagged", ("HANDSHAKE", 0), Twice, "handshake-once"),
    (
        "eager-tagged",
        ("HANDSHAKE", 0),
        Set("nextra_p3", 900),
        "packet-form",
    ),
    (
        "eager-tagged",
        ("HANDSHAKE", 0),
        Set("nextra_p3", 2),
        "packet-form",
    ),
    (
        "eager-tagged",
        ("HANDSHAKE", 0),
        Set("type", 1),
        "packet-form",
    ),
    (
        "eager-tagged",
        ("HANDSHAKE", 0),
        Set("type", 200),
        "packet-form",
    ),
    (
        "ping-pong",
        ("EAGER_TAGRTM", 2),
        Add("msg_id", LESS),
        "msg-id-once",
    ),
    ("ping-pong", ("EAGER_TAGRTM", 2), Twice, "msg-id-once"),
    (
        "ping-pong",
        ("EAGER_TAGRTM", 4),
        Add("connid", 1),
        "connid-true",
    ),
    (
        "ping-pong",
        ("HANDSHAKE", 0),
        Add("connid", 1),
        "connid-true",
    ),
    (
        "ping-pong",
        ("HANDSHAKE", 0),
        Set("extra_info", 0x1b & !8),
        "connid-unasked",
    ),
    (
        "ping-pong",
        ("HANDSHAKE", 0),
        Set("extra_info", 0x1f),
        "constant-header",
    ),
    (
        "ping-pong",
        ("HANDSHAKE", 0),
        Set("extra_info", 0x9b),
        "handshake-form",
    ),
    ("ping-pong", ("HANDSHAKE", 0), Missing, "raw-address-first"),
    (
        "medium-untagged",
        ("MEDIUM_MSGRTM", 2),
        Add("seg_offset", 8),
        "segment-bounds",
    ),
    (
        "medium-untagged",
        ("MEDIUM_MSGRTM", 1),
        Add("seg_offset", 0_u64.wrapping_sub(8)),
        "segment-overlap",
    ),
    (
        "medium-untagged",
        ("MEDIUM_MSGRTM", 1),
        Add("msg_length", 1),
        "segment-agreement",
    ),
    (
        "medium-untagged",
        ("MEDIUM_MSGRTM", 1),
        Twice,
        "msg-id-once",
    ),
    (
        "medium-untagged",
        ("MEDIUM_MSGRTM", 0),
        Add("msg_length", LESS),
        "segment-agreement",
    ),
    (
        "medium-untagged",
        ("MEDIUM_MSGRTM", 1),
        Clear(1),
        "raw-address-first",
    ),
    (
        "medium-untagged",
        ("MEDIUM_MSGRTM", 2),
        Set("seg_offset", 0),
        "segment-overlap",
    ),
    (
        "long-cts",
        ("CTS", 0),
        Add("send_id", 1),
        "answer-names-request",
    ),
    (
        "long-cts",
        ("CTS", 1),
        Add("recv_id", 1),
        "answer-names-request",
    ),
    (
        "long-cts",
        ("CTS", 0),
        Set("recv_length", 0),
        "cts-positive",
    ),
    (
        "long-cts",
        ("CTS", 0),
        Add("recv_length", LESS),
        "cts-window",
    ),
    ("long-cts", ("CTS", 2), Add("recv_length", 1), "cts-window"),
    ("long-cts", ("CTS", 1), Before(("CTSDATA", 3)), "cts-early"),
    ("long-cts", ("CTS", 1), Twice, "answer-names-request"),
    ("long-cts", ("CTS", 1), Missing, "cts-window"),
    (
        "long-cts",
        ("CTSDATA", 0),
        Add("recv_id", 1),
        "ctsdata-names-cts",
    ),
    (
        "long-cts",
        ("CTSDATA", 0),
        Before(("CTS", 0)),
        "ctsdata-names-cts",
    ),
    ("long-cts", ("CTSDATA", 0), Twice, "segment-overlap"),
    ("long-cts", ("CTSDATA", 4), Missing, "cts-early"),
    (
        "long-cts",
        ("CTSDATA", 1),
        Add("seg_offset", 1),
        "segment-overlap",
    ),
    (
        "long-cts",
        ("CTSDATA", 1),
        Add("seg_length", 1),
        "packet-form",
    ),
    (
        "long-cts",
        ("CTSDATA", 10),
        Add("seg_offset", 1),
        "segment-bounds",
    ),
    ("long-cts", ("CTSDATA", 1), Shorter(8), "packet-form"),
    (
        "long-cts",
        ("LONGCTS_MSGRTM", 0),
        Add("send_id", 1),
        "answer-names-request",
    ),
    (
        "long-cts",
        ("LONGCTS_MSGRTM", 0),
        Add("msg_length", LESS),
        "cts-window",
    ),
    (
        "long-read",
        ("EOR", 0),
        Add("send_id", 1),
        "answer-names-request",
    ),
    (
        "long-read",
        ("EOR", 0),
        Before(("RDMA_READ_REQUEST", 0)),
        "eor-early",
    ),
    (
        "long-read",
        ("EOR", 0),
        Before(("LONGREAD_MSGRTM", 0)),
        "answer-names-request",
    ),
    ("long-read", ("EOR", 0), Twice, "one-answer"),
    (
        "long-read",
        ("LONGREAD_MSGRTM", 0),
        Add("msg_length", 1),
        "iov-length",
    ),
    (
        "long-read",
        ("LONGREAD_MSGRTM", 0),
        Add("read_iov.len", 1),
        "iov-length",
    ),
    (
        "long-read",
        ("LONGREAD_MSGRTM", 0),
        Set("read_iov_count", 5),
        "packet-form",
    ),
    (
        "long-read",
        ("HANDSHAKE", 0),
        Set("extra_info", 0xa),
        "feature-announced",
    ),
    ("long-read", ("RDMA_READ_REQUEST", 0), Missing, "eor-early"),
    (
        "runting-read",
        ("EOR", 0),
        Set("type", 10),
        "answer-names-request",
    ),
    (
        "runting-read",
        ("RUNTREAD_MSGRTM", 1),
        Add("runt_length", 1),
        "segment-agreement",
    ),
    (
        "runting-read",
        ("RUNTREAD_MSGRTM", 1),
        Add("seg_offset", LESS),
        "segment-overlap",
    ),
    (
        "runting-read",
        ("RUNTREAD_MSGRTM", 1),
        Add("send_id", 1),
        "segment-agreement",
    ),
    (
        "runting-read",
        ("HANDSHAKE", 0),
        Set("extra_info", 0xa),
        "feature-announced",
    ),
    (
        "read-direct",
        ("HANDSHAKE", 0),
        Set("extra_info", 0x1a),
        "rdma-announced",
    ),
    (
        "read-emulated",
        ("READRSP", 0),
        Add("recv_id", 1),
        "answer-names-request",
    ),
    (
        "read-emulated",
        ("READRSP", 0),
        Twice,
        "answer-names-request",
    ),
    (
        "read-emulated",
        ("READRSP", 0),
        Before(("SHORT_RTR", 0)),
        "answer-names-request",
    ),
    (
        "read-emulated",
        ("LONGCTS_RTR", 0),
        Set("recv_length", 0),
        "cts-positive",
    ),
    ("read-emulated", ("READRSP", 0), Shorter(1), "packet-form"),
    (
        "read-emulated",
        ("SHORT_RTR", 0),
        Add("msg_length", 1),
        "iov-length",
    ),
    (
        "read-emulated",
        ("LONGCTS_RTR", 0),
        Set("recv_length", 9000),
        "cts-window",
    ),
    (
        "read-emulated",
        ("LONGCTS_RTR", 0),
        Add("recv_id", 1),
        "answer-names-request",
    ),
    (
        "read-emulated",
        ("CTSDATA", 0),
        Add("seg_offset", LESS),
        "segment-overlap",
    ),
    (
        "write-emulated",
        ("EAGER_RTW", 0),
        Add("rma_iov.len", 1),
        "iov-length",
    ),
    (
        "write-emulated",
        ("EAGER_RTW", 0),
        Set("rma_iov_count", 0),
        "iov-length",
    ),
    (
        "write-emulated",
        ("LONGCTS_RTW", 0),
        Add("send_id", 1),
        "answer-names-request",
    ),
    (
        "write-emulated",
        ("CTS", 0),
        Swap("send_id", "recv_length"),
        "answer-names-request",
    ),
    (
        "delivery-complete",
        ("RECEIPT", 0),
        Add("send_id", 9),
        "answer-names-request",
    ),
    (
        "delivery-complete",
        ("RECEIPT", 0),
        Before(("DC_EAGER_MSGRTM", 0)),
        "answer-names-request",
    ),
    (
        "delivery-complete",
        ("RECEIPT", 1),
        Before(("DC_MEDIUM_TAGRTM", 2)),
        "receipt-early",
    ),
    (
        "delivery-complete",
        ("RECEIPT", 2),
        Before(("CTSDATA", 6)),
        "receipt-early",
    ),
    ("delivery-complete", ("RECEIPT", 2), Twice, "one-answer"),
    (
        "delivery-complete",
        ("RECEIPT", 2),
        Set("type", 7),
        "answer-names-request",
    ),
    ("delivery-complete", ("RECEIPT", 0), Missing, "id-in-use"),
    (
        "delivery-complete",
        ("HANDSHAKE", 0),
        Set("extra_info", 0x19),
        "feature-announced",
    ),
    (
        "delivery-complete",
        ("DC_MEDIUM_TAGRTM", 2),
        Add("tag", 1),
        "segment-agreement",
    ),
    (
        "delivery-complete",
        ("RECEIPT", 0),
        Add("msg_id", 7),
        "receipt-message",
    ),
    (
        "eager-tagged",
        ("EAGER_TAGRTM", 0),
        Set("flags", 0x2d),
        "req-flags",
    ),
    (
        "long-cts",
        ("CTS", 1),
        Set("flags", 0x8080),
        "cts-read-flag",
    ),
];

fn load(name: &str) -> Capture {
    Capture::load(&traces().join(format!("{name}.pcapng"))).unwrap()
}

/// Identifies a request at both ends.
type Key = (efa_wire::address::Gid, u16, u32, bool);

fn key(frame: &CapturedPacket) -> Key {
    let is_answer = matches!(
        frame.header.kind,
        FrameKind::Response(_) | FrameKind::RdmaReadResponse(_)
    );
    let header = &frame.header;
    (
        frame.source,
        header.source_qpn.0,
        header.sequence,
        is_answer,
    )
}

/// The key of a packet's request.
fn find(capture: &Capture, (kind, nth): Packet) -> Key {
    let mut seen = BTreeSet::new();
    let mut of_kind = capture
        .sent()
        .filter(|frame| frame.kind() == kind)
        .map(key)
        .filter(|key| seen.insert(*key));
    of_kind
        .nth(nth)
        .unwrap_or_else(|| panic!("no {kind} {nth}"))
}

fn change(packet: &mut Vec<u8>, mistake: Mistake) {
    match mistake {
        Set(name, value) => write(packet, name, value),
        Add(name, by) => {
            let value = number(packet, name).wrapping_add(by);
            write(packet, name, value);
        }
        Clear(flag) => {
            let value = number(packet, "flags") & !u64::from(flag);
            write(packet, "flags", value);
        }
        Swap(one, other) => {
            let values = (number(packet, one), number(packet, other));
            write(packet, one, values.1);
            write(packet, other, values.0);
        }
        Shorter(by) => packet.truncate(packet.len() - by),
        Missing | Twice | Before(_) => {}
    }
}

/// A copy of a capture with this mistake.
fn mistaken(capture: &Capture, packet: Packet, mistake: Mistake) -> Capture {
    let mut capture = capture.clone();
    let wrong = find(&capture, packet);
    for frame in capture
        .frames
        .iter_mut()
        .filter(|frame| key(frame) == wrong)
    {
        change(&mut frame.payload, mistake);
        frame.header.payload_length = frame.payload.len() as u32;
    }
    match mistake {
        Missing => capture.frames.retain(|frame| {
            let answers = matches!(frame.header.kind, FrameKind::RdmaReadResponse(_))
                && frame.header.sequence == wrong.2
                && frame.destination == wrong.0;
            key(frame) != wrong && !answers
        }),
        Twice => {
            let again: Vec<_> = capture
                .frames
                .iter()
                .filter(|frame| key(frame) == wrong)
                .cloned()
                .collect();
            for mut frame in again {
                frame.header.sequence += 1_000_000;
                capture.frames.push(frame);
            }
        }
        Before(other) => {
            let other = find(&capture, other);
            let moved: Vec<_> = capture
                .frames
                .extract_if(.., |frame| key(frame) == wrong)
                .collect();
            // At each end the packet is recorded before the other one.
            for frame in moved {
                let at = capture
                    .frames
                    .iter()
                    .position(|seen| key(seen) == other && seen.interface == frame.interface);
                capture.frames.insert(at.unwrap(), frame);
            }
        }
        _ => {}
    }
    for (number, frame) in (1..).zip(&mut capture.frames) {
        frame.number = number;
        frame.time = Duration::from_micros(number);
    }
    capture
}

fn is_found(checked: &Checked, rule: &Rule) -> bool {
    let mut findings = checked.findings.iter();
    findings.any(|finding| finding.rule == rule && finding.severity == rule.severity)
}

#[test]
fn skipped_rules_without_directions_are_reported() {
    let mut lost = BTreeSet::new();
    for &(trace, packet, mistake, rule) in MISTAKES {
        let rule = Rule::find(rule).unwrap();
        let mut capture = mistaken(&load(trace), packet, mistake);
        for frame in &mut capture.frames {
            frame.direction = None;
        }
        let checked = check(&capture);
        assert!(checked.not_judged.without_order > 0, "{trace}");
        if !is_found(&checked, rule) && checked.unproven == 0 {
            lost.insert(rule.id);
        }
    }
    let need_order = NEED_ORDER.iter().map(|rule| rule.id).collect();
    assert!(lost.is_subset(&need_order), "{lost:?}");
    assert!(lost.contains("eor-early"), "{lost:?}");
}

#[test]
fn every_mistake_is_found_and_named() {
    let mut missed = Vec::new();
    for &(trace, packet, mistake, rule) in MISTAKES {
        let capture = load(trace);
        assert_eq!(check(&capture).at_least(Severity::Warning), 0, "{trace}");
        let rule = Rule::find(rule).unwrap();
        let checked = check(&mistaken(&capture, packet, mistake));
        if !is_found(&checked, rule) {
            let found: Vec<_> = checked
                .findings
                .iter()
                .map(|finding| (finding.rule.id, finding.severity.name()))
                .collect();
            missed.push(format!(
                "{trace} {packet:?} {mistake:?}: {} of {found:?}",
                rule.id
            ));
        }
    }
    assert!(
        missed.is_empty(),
        "{}:\n{}",
        missed.len(),
        missed.join("\n")
    );
    let rules: BTreeSet<_> = MISTAKES.iter().map(|(.., rule)| rule).collect();
    println!("{} mistakes, {} rules", MISTAKES.len(), rules.len());
}
