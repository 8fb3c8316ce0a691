//! Departures from the suite's policy for comparing fields.

use std::collections::BTreeSet;

use efa_core::wire::{PacketType, fields};
use serde::Deserialize;

use super::error::{Result, Source, suggest};
use super::keys::{Keys, RawTable};

/// A per-trace departure from the suite's policy for one field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyOverride {
    /// The line of the file on which it begins, counted from 1.
    pub line: usize,
    /// Packet type, such as `HANDSHAKE`; `*` is any.
    pub packet: String,
    /// Field, such as `extra_info`.
    pub field: String,
    /// The policy instead of the suite's.
    pub policy: FieldPolicy,
    /// The author's reason, which reports quote.
    pub reason: String,
}

/// How a field of a packet under test is compared with the recorded one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldPolicy {
    /// The same value.
    Exact,
    /// A pair of values that occurred once has to occur together from then on.
    Bound,
    /// Any value.
    Ignored,
    /// One of these values.
    OneOf(Vec<u64>),
}

/// The names of [`FieldPolicy`].
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PolicyName {
    Exact,
    Bound,
    Ignored,
    OneOf,
}

pub(super) fn policy(source: &Source<'_>, table: RawTable) -> Result<PolicyOverride> {
    let mut keys = Keys::new(source, "a policy", table);
    let named: String = keys.need("field")?;
    let Some((packet, field)) = named.split_once('.') else {
        return Err(keys.error(
            "field",
            format!("`{named}` does not name a field"),
            "write PACKET_TYPE.field, for example \"HANDSHAKE.extra_info\" or \"*.flags\"",
        ));
    };
    let types: Vec<PacketType> = PacketType::ALL
        .iter()
        .copied()
        .filter(|packet_type| packet == "*" || packet_type.name() == packet)
        .collect();
    if types.is_empty() {
        return Err(keys.error(
            "field",
            format!("unknown packet type `{packet}`"),
            suggest(packet, PacketType::ALL.iter().map(|t| t.name())),
        ));
    }
    let names: BTreeSet<&str> = types
        .iter()
        .flat_map(|packet_type| fields::layout(*packet_type))
        .map(|place| place.descriptor.name)
        .collect();
    if !names.contains(field) {
        return Err(keys.error(
            "field",
            format!("`{packet}` has no field `{field}`"),
            suggest(field, names.into_iter()),
        ));
    }
    let policy = match (keys.need("policy")?, keys.optional("values")?) {
        (PolicyName::Exact, None) => FieldPolicy::Exact,
        (PolicyName::Bound, None) => FieldPolicy::Bound,
        (PolicyName::Ignored, None) => FieldPolicy::Ignored,
        (PolicyName::OneOf, Some(values)) => FieldPolicy::OneOf(values),
        (PolicyName::OneOf, None) => {
            return Err(keys.error("values", "`one-of` needs values", "add `values = [...]`"));
        }
        (_, Some(_)) => {
            return Err(keys.error("values", "only `one-of` takes values", "remove `values`"));
        }
    };
    let policy = PolicyOverride {
        line: keys.line,
        packet: packet.to_owned(),
        field: field.to_owned(),
        policy,
        reason: keys.need("reason")?,
    };
    keys.finish()?;
    Ok(policy)
}
