//! Comparison of a packet's fields with those of the recorded packet.

use efa_core::rules::{self, Severity};
use efa_core::wire::fields::{Field, FieldName, Value, fields_of};
use efa_core::wire::{Packet, PeerError};

use super::address::Address;
use super::bindings::Bindings;
use super::data::compare_data;
use super::finding::Finding;
use super::policy::{self, Rule, kind_in_peer_error, may_repeat, rule};
use super::recorded::{Recorded, numbers};

impl Bindings {
    /// Compares a packet with its recorded counterpart.
    pub(crate) fn compare(&mut self, recorded: Recorded<'_>, actual: &[u8]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let actual_fields: Vec<Field<'_>> = fields_of(actual).into_iter().flatten().collect();
        let show = |field: &Field<'_>| {
            let shown = field.descriptor.display(field.packet_type, field.value);
            shown.to_string()
        };
        let Some(found) = actual_fields.first() else {
            let text = match actual.first() {
                Some(code) => format!("a packet of type {code}, which is not assigned"),
                None => "an empty packet".into(),
            };
            let mut finding = Finding::plain(Severity::Error, text);
            finding.rule = Some(&rules::PACKET_FORM);
            return vec![finding];
        };
        for expected in fields_of(recorded.bytes).into_iter().flatten() {
            let rule = rule(expected.packet_type, expected.descriptor, &self.policies);
            let place = actual_fields
                .iter()
                .find(|field| field.name() == expected.name());
            // A missing field follows from flags and counts, which are compared themselves.
            let Some(found) = place else { continue };
            let checked = match &rule {
                Rule::Memory(part) => self
                    .check_memory(*part, recorded, actual, &expected, found)
                    .map_err(|mismatch| (Severity::Error, mismatch.to_string())),
                rule => self.check(rule, recorded, &expected, found),
            };
            if let Err((mut severity, wanted)) = checked {
                if expected.descriptor.name == "type"
                    && may_repeat(expected.packet_type, found.packet_type)
                {
                    severity = Severity::Note;
                }
                let text = format!("expected {wanted}, actual {}", show(found));
                let (wanted, found) = numbers(&expected, found);
                let (kind, field) = (expected.packet_type, expected.descriptor);
                findings.push(Finding {
                    rule: Some(policy::broken_by(kind, field, wanted ^ found)),
                    ..recorded.finding(severity, &expected, text)
                });
                if expected.descriptor.name == "type" && severity == Severity::Error {
                    // With a wrong type, no further fields correspond.
                    return findings;
                }
            }
        }
        findings.extend(self.check_added(recorded, &actual_fields));
        // A wrong field explains more than the resulting parse error.
        if findings
            .iter()
            .all(|finding| finding.severity < Severity::Error)
            && let Err(error) = Packet::parse(actual)
        {
            findings.push(recorded.finding(Severity::Error, found, error.to_string()));
        }
        findings
    }

    /// Checks fields that only the actual packet has: the sender's identity must be correct.
    fn check_added(&mut self, recorded: Recorded<'_>, actual: &[Field<'_>]) -> Vec<Finding> {
        let known: Vec<FieldName> = fields_of(recorded.bytes)
            .into_iter()
            .flatten()
            .map(|field| field.name())
            .collect();
        let mut findings = Vec::new();
        for field in actual.iter().filter(|field| !known.contains(&field.name())) {
            let rule = rule(field.packet_type, field.descriptor, &self.policies);
            let bounded = matches!(rule, Rule::Address(_) | Rule::AtLeast(_) | Rule::Constant);
            if bounded && let Err((severity, wanted)) = self.check(&rule, recorded, field, field) {
                let shown = field.descriptor.display(field.packet_type, field.value);
                let text = format!("expected {wanted}, actual {shown}");
                findings.push(recorded.finding(severity, field, text));
            }
        }
        findings
    }

    /// Applies a rule. The error is the severity and the expected value.
    fn check(
        &mut self,
        rule: &Rule,
        recorded: Recorded<'_>,
        expected: &Field<'_>,
        found: &Field<'_>,
    ) -> Result<(), (Severity, String)> {
        let show = |value: Value<'_>| {
            expected
                .descriptor
                .display(expected.packet_type, value)
                .to_string()
        };
        let must = |text: String| (Severity::Error, text);
        let same = |ok: bool, wanted: Value<'_>| {
            if ok { Ok(()) } else { Err(must(show(wanted))) }
        };
        let (wanted_number, found_number) = numbers(expected, found);
        match rule {
            // Memory is compared together with its length, segments with their operation.
            Rule::Ignored | Rule::Memory(_) | Rule::Segment => Ok(()),
            Rule::Exact => match (expected.value, found.value) {
                (Value::Bytes(wanted), Value::Bytes(found)) => {
                    compare_data(wanted, found).map_err(|difference| must(difference.to_string()))
                }
                (wanted, found) => same(wanted == found, wanted),
            },
            Rule::Masked(mask) => {
                if wanted_number & mask != found_number & mask {
                    let text = format!("{} in the bits {mask:#x}", show(expected.value));
                    return Err(must(text));
                }
                free(&show(expected.value), wanted_number == found_number)
            }
            Rule::Free => free(&show(expected.value), expected.value == found.value),
            Rule::AtLeast(least) => {
                if found_number < *least {
                    let least = show(Value::Unsigned(*least));
                    return Err(must(format!("{least} or more")));
                }
                free(&show(expected.value), wanted_number == found_number)
            }
            Rule::OneOf(values) => {
                let list: Vec<_> = values.iter().map(|v| show(Value::Unsigned(*v))).collect();
                let list = list.join(", ");
                if values.contains(&found_number) {
                    return Ok(());
                }
                Err(must(format!("one of {list}")))
            }
            Rule::Address(part) => {
                let wanted = Address::of(*part, self.actual[recorded.sender]).as_value();
                let note = |(severity, text)| (severity, format!("{text}, the sender's own"));
                same(wanted == found.value, wanted).map_err(note)
            }
            Rule::Introduces(kind) => {
                if let Some(operation) = recorded.operation {
                    let key = (operation, recorded.sender, *kind);
                    let known = self.ids.insert(key, found_number);
                    // All packets of a message have the same id. Only a later CTS may have another
                    // one.
                    if let Some(known) = known
                        && known != found_number
                        && expected.packet_type.is_req()
                    {
                        let known = show(Value::Unsigned(known));
                        return Err(must(format!("{known} as in the message's first packet")));
                    }
                }
                Ok(())
            }
            Rule::Refers(kind) => match self.receivers_id(recorded, *kind) {
                Some(bound) if bound == found_number => Ok(()),
                Some(bound) => {
                    let bound = show(Value::Unsigned(bound));
                    Err(must(format!("{bound}, as the peer introduced it")))
                }
                None => Err(must("an id that the peer has introduced".into())),
            },
            Rule::MayRefer if found_number == u64::from(PeerError::NO_OP) => Ok(()),
            Rule::MayRefer => {
                let bound = kind_in_peer_error(recorded.bytes)
                    .and_then(|kind| self.receivers_id(recorded, kind));
                if bound != Some(found_number) {
                    return Err(must("an id that the peer has introduced".into()));
                }
                Ok(())
            }
            Rule::Constant => {
                let key = (recorded.sender, expected.packet_type, expected.name());
                let first = *self.constants.entry(key).or_insert(found_number);
                same(first == found_number, Value::Unsigned(first))
                    .map_err(|(severity, text)| (severity, format!("{text} as before")))
            }
        }
    }
}

/// Reports a difference as a note.
fn free(wanted: &str, same: bool) -> Result<(), (Severity, String)> {
    if same {
        return Ok(());
    }
    Err((Severity::Note, format!("{wanted} as recorded")))
}
