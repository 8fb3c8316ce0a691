//! Comparing packets field by field with what the protocol allows.
//!
//! The endpoint under test has another address, other operation ids and other memory than the recorded
//! one. [`Bindings`] map recorded values to actual ones. They also serve the scripted peer: its recorded
//! packets must name the addresses, ids and memory of the endpoint under test ([`Bindings::translate`]). The
//! scripted peer's own ids are unique numbers instead of the recorded ones, so that an endpoint that confuses
//! ids cannot name the right one by chance.

mod finding;
mod memory;
pub mod policy;
pub mod words;

use std::collections::HashMap;

use efa_core::address::{Gid, RawAddress};
use efa_core::rules::{self, Severity};
use efa_core::wire::fields::{Field, FieldName, Value, fields_of};
use efa_core::wire::{Packet, PacketType, PeerError};
use efa_play::operation::EndpointIndex;
use efa_play::scenario::PolicyOverride;

pub use finding::Finding;
pub use memory::{BoundRegion, IovEntry, iov_entry};
use policy::{AddressPart, IdKind, MemoryPart, Rule, kind_in_peer_error, may_repeat, rule};

/// The index of an operation among the operations of a trace.
pub type OperationIndex = usize;

/// A recorded packet with its sender, receiver and operation.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// Its number in the trace.
    pub number: u64,
    /// The endpoint that sent it.
    pub sender: EndpointIndex,
    /// The endpoint to which it was sent.
    pub receiver: EndpointIndex,
    /// The operation to which it belongs, if any.
    pub operation: Option<OperationIndex>,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Recorded<'_> {
    /// A finding about a field of this packet.
    pub fn finding(&self, severity: Severity, field: &Field<'_>, text: String) -> Finding {
        Finding {
            severity,
            rule: Some(policy::broken_by(field.packet_type, field.descriptor, 0)),
            packet: Some(self.number),
            packet_type: field.packet_type.to_string(),
            field: field.name().to_string(),
            source: Some(field.descriptor.source),
            text,
        }
    }
}

/// The map from recorded values to actual ones.
#[derive(Clone, Debug)]
pub struct Bindings {
    recorded: Vec<RawAddress>,
    actual: Vec<RawAddress>,
    /// The id that an endpoint has chosen for an operation.
    ids: HashMap<(OperationIndex, EndpointIndex, IdKind), u64>,
    /// The operation of each id that a scripted endpoint has chosen.
    scripted: HashMap<(EndpointIndex, IdKind, u64), OperationIndex>,
    constants: HashMap<(EndpointIndex, PacketType, FieldName), u64>,
    regions: Vec<BoundRegion>,
    policies: Vec<PolicyOverride>,
}

/// The first id of a scripted endpoint. Recorded ids are small numbers.
const FIRST_SCRIPTED_ID: u64 = 0x5EED_0001;

/// A scripted packet names something that the endpoint under test never introduced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unbound {
    /// The field.
    pub field: String,
    /// The recorded value.
    pub value: u64,
}

impl Bindings {
    /// Bindings for endpoints at `actual` addresses in place of those at `recorded` ones.
    pub fn new(
        recorded: Vec<RawAddress>,
        actual: Vec<RawAddress>,
        policies: &[PolicyOverride],
    ) -> Self {
        Bindings {
            recorded,
            actual,
            ids: HashMap::new(),
            scripted: HashMap::new(),
            constants: HashMap::new(),
            regions: Vec::new(),
            policies: policies.to_vec(),
        }
    }

    /// Returns the operation for which scripted endpoint `owner` chose `id`.
    pub fn operation_of(
        &self,
        owner: EndpointIndex,
        kind: IdKind,
        id: u64,
    ) -> Option<OperationIndex> {
        self.scripted.get(&(owner, kind, id)).copied()
    }

