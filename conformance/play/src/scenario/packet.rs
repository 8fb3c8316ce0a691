//! Packets that are written by hand.

use std::collections::BTreeMap;

use toml::Spanned;

use super::endpoint::{EndpointSpec, endpoint_named};
use super::error::{Result, Source};
use crate::operation::EndpointIndex;

/// A packet that is written by hand, as in the file: `efa_replay::synthetic` interprets its keys.
#[derive(Clone, PartialEq, Debug)]
pub struct WrittenPacket {
    /// The line of the file on which it begins.
    pub line: usize,
    /// The step during which it is sent: the last one before it.
    pub step: usize,
    /// The endpoint that sends it.
    pub from: EndpointIndex,
    /// The endpoint that it is addressed to.
    pub to: EndpointIndex,
    /// Its other keys.
    pub keys: Vec<WrittenKey>,
}

/// A key of a packet.
#[derive(Clone, PartialEq, Debug)]
pub struct WrittenKey {
    /// The key as written, such as a field of the packet's format.
    pub name: String,
    /// The line of the file on which it is, counted from 1.
    pub line: usize,
    /// Its value, which is not interpreted yet.
    pub value: toml::Value,
}

/// Reads a packet that is written by hand. Keys that depend on its type are checked later.
pub(super) fn packet(
    source: &Source<'_>,
    endpoints: &[EndpointSpec],
    starts_of_steps: &[usize],
    raw: Spanned<BTreeMap<Spanned<String>, toml::Value>>,
) -> Result<WrittenPacket> {
    let start = raw.span().start;
    let line = source.line(start);
    let before = starts_of_steps.iter().filter(|step| **step < start);
    let Some(step) = before.count().checked_sub(1) else {
        return Err(source.error(
            line,
            "packet",
            "no step stands in front of the packet",
            "put it behind the step during which it is sent",
        ));
    };
    let (mut from, mut to) = (None, None);
    let mut keys = Vec::new();
    for (key, value) in raw.into_inner() {
        let key_line = source.line(key.span().start);
        let name = key.into_inner();
        let end = match name.as_str() {
            "from" => &mut from,
            "to" => &mut to,
            _ => {
                keys.push(WrittenKey {
                    name,
                    line: key_line,
                    value,
                });
                continue;
            }
        };
        let given = value.as_str().unwrap_or_default();
        let found = endpoint_named(source, endpoints, key_line, &name, given)?;
        *end = Some(found);
    }
    let missing = |key: &str| {
        source.error(
            line,
            key,
            "the packet needs this key",
            format!("add `{key} = \"...\"`, the name of an endpoint"),
        )
    };
    let from = from.ok_or_else(|| missing("from"))?;
    let to = match to {
        Some(to) => to,
        // With two endpoints there is only one other.
        None if endpoints.len() == 2 => 1 - from,
        None => return Err(missing("to")),
    };
    if from == to {
        return Err(source.error(line, "to", "the packet goes to its sender", "name another"));
    }
    Ok(WrittenPacket {
        line,
        step,
        from,
        to,
        keys,
    })
}
