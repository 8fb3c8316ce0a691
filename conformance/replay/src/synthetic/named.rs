//! The keys of a `[[packet]]`: field names with their values.

use std::collections::BTreeMap;

use efa_core::wire::PacketType;
use efa_core::wire::fields::{self, FieldName, LayoutField};
use efa_play::scenario::{Scenario, ScenarioError, WrittenPacket, suggest};
use toml::Value;

/// A value with its position.
#[derive(Clone, Copy)]
pub(super) struct KeyValue<'s> {
    /// The key as written.
    pub(super) key: &'s str,
    pub(super) line: usize,
    pub(super) value: &'s Value,
}

/// The keys of one packet.
pub(super) struct PacketKeys<'s> {
    scenario: &'s Scenario,
    line: usize,
    /// Keys that are not fields.
    others: BTreeMap<&'static str, KeyValue<'s>>,
    /// Fields, by name and entry of their array.
    fields: BTreeMap<(&'static str, Option<usize>), KeyValue<'s>>,
}

/// Keys of packets that are not fields; `from` and `to` were read with the scenario.
const OTHERS: [&str; 4] = ["type", "of", "length", "data"];
/// Keys of RDMA requests.
pub(super) const OF_REQUESTS: [&str; 4] = ["type", "of", "length", "offset"];

impl<'s> PacketKeys<'s> {
    /// Sorts the keys of a packet. `type` is a key and a field.
    pub(super) fn of(scenario: &'s Scenario, packet: &'s WrittenPacket) -> Self {
        let mut named = PacketKeys {
            scenario,
            line: packet.line,
            others: BTreeMap::new(),
            fields: BTreeMap::new(),
        };
        for key in &packet.keys {
            let mut known = OTHERS.iter().chain(&OF_REQUESTS);
            if let Some(other) = known.find(|other| **other == key.name) {
                let given = KeyValue {
                    key: &key.name,
                    line: key.line,
                    value: &key.value,
                };
                named.others.insert(other, given);
            }
        }
        named
    }

    pub(super) fn read_fields(
        &mut self,
        packet: &'s WrittenPacket,
        packet_type: PacketType,
    ) -> Result<(), ScenarioError> {
        for key in &packet.keys {
            if OTHERS.contains(&key.name.as_str()) {
                continue;
            }
            let given = KeyValue {
                key: &key.name,
                line: key.line,
                value: &key.value,
            };
            match &key.value {
                Value::Table(members) => {
                    for (member, value) in members {
                        let name = format!("{}.{member}", key.name);
                        self.field(packet_type, &name, None, KeyValue { value, ..given })?;
                    }
                }
                // An array of flags may be a single name.
                Value::String(_) if is_array(packet_type, &key.name) => {
                    self.field(packet_type, &key.name, Some(0), given)?;
                }
                Value::Array(entries)
                    if is_array(packet_type, &key.name) && entries.iter().all(Value::is_str) =>
                {
                    self.field(packet_type, &key.name, Some(0), given)?;
                }
                Value::Array(entries) if is_array(packet_type, &key.name) => {
                    for (index, entry) in entries.iter().enumerate() {
                        let Value::Table(members) = entry else {
                            let given = KeyValue {
                                value: entry,
                                ..given
                            };
                            self.field(packet_type, &key.name, Some(index), given)?;
                            continue;
                        };
                        for (member, value) in members {
                            let name = format!("{}.{member}", key.name);
                            let given = KeyValue { value, ..given };
                            self.field(packet_type, &name, Some(index), given)?;
                        }
                    }
                }
                _ => self.field(packet_type, &key.name, None, given)?,
            }
        }
        Ok(())
    }

    fn field(
        &mut self,
        packet_type: PacketType,
        name: &str,
        index: Option<usize>,
        given: KeyValue<'s>,
    ) -> Result<(), ScenarioError> {
        let place = fields::layout(packet_type).find(|place| place.descriptor.name == name);
        let Some(place) = place else {
            let known: Vec<String> = fields::layout(packet_type).map(shown).collect();
            return Err(self.error(
                given,
                format!("{packet_type} has no field `{name}`"),
                suggest(name, known.iter().map(String::as_str)),
            ));
        };
        match (place.array, index) {
            (Some(_), None) => {
                let array = name.split('.').next().unwrap_or(name);
                return Err(self.error(
                    given,
                    format!("`{array}` is an array"),
                    format!("write `{array} = [...]`, an entry for each element"),
                ));
            }
            (None, Some(_)) => {
                let problem = format!("`{name}` is not an array");
                return Err(self.error(given, problem, "give it one value"));
            }
            _ => {}
        }
        self.fields.insert((place.descriptor.name, index), given);
        Ok(())
    }

    pub(super) fn get(&self, name: FieldName) -> Option<KeyValue<'s>> {
        self.fields.get(&(name.name, name.index)).copied()
    }

    /// Whether the field is given, in any entry.
    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.keys().any(|(known, _)| *known == name)
    }

    /// The number of given entries of an array, by the first part of its fields' names.
    pub(super) fn entries(&self, array: &str) -> Option<usize> {
        let of_array = |name: &str| name.split('.').next() == Some(array);
        let indices = self.fields.keys().filter(|(name, _)| of_array(name));
        indices.filter_map(|(_, index)| Some((*index)? + 1)).max()
    }

    /// The value of a key that is not a field, if it is given.
    pub(super) fn other(&self, key: &str) -> Option<KeyValue<'s>> {
        self.others.get(key).copied()
    }

    pub(super) fn need_text(&self, key: &str) -> Result<(&'s str, KeyValue<'s>), ScenarioError> {
        let Some(given) = self.other(key) else {
            return Err(self.scenario.error_at(
                self.line,
                key,
                "the packet needs this key",
                format!("add `{key} = \"...\"`"),
            ));
        };
        match given.value {
            Value::String(text) => Ok((text, given)),
            other => Err(self.error(given, format!("`{other}` is not text"), "put it in quotes")),
        }
    }

    pub(super) fn error(
        &self,
        given: KeyValue<'_>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ScenarioError {
        self.scenario
            .error_at(given.line, given.key, problem, remedy)
    }

    /// An error about the packet as a whole.
    pub(super) fn whole(
        &self,
        key: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ScenarioError {
        self.scenario.error_at(self.line, key, problem, remedy)
    }
}

/// Whether this is the first part of an array's field names.
fn is_array(packet_type: PacketType, name: &str) -> bool {
    fields::layout(packet_type)
        .any(|place| place.array.is_some() && place.descriptor.name.split('.').next() == Some(name))
}

fn shown(place: LayoutField) -> String {
    place.descriptor.name.to_owned()
}