    /// Compares a packet with the recorded one in its place.
    pub fn compare(&mut self, recorded: Recorded<'_>, actual: &[u8]) -> Vec<Finding> {
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
            // Flags and counts determine which fields exist, and are compared themselves.
            let Some(found) = place else { continue };
            let checked = match &rule {
                Rule::Memory(part) => self
                    .check_memory(*part, recorded, actual, &expected, found)
                    .map_err(|wanted| (Severity::Error, wanted)),
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
                    // With a wrong type, no further field corresponds.
                    return findings;
                }
            }
        }
        findings.extend(self.check_added(recorded, &actual_fields));
        // A finding about a wrong field says more than the parse error that follows from it.
        if findings
            .iter()
            .all(|finding| finding.severity < Severity::Error)
            && let Err(error) = Packet::parse(actual)
        {
            findings.push(recorded.finding(Severity::Error, found, error.to_string()));
        }
        findings
    }

    /// Checks fields that only the actual packet has: the sender's identity must be its own.
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

    /// Applies a rule. The error is the severity, and the value that was expected.
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
                    compare_data(wanted, found).map_err(must)
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
                    // All packets of a message have the same id; a later CTS may have another one.
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
            Rule::Refers(kind) => {
                let bound = recorded
                    .operation
                    .and_then(|operation| self.ids.get(&(operation, recorded.receiver, *kind)));
                match bound {
                    Some(bound) if *bound == found_number => Ok(()),
                    Some(bound) => {
                        let bound = show(Value::Unsigned(*bound));
                        Err(must(format!("{bound}, as the peer introduced it")))
                    }
                    None => Err(must("an id that the peer has introduced".into())),
                }
            }
            Rule::MayRefer if found_number == u64::from(PeerError::NO_OP) => Ok(()),
            Rule::MayRefer => {
                let key = recorded
                    .operation
                    .zip(kind_in_peer_error(recorded.bytes))
                    .map(|(operation, kind)| (operation, recorded.receiver, kind));
                let bound = key.and_then(|key| self.ids.get(&key));
                if bound != Some(&found_number) {
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

    /// Returns the actual counterpart of a recorded part of an address. Hosts number their queue pairs alike,
    /// so a part is attributed to the packet's sender if it fits.
    fn address_of(
        &self,
        sender: EndpointIndex,
        part: AddressPart,
        recorded: Value<'_>,
    ) -> Option<Address> {
        let is_it = |at: &EndpointIndex| {
            let known = self.recorded.get(*at);
            known.is_some_and(|known| Address::of(part, *known).as_value() == recorded)
        };
        let at = std::iter::once(sender)
            .chain(0..self.recorded.len())
            .find(is_it)?;
        Some(Address::of(part, self.actual[at]))
    }

    /// Returns the id by which scripted endpoint `owner` names an operation.
    fn scripted_id(
        &mut self,
        operation: OperationIndex,
        owner: EndpointIndex,
        kind: IdKind,
    ) -> u64 {
        let next = FIRST_SCRIPTED_ID + self.scripted.len() as u64;
        let id = *self.ids.entry((operation, owner, kind)).or_insert(next);
        self.scripted.insert((owner, kind, id), operation);
        id
    }

    /// Rewrites a recorded packet of the scripted peer with the actual addresses, with unique ids, and with
    /// the ids and memory of the endpoint under test (`recorded.receiver`).
    pub fn translate(&mut self, recorded: Recorded<'_>) -> Result<Vec<u8>, Unbound> {
        let mut bytes = recorded.bytes.to_vec();
        for field in fields_of(recorded.bytes).into_iter().flatten() {
            let place = field.offset..field.offset + field.bytes.len();
            let unbound = || Unbound {
                field: field.name().to_string(),
                value: field.value.as_u64().unwrap_or(0),
            };
            let number = match rule(field.packet_type, field.descriptor, &self.policies) {
                Rule::Address(part) => {
                    // An address of no endpoint is sent as it was recorded.
                    if let Some(address) = self.address_of(recorded.sender, part, field.value) {
                        address.write(&mut bytes[place]);
                    }
                    continue;
                }
                Rule::Introduces(kind) => match recorded.operation {
                    Some(operation) => self.scripted_id(operation, recorded.sender, kind),
                    None => continue,
                },
                Rule::Refers(kind) => {
                    let key = recorded
                        .operation
                        .map(|operation| (operation, recorded.receiver, kind));
                    let bound = key.and_then(|key| self.ids.get(&key));
                    *bound.ok_or_else(unbound)?
                }
                Rule::MayRefer if field.value == Value::Unsigned(PeerError::NO_OP.into()) => {
                    continue;
                }
                Rule::MayRefer => {
                    let key = recorded
                        .operation
                        .zip(kind_in_peer_error(recorded.bytes))
                        .map(|(operation, kind)| (operation, recorded.receiver, kind));
                    let bound = key.and_then(|key| self.ids.get(&key));
                    *bound.ok_or_else(unbound)?
                }
                Rule::Memory(part) => {
                    let array = field.descriptor.name.split('.').next().unwrap_or("");
                    let owner = match part {
                        MemoryPart::SenderAddress | MemoryPart::SenderKey => recorded.sender,
                        MemoryPart::ReceiverAddress | MemoryPart::ReceiverKey => recorded.receiver,
                    };
                    let located = iov_entry(recorded.bytes, array, field.index)
                        .and_then(|entry| self.locate(owner, entry.remote))
                        .ok_or_else(unbound)?;
                    match part {
                        MemoryPart::SenderAddress | MemoryPart::ReceiverAddress => located.address,
                        MemoryPart::SenderKey | MemoryPart::ReceiverKey => located.key,
                    }
                }
                _ => continue,
            };
            let width = place.len();
            bytes[place].copy_from_slice(&number.to_le_bytes()[..width]);
        }
        Ok(bytes)
    }
}

/// Makes a difference a remark.
fn free(wanted: &str, same: bool) -> Result<(), (Severity, String)> {
    if same {
        return Ok(());
    }
    Err((Severity::Note, format!("{wanted} as recorded")))
}

fn numbers(expected: &Field<'_>, found: &Field<'_>) -> (u64, u64) {
    let number = |field: &Field<'_>| field.value.as_u64().unwrap_or(0);
    (number(expected), number(found))
}

/// Compares data. The error names the first difference instead of repeating all bytes.
pub fn compare_data(wanted: &[u8], found: &[u8]) -> Result<(), String> {
    if wanted == found {
        return Ok(());
    }
    let first = wanted.iter().zip(found).position(|(a, b)| a != b);
    Err(match first {
        Some(at) => format!(
            "{} bytes with {:#04x} at byte {at} instead of {:#04x}",
            wanted.len(),
            wanted[at],
            found[at]
        ),
        None => format!("{} bytes", wanted.len()),
    })
}

/// A part of a raw address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Address {
    Gid(Gid),
    Number(u64),
}

impl Address {
    fn of(part: AddressPart, address: RawAddress) -> Self {
        match part {
            AddressPart::Gid => Address::Gid(address.gid),
            AddressPart::Qpn => Address::Number(address.qpn.0.into()),
            AddressPart::Connid => Address::Number(address.qkey.0.into()),
        }
    }

    fn as_value(self) -> Value<'static> {
        match self {
            Address::Gid(gid) => Value::Gid(gid),
            Address::Number(number) => Value::Unsigned(number),
        }
    }

    fn write(self, place: &mut [u8]) {
        match self {
            Address::Gid(gid) => place.copy_from_slice(&gid.0),
            Address::Number(number) => {
                let width = place.len();
                place.copy_from_slice(&number.to_le_bytes()[..width]);
            }
        }
    }
}

#[cfg(test)]
mod tests;
