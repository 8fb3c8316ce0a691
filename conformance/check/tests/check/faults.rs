//! `check` finds packets that are missing, repeated or early in correct captures of stock software;
//! each mistake is listed with the rule that has to be reported.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_capture::frame::FrameKind;
use efa_check::capture::{Capture, CapturedPacket};
use efa_check::check::{CheckResult, NEED_ORDER, check};
use efa_testing::workspace::traces;
use efa_wire::rules::{Rule, Severity};

use crate::numbers::{close_gap, next_number};

/// A packet of a trace: its type, and its index among the packets of this type that its host sends.
type Packet = (&'static str, usize);

/// A mistake. Those in fields are in `docs/mutations.md`.
#[derive(Clone, Copy, Debug)]
enum Mistake {
    /// The packet is never sent.
    Missing,
    /// The packet is sent twice.
    Twice,
    /// The packet is sent before another one.
    Before(Packet),
}

use Mistake::*;

/// (trace, packet, mistake, rule)
#[rustfmt::skip]
const MISTAKES: &[(&str, Packet, Mistake, &str)] = &[
    ("eager-tagged", ("HANDSHAKE", 0), Twice, "handshake-once"),
    ("ping-pong", ("EAGER_TAGRTM", 2), Twice, "msg-id-once"),
    ("ping-pong", ("HANDSHAKE", 0), Missing, "raw-address-first"),
    ("medium-untagged", ("MEDIUM_MSGRTM", 1), Twice, "msg-id-once"),
    ("long-cts", ("CTS", 1), Before(("CTSDATA", 3)), "cts-early"),
    ("long-cts", ("CTS", 1), Twice, "answer-names-request"),
    ("long-cts", ("CTS", 1), Missing, "cts-window"),
    ("long-cts", ("CTSDATA", 0), Before(("CTS", 0)), "ctsdata-names-cts"),
    ("long-cts", ("CTSDATA", 0), Twice, "segment-overlap"),
    ("long-cts", ("CTSDATA", 4), Missing, "cts-early"),
    ("long-read", ("EOR", 0), Before(("RDMA_READ_REQUEST", 0)), "eor-early"),
    ("long-read", ("EOR", 0), Before(("LONGREAD_MSGRTM", 0)), "answer-names-request"),
    ("long-read", ("EOR", 0), Twice, "one-answer"),
    ("long-read", ("RDMA_READ_REQUEST", 0), Missing, "eor-early"),
    ("read-emulated", ("READRSP", 0), Twice, "answer-names-request"),
    ("read-emulated", ("READRSP", 0), Before(("SHORT_RTR", 0)), "answer-names-request"),
    ("delivery-complete", ("RECEIPT", 0), Before(("DC_EAGER_MSGRTM", 0)), "answer-names-request"),
    ("delivery-complete", ("RECEIPT", 1), Before(("DC_MEDIUM_TAGRTM", 2)), "receipt-early"),
    ("delivery-complete", ("RECEIPT", 2), Before(("CTSDATA", 6)), "receipt-early"),
    ("delivery-complete", ("RECEIPT", 2), Twice, "one-answer"),
    ("delivery-complete", ("RECEIPT", 0), Missing, "id-in-use"),
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

/// A copy of a capture with this mistake.
fn mistaken(capture: &Capture, packet: Packet, mistake: Mistake) -> Capture {
    let mut capture = capture.clone();
    let wrong = find(&capture, packet);
    match mistake {
        Missing => {
            let is_omitted = |frame: &mut CapturedPacket| {
                let answers = matches!(frame.header.kind, FrameKind::RdmaReadResponse(_))
                    && frame.header.sequence == wrong.2
                    && frame.destination == wrong.0;
                key(frame) == wrong || answers
            };
            let omitted: Vec<_> = capture.frames.extract_if(.., is_omitted).collect();
            close_gap(&mut capture.frames, &omitted[0]);
        }
        Twice => {
            let again: Vec<_> = capture
                .frames
                .iter()
                .filter(|frame| key(frame) == wrong)
                .cloned()
                .collect();
            let next = next_number(&capture.frames, &again[0]);
            for mut frame in again {
                frame.header.sequence = next;
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
    }
    for (number, frame) in (1..).zip(&mut capture.frames) {
        frame.number = number;
        frame.time = Duration::from_micros(number);
    }
    capture
}

fn is_found(checked: &CheckResult, rule: &Rule) -> bool {
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
        let rule = Rule::find(rule).unwrap();
        let capture = load(trace);
        assert_eq!(check(&capture).at_least(Severity::Warning), 0, "{trace}");
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
}
