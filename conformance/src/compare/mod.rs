//! Comparing packets field by field.
//!
//! The endpoint under test is not the one that was recorded: it has another address, other operation
//! ids, other memory. [`Bindings`] keep which recorded value stands for which actual one. The same
//! bindings serve the scripted peer, whose recorded packets must name what the endpoint under test
//! has introduced ([`Bindings::translate`]).

mod memory;
pub mod policy;

use std::collections::HashMap;
use std::fmt;

use efa_core::address::{Gid, RawAddress};
use efa_core::wire::PacketType;
use efa_core::wire::fields::{Field, FieldName, Source, Value, fields_of};

use crate::scenario::{EndpointIndex, PolicyOverride};
pub use memory::{BoundRegion, IovEntry, iov_entry};
use policy::{AddressPart, IdKind, MemoryPart, Rule, rule};

/// A difference between a packet and what it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The packet's number in the trace.
    pub packet: u64,
    /// The packet's type in the trace.
    pub packet_type: String,
    /// The field.
    pub field: String,
    /// Where the field is defined.
    pub source: Option<Source>,
    /// What it should be.
    pub expected: String,
    /// What it is.
    pub actual: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "packet {} ({}), field `{}`",
            self.packet, self.packet_type, self.field
        )?;
        if let Some(source) = self.source {
            write!(f, " ({source})")?;
        }
        write!(f, ": expected {}, actual {}", self.expected, self.actual)
    }
}

/// A recorded packet with where it came from.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// Its number in the trace.
    pub number: u64,
    /// The endpoint that sent it.
    pub sender: EndpointIndex,
    /// The endpoint to which it was sent.
    pub receiver: EndpointIndex,
    /// Its bytes.
    pub bytes: &'a [u8],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Key {
    Id(EndpointIndex, IdKind, u64),
    Constant(EndpointIndex, PacketType, FieldName),
}

/// Which recorded value stands for which actual one.
#[derive(Clone, Debug)]
pub struct Bindings {
    recorded: Vec<RawAddress>,
    actual: Vec<RawAddress>,
    values: HashMap<Key, u64>,
    regions: Vec<BoundRegion>,
    policies: Vec<PolicyOverride>,
}

/// A scripted packet names something that the endpoint under test never introduced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unbound {
    /// The field.
    pub field: String,
    /// The recorded value.
    pub value: u64,
}

impl Bindings {
    /// Endpoints at `recorded` addresses are played by endpoints at `actual` ones.
    pub fn new(
        recorded: Vec<RawAddress>,
        actual: Vec<RawAddress>,
        policies: &[PolicyOverride],
    ) -> Self {
        Bindings {
            recorded,
            actual,
            values: HashMap::new(),
            regions: Vec::new(),
            policies: policies.to_vec(),
        }
    }

