//! A check of a trace without a replay: each packet is parsed and emitted again.

use efa_core::rules::Severity;
use efa_core::wire::fields::fields_of;
use efa_core::wire::{Packet, Repr};
use efa_play::trace::Trace;

use super::frames::sent_requests;
use crate::compare::{Finding, Recorded};

/// Parses every packet of a trace and emits it again. The results must be equal except for bytes
/// without a meaning. Returns the number of packets and the problems.
pub fn check(trace: &Trace) -> (usize, Vec<String>) {
    let mut problems = Vec::new();
    let mut count = 0;
    for place in sent_requests(trace) {
        let frame = &trace.capture.frames[place];
        let Some(bytes) = frame.rdm() else {
            // A message without a header.
            continue;
        };
        count += 1;
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => {
                let (number, kind) = (frame.number, frame.kind());
                problems.push(format!("packet {number} ({kind}): {error}"));
                continue;
            }
        };
        let written = packet.header.to_packet(packet.payload.of(bytes));
        let recorded = Recorded {
            number: frame.number,
            sender: 0,
            receiver: 1,
            operation: None,
            bytes: &frame.payload,
        };
        let mismatches = rewritten(recorded, &written);
        problems.extend(mismatches.iter().map(ToString::to_string));
    }
    (count, problems)
}

/// Compares a packet with the result of parsing and emitting it: all values, independent of their
/// policy.
fn rewritten(recorded: Recorded<'_>, written: &[u8]) -> Vec<Finding> {
    let before = fields_of(recorded.bytes).into_iter().flatten();
    let after: Vec<_> = fields_of(written).into_iter().flatten().collect();
    let mut mismatches = Vec::new();
    for field in before {
        if matches!(
            field.descriptor.kind,
            efa_core::wire::fields::FieldKind::Padding
        ) {
            continue;
        }
        let same = after.iter().find(|other| other.name() == field.name());
        if same.is_some_and(|other| other.value == field.value) {
            continue;
        }
        let show = |value| {
            field
                .descriptor
                .display(field.packet_type, value)
                .to_string()
        };
        let found = same.map_or_else(|| "absent".into(), |other| show(other.value));
        let text = format!("expected {}, actual {found}", show(field.value));
        mismatches.push(recorded.finding(Severity::Error, &field, text));
    }
    mismatches
}
