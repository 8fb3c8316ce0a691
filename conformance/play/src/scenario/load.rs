//! From the keys of a file to a checked scenario.

use std::collections::BTreeSet;
use std::path::Path;

use efa_core::rules::RULES;
use efa_core::wire::{PacketType, fields};
use efa_device_model::profile::Profile;
use toml::Spanned;

use super::error::{ScenarioError, Source, suggest};
use super::fault::fault;
use super::steps::Steps;
use super::{
    Action, Capability, EndpointSpec, FieldPolicy, Operation, PolicyOverride, Scenario, Settings,
    Software, Step, WrittenKey, WrittenPacket, file,
};
use crate::libfabric::Version;
use crate::operation::EndpointIndex;

pub(super) type Result<T> = std::result::Result<T, ScenarioError>;

pub(super) fn scenario(path: &Path, text: &str) -> Result<Scenario> {
    let source = Source { path, text };
    let file: file::File = toml::from_str(text).map_err(|error| source.toml(&error))?;
    let name = path.file_stem().map_or_else(
        || "unnamed".into(),
        |stem| stem.to_string_lossy().into_owned(),
    );
    let mut endpoints: Vec<EndpointSpec> = Vec::new();
    let mut address_vectors = Vec::new();
    for raw in file.endpoint {
        let line = source.line(raw.span().start);
        let mut raw = raw.into_inner();
        address_vectors.push(raw.address_vector.take());
        let endpoint = endpoint(&source, raw)?;
        if endpoints.iter().any(|e| e.name == endpoint.name) {
            return Err(source.error(
                line,
                "name",
                format!("there are two endpoints `{}`", endpoint.name),
                "give each its own name",
            ));
        }
        endpoints.push(endpoint);
    }
    if endpoints.len() < 2 {
        return Err(source.error(
            1,
            "endpoint",
            format!("{} endpoints", endpoints.len()),
            "add [[endpoint]] tables until there are at least two",
        ));
    }
    for (at, names) in address_vectors.into_iter().enumerate() {
        endpoints[at].address_vector = match names {
            None => (0..endpoints.len()).filter(|&peer| peer != at).collect(),
            Some(names) => names
                .iter()
                .map(|name| endpoint_named(&source, &endpoints, "address_vector", name))
                .collect::<Result<_>>()?,
        };
    }
    let mut reader = Steps::new(&source, &endpoints);
    let mut steps = Vec::new();
    let mut starts = Vec::new();
    for raw in file.step {
        starts.push(raw.span().start);
        let line = source.line(raw.span().start);
        let action = reader.step(line, raw.into_inner())?;
        steps.push(Step { line, action });
    }
    let packets = file
        .packet
        .into_iter()
        .map(|raw| packet(&source, &endpoints, &starts, raw))
        .collect::<Result<Vec<_>>>()?;
    if let Some(scripted) = endpoints.iter().find(|e| e.software == Software::Script)
        && packets.is_empty()
    {
        return Err(source.error(
            1,
            "software",
            format!("`{}` does nothing: there are no packets", scripted.name),
            "add [[packet]] tables behind the steps during which they are sent",
        ));
    }
    let rules: Vec<(&'static str, &'static str)> =
        RULES.iter().map(|rule| (rule.id, rule.id)).collect();
    let breaks = file
        .breaks
        .iter()
        .map(|given| lookup(&source, "breaks", given, &rules))
        .collect::<Result<Vec<_>>>()?;
    let faults = file
        .fault
        .into_iter()
        .map(|raw| fault(&source, &endpoints, raw))
        .collect::<Result<_>>()?;
    let policies = file
        .policy
        .into_iter()
        .map(|raw| policy(&source, raw))
        .collect::<Result<_>>()?;
    let scenario = Scenario {
        name,
        path: path.to_owned(),
        description: file.description.trim().to_owned(),
        spec: file.spec,
        endpoints,
        steps,
        packets,
        breaks,
        faults,
        policies,
    };
    check_messages(&source, &scenario)?;
    Ok(scenario)
}

/// Looks a name up in a table of names.
pub(super) fn lookup<T: Copy>(
    source: &Source<'_>,
    key: &str,
    given: &Spanned<String>,
    known: &[(&'static str, T)],
) -> Result<T> {
    let text = given.as_ref().as_str();
    known
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            source.error(
                source.line(given.span().start),
                key,
                format!("`{text}` is not known"),
                suggest(text, known.iter().map(|(name, _)| *name)),
            )
        })
}

fn version(source: &Source<'_>, key: &str, given: &Spanned<String>) -> Result<Version> {
    given.as_ref().parse().map_err(|problem: String| {
        source.error(
            source.line(given.span().start),
            key,
            problem,
            "for example \"1.17\"",
        )
    })
}

fn profile(source: &Source<'_>, given: &Spanned<String>) -> Result<String> {
    let name = given.as_ref();
    if Profile::by_name(name).is_some() {
        return Ok(name.clone());
    }
    Err(source.error(
        source.line(given.span().start),
        "profile",
        format!("there is no device profile `{name}`"),
        suggest(name, Profile::all().iter().map(|profile| profile.name)),
    ))
}