    /// Compares a packet with the recorded one in its place.
    pub fn compare(&mut self, recorded: Recorded<'_>, actual: &[u8]) -> Vec<Mismatch> {
        let Some(walk) = fields_of(recorded.bytes) else {
            return self.compare_bytes(recorded, actual);
        };
        let packet_type = walk.clone().next().map(|field| field.packet_type);
        let packet_type = packet_type.map_or_else(String::new, |t| t.to_string());
        let mismatch = |field: &Field<'_>, expected: String, actual: String| Mismatch {
            packet: recorded.number,
            packet_type: packet_type.clone(),
            field: field.name().to_string(),
            source: Some(field.descriptor.source),
            expected,
            actual,
        };
        let actual_fields: Vec<Field<'_>> = fields_of(actual).into_iter().flatten().collect();
        let show = |field: &Field<'_>| {
            field
                .descriptor
                .display(field.packet_type, field.value)
                .to_string()
        };
        let mut mismatches = Vec::new();
        let mut matched = vec![false; actual_fields.len()];
        for expected in walk {
            let place = actual_fields
                .iter()
                .position(|field| field.name() == expected.name());
            let rule = rule(expected.packet_type, expected.descriptor, &self.policies);
            let Some(place) = place else {
                if !is_optional(&rule) && !explained(&mismatches) {
                    mismatches.push(mismatch(&expected, show(&expected), "absent".into()));
                }
                continue;
            };
            matched[place] = true;
            let found = &actual_fields[place];
            let checked = match &rule {
                Rule::Memory(part) => self.check_memory(*part, recorded, actual, &expected, found),
                rule => self.check(rule, recorded, &expected, found),
            };
            if let Err(wanted) = checked {
                mismatches.push(mismatch(&expected, wanted, show(found)));
                if expected.descriptor.name == "type" {
                    // Nothing behind it means the same.
                    return mismatches;
                }
            }
        }
        for (field, _) in actual_fields.iter().zip(matched).filter(|(_, seen)| !seen) {
            let rule = rule(field.packet_type, field.descriptor, &self.policies);
            if !is_optional(&rule) && !explained(&mismatches) {
                mismatches.push(mismatch(field, "absent".into(), show(field)));
            }
        }
        mismatches
    }

    /// Packets of unassigned types have no fields but their type.
    fn compare_bytes(&self, recorded: Recorded<'_>, actual: &[u8]) -> Vec<Mismatch> {
        let show = |bytes: &[u8]| match bytes.first() {
            Some(code) => match PacketType::from_code(*code) {
                Some(packet_type) => format!("{code} ({packet_type})"),
                None => format!("{code} (not assigned)"),
            },
            None => "an empty packet".into(),
        };
        if recorded.bytes == actual {
            return Vec::new();
        }
        let source = efa_core::wire::fields::find(PacketType::Handshake, "type");
        vec![Mismatch {
            packet: recorded.number,
            packet_type: "unassigned type".into(),
            field: "type".into(),
            source: source.map(|field| field.source),
            expected: show(recorded.bytes),
            actual: show(actual),
        }]
    }

    /// Applies a rule; the error is what the value should have been.
    fn check(
        &mut self,
        rule: &Rule,
        recorded: Recorded<'_>,
        expected: &Field<'_>,
        found: &Field<'_>,
    ) -> Result<(), String> {
        let show = |value: Value<'_>| {
            expected
                .descriptor
                .display(expected.packet_type, value)
                .to_string()
        };
        let same = |ok: bool, wanted: Value<'_>| if ok { Ok(()) } else { Err(show(wanted)) };
        match rule {
            // Memory is looked at together with its length.
            Rule::Ignored | Rule::Memory(_) => Ok(()),
            Rule::Exact => match (expected.value, found.value) {
                (Value::Bytes(wanted), Value::Bytes(found)) => compare_data(wanted, found),
                (wanted, found) => same(wanted == found, wanted),
            },
            Rule::Masked(mask) => {
                let (wanted, found) = numbers(expected, found);
                same(wanted & mask == found & mask, expected.value)
                    .map_err(|text| format!("{text} in the bits {mask:#x}"))
            }
            Rule::OneOf(values) => {
                let (wanted, found) = numbers(expected, found);
                let list: Vec<_> = values.iter().map(|v| show(Value::Unsigned(*v))).collect();
                let list = list.join(", ");
                if !values.contains(&wanted) {
                    return Err(format!("{wanted} as recorded, which is not one of {list}"));
                }
                if !values.contains(&found) {
                    return Err(format!("one of {list}"));
                }
                Ok(())
            }
            Rule::Address(part) => {
                let wanted = self.address_of(recorded.sender, *part, expected.value);
                let note = |text| format!("{text} (recorded {})", show(expected.value));
                match wanted {
                    Some(wanted) => {
                        let wanted = wanted.as_value();
                        same(wanted == found.value, wanted).map_err(note)
                    }
                    None => {
                        let own = self.actual[recorded.sender];
                        let own = Address::of(*part, own);
                        Err(format!(
                            "{}, but the trace has {}, which is no endpoint's",
                            show(own.as_value()),
                            show(expected.value)
                        ))
                    }
                }
            }
            Rule::Introduces(kind) => {
                let (wanted, found) = numbers(expected, found);
                self.values
                    .insert(Key::Id(recorded.sender, *kind, wanted), found);
                Ok(())
            }
            Rule::Refers(kind) => {
                // What the scripted peer introduced keeps its recorded value.
                let (wanted, found) = numbers(expected, found);
                same(wanted == found, expected.value)
                    .map_err(|text| format!("{text}, as the peer introduced it"))
                    .or_else(|error| {
                        let key = Key::Id(recorded.receiver, *kind, wanted);
                        match self.values.get(&key) {
                            Some(bound) if *bound == found => Ok(()),
                            _ => Err(error),
                        }
                    })
            }
            Rule::Constant => {
                let (_, found) = numbers(expected, found);
                let key = Key::Constant(recorded.sender, expected.packet_type, expected.name());
                let first = *self.values.entry(key).or_insert(found);
                same(first == found, Value::Unsigned(first))
                    .map_err(|text| format!("{text} as before"))
            }
        }
    }

    /// The actual counterpart of a recorded part of an address. Hosts number their queue pairs alike,
    /// so what a packet says is taken to be about its sender if that is possible.
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

    /// Rewrites a recorded packet of the scripted peer so that it names the actual endpoints and
    /// what the endpoint under test (`recorded.receiver`) has introduced.
    pub fn translate(&self, recorded: Recorded<'_>) -> Result<Vec<u8>, Unbound> {
        let mut bytes = recorded.bytes.to_vec();
        for field in fields_of(recorded.bytes).into_iter().flatten() {
            let place = field.offset..field.offset + field.bytes.len();
            match rule(field.packet_type, field.descriptor, &self.policies) {
                Rule::Address(part) => {
                    // An address that no endpoint has is sent as it was recorded.
                    if let Some(address) = self.address_of(recorded.sender, part, field.value) {
                        address.write(&mut bytes[place]);
                    }
                }
                Rule::Refers(kind) => {
                    let value = field.value.as_u64().unwrap_or(0);
                    let key = Key::Id(recorded.receiver, kind, value);
                    let Some(bound) = self.values.get(&key) else {
                        return Err(Unbound {
                            field: field.name().to_string(),
                            value,
                        });
                    };
                    let width = place.len();
                    bytes[place].copy_from_slice(&bound.to_le_bytes()[..width]);
                }
                Rule::Memory(part) => {
                    let array = field.descriptor.name.split('.').next().unwrap_or("");
                    let owner = match part {
                        MemoryPart::SenderAddress | MemoryPart::SenderKey => recorded.sender,
                        MemoryPart::ReceiverAddress | MemoryPart::ReceiverKey => recorded.receiver,
                    };
                    let located = iov_entry(recorded.bytes, array, field.index)
                        .and_then(|entry| self.locate(owner, entry.remote));
                    let Some(located) = located else {
                        return Err(Unbound {
                            field: field.name().to_string(),
                            value: field.value.as_u64().unwrap_or(0),
                        });
                    };
                    let value = match part {
                        MemoryPart::SenderAddress | MemoryPart::ReceiverAddress => located.address,
                        MemoryPart::SenderKey | MemoryPart::ReceiverKey => located.key,
                    };
                    bytes[place].copy_from_slice(&value.to_le_bytes());
                }
                _ => {}
            }
        }
        Ok(bytes)
    }
}

/// A field that may be missing on either side.
fn is_optional(rule: &Rule) -> bool {
    matches!(rule, Rule::Ignored | Rule::Constant)
}

/// Whether differing flags or counts already explain why fields are missing.
fn explained(mismatches: &[Mismatch]) -> bool {
    mismatches.iter().any(|mismatch| {
        matches!(
            mismatch.field.as_str(),
            "flags" | "rma_iov_count" | "read_iov_count" | "nextra_p3" | "raw_addr.size"
        )
    })
}

fn numbers(expected: &Field<'_>, found: &Field<'_>) -> (u64, u64) {
    let number = |field: &Field<'_>| field.value.as_u64().unwrap_or(0);
    (number(expected), number(found))
}

/// Compares data; the error says where it differs rather than repeating all of it.
fn compare_data(wanted: &[u8], found: &[u8]) -> Result<(), String> {
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