fn endpoint(source: &Source<'_>, raw: file::Endpoint) -> Result<EndpointSpec> {
    let line = source.line(raw.name.span().start);
    let name = raw.name.into_inner();
    // The name becomes a host name, a file name and a capture interface.
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(source.error(
            line,
            "name",
            format!("`{name}` is not a name"),
            "use letters, digits and `-`",
        ));
    }
    let capabilities = raw
        .capabilities
        .iter()
        .map(|given| lookup(source, "capabilities", given, &Capability::NAMES))
        .collect::<Result<Vec<_>>>()?;
    let settings = Settings {
        max_medium_size: raw.settings.max_medium_size,
        min_read_message_size: raw.settings.min_read_message_size,
        min_read_write_size: raw.settings.min_read_write_size,
        runt_size: raw.settings.runt_size,
        cts_window_packets: raw.settings.cts_window_packets,
        use_device_rdma: raw.settings.use_device_rdma,
        handshake_before_messages: raw.settings.handshake_before_messages,
        unsolicited_write_recv: raw.settings.unsolicited_write_recv,
    };
    Ok(EndpointSpec {
        name,
        software: lookup(source, "software", &raw.software, &Software::NAMES)?,
        version: raw
            .version
            .map(|given| version(source, "version", &given))
            .transpose()?,
        api: raw.api.map_or(Ok(Version::BASELINE_API), |given| {
            version(source, "api", &given)
        })?,
        capabilities,
        profile: raw
            .profile
            .map(|given| profile(source, &given))
            .transpose()?,
        register_local: raw.register_local,
        max_message: raw.max_message,
        address_vector: Vec::new(),
        not_under_test: raw.not_under_test,
        environment: raw.environment,
        settings,
    })
}

/// A packet that is written by hand. What is special to its type is looked at later.
fn packet(
    source: &Source<'_>,
    endpoints: &[EndpointSpec],
    starts_of_steps: &[usize],
    raw: Spanned<file::Packet>,
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
        let span = key.span();
        let key_line = source.line(span.start);
        let name = key.into_inner();
        let place = match name.as_str() {
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
        let text = value.as_str().unwrap_or_default().to_owned();
        let given = Spanned::new(span, text);
        *place = Some(endpoint_named(source, endpoints, &name, &given)?);
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
        // Between two there is no choice.
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

pub(super) fn endpoint_named(
    source: &Source<'_>,
    endpoints: &[EndpointSpec],
    key: &str,
    given: &Spanned<String>,
) -> Result<EndpointIndex> {
    let name = given.as_ref().as_str();
    let found = endpoints.iter().position(|endpoint| endpoint.name == name);
    found.ok_or_else(|| {
        source.error(
            source.line(given.span().start),
            key,
            format!("there is no endpoint `{name}`"),
            suggest(name, endpoints.iter().map(|e| e.name.as_str())),
        )
    })
}

fn policy(source: &Source<'_>, raw: Spanned<file::Policy>) -> Result<PolicyOverride> {
    let line = source.line(raw.span().start);
    let raw = raw.into_inner();
    let Some((packet, field)) = raw.field.as_ref().split_once('.') else {
        return Err(source.error(
            source.line(raw.field.span().start),
            "field",
            format!("`{}` does not name a field", raw.field.as_ref()),
            "write PACKET_TYPE.field, for example \"HANDSHAKE.extra_info\" or \"*.flags\"",
        ));
    };
    let field_line = source.line(raw.field.span().start);
    let types: Vec<PacketType> = match packet {
        "*" => PacketType::ALL.to_vec(),
        name => PacketType::ALL
            .iter()
            .copied()
            .filter(|packet_type| packet_type.name() == name)
            .collect(),
    };
    if types.is_empty() {
        return Err(source.error(
            field_line,
            "field",
            format!("there is no packet type `{packet}`"),
            suggest(packet, PacketType::ALL.iter().map(|t| t.name())),
        ));
    }
    let names: BTreeSet<&str> = types
        .iter()
        .flat_map(|packet_type| fields::layout(*packet_type))
        .map(|place| place.descriptor.name)
        .collect();
    if !names.contains(field) {
        return Err(source.error(
            field_line,
            "field",
            format!("`{packet}` has no field `{field}`"),
            suggest(field, names.into_iter()),
        ));
    }
    let kinds = [("exact", 0), ("bound", 1), ("ignored", 2), ("one-of", 3)];
    let policy = match (lookup(source, "policy", &raw.policy, &kinds)?, raw.values) {
        (0, None) => FieldPolicy::Exact,
        (1, None) => FieldPolicy::Bound,
        (2, None) => FieldPolicy::Ignored,
        (3, Some(values)) => FieldPolicy::OneOf(values),
        (_, values) => {
            let (problem, remedy) = match values {
                None => ("`one-of` needs values", "add `values = [...]`"),
                Some(_) => ("only `one-of` takes values", "remove `values`"),
            };
            return Err(source.error(line, "values", problem, remedy));
        }
    };
    Ok(PolicyOverride {
        line,
        packet: packet.to_owned(),
        field: field.to_owned(),
        policy,
        reason: raw.reason,
    })
}

/// Messages that are expected must exist and provide bytes, and a receive must say what it expects.
fn check_messages(source: &Source<'_>, scenario: &Scenario) -> Result<()> {
    for step in &scenario.steps {
        let (message, required) = match &step.action {
            Action::Start {
                operation, expect, ..
            } => (
                expect.message.as_ref(),
                matches!(operation, Operation::Recv { .. } | Operation::Read { .. })
                    && expect.error.is_none(),
            ),
            Action::Check { message, .. } => (Some(message), true),
            Action::Wait { .. } | Action::Settle { .. } => continue,
        };
        let Some(message) = message else {
            if required {
                return Err(source.error(
                    step.line,
                    "expect",
                    "the step does not say what must arrive",
                    "add `expect = { message = \"ID\" }` with the id of the step that sends it",
                ));
            }
            continue;
        };
        let senders = scenario.steps.iter().filter_map(|s| match &s.action {
            Action::Start { id, operation, .. } if operation.payload().is_some() => {
                Some(id.as_str())
            }
            _ => None,
        });
        if !senders.clone().any(|id| id == message) {
            return Err(source.error(
                step.line,
                "message",
                format!("no step sends `{message}`"),
                suggest(message, senders),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
