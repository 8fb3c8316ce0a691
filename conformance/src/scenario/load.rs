//! From the keys of a file to a checked scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use efa_core::wire::{PacketType, fields};
use efa_emu::profile::Profile;
use toml::Spanned;

use super::error::{ScenarioError, Source, suggest};
use super::{
    Action, Capability, EndpointIndex, EndpointSpec, ErrorName, Expectation, FieldPolicy,
    Operation, Payload, PolicyOverride, RegionAccess, Scenario, SendMode, Settings, Software, Step,
    TagMatch, file,
};
use crate::libfabric::Version;

/// Largest message or region that a scenario may ask for, in bytes: a typing error must not exhaust
/// memory.
const MAX_LENGTH: usize = 1 << 28;

type Result<T> = std::result::Result<T, ScenarioError>;

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
    let mut reader = Steps {
        source: &source,
        endpoints: &endpoints,
        operations: BTreeMap::new(),
    };
    let mut steps = Vec::new();
    for raw in file.step {
        let line = source.line(raw.span().start);
        let action = reader.step(line, raw.into_inner())?;
        steps.push(Step { line, action });
    }
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
        policies,
    };
    check_messages(&source, &scenario)?;
    Ok(scenario)
}

/// Looks a name up in a table of names.
fn lookup<T: Copy>(
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
        address_vector: Vec::new(),
        not_under_test: raw.not_under_test,
        environment: raw.environment,
        settings,
    })
}

fn endpoint_named(
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

/// Reads steps; knows the operations that earlier steps started.
struct Steps<'a> {
    source: &'a Source<'a>,
    endpoints: &'a [EndpointSpec],
    /// Where each operation was started, on which line.
    operations: BTreeMap<String, (EndpointIndex, usize)>,
}

/// The keys of a step that its kind takes, besides `do`.
fn keys_of(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        "recv" => &["at", "id", "length", "from", "expect"],
        "trecv" => &["at", "id", "length", "from", "tag", "ignore", "expect"],
        "send" | "send-dc" => &["at", "id", "to", "length", "seed", "data", "expect"],
        "tsend" | "tsend-dc" => &["at", "id", "to", "length", "seed", "tag", "data", "expect"],
        "inject" => &["at", "id", "to", "length", "seed", "data"],
        "tinject" => &["at", "id", "to", "length", "seed", "tag", "data"],
        "register" => &["at", "id", "length", "seed", "access"],
        "write" => &[
            "at", "id", "to", "region", "offset", "length", "seed", "data", "expect",
        ],
        "read" => &["at", "id", "from", "region", "offset", "length", "expect"],
        "check" => &["at", "region", "offset", "message"],
        "wait" => &["for", "progress"],
        "settle" => &["progress"],
        _ => return None,
    })
}

const KINDS: [&str; 12] = [
    "recv", "trecv", "send", "tsend", "send-dc", "tsend-dc", "inject", "tinject", "register",
    "write", "read", "check",
];

impl Steps<'_> {
    fn step(&mut self, line: usize, raw: file::Step) -> Result<Action> {
        let kind = raw.action.as_ref().clone();
        let Some(keys) = keys_of(&kind) else {
            return Err(self.source.error(
                self.source.line(raw.action.span().start),
                "do",
                format!("`{kind}` is no kind of step"),
                suggest(&kind, KINDS.into_iter().chain(["wait", "settle"])),
            ));
        };
        self.refuse_foreign_keys(&kind, keys, &raw)?;
        match kind.as_str() {
            "wait" => {
                let names = self.need(line, "for", &kind, raw.operations)?;
                let operations = names
                    .iter()
                    .map(|name| self.known_operation("for", name))
                    .collect::<Result<_>>()?;
                Ok(Action::Wait {
                    operations,
                    progress: self.progress(raw.progress)?,
                })
            }
            "settle" => Ok(Action::Settle {
                progress: self.progress(raw.progress)?,
            }),
            "check" => {
                let at = self.need_endpoint(line, "at", &kind, raw.at)?;
                let region = self.need_spanned(line, "region", &kind, raw.region)?;
                let message = self.need_spanned(line, "message", &kind, raw.message)?;
                Ok(Action::Check {
                    at,
                    region: self.region("region", &region, at)?,
                    offset: raw.offset.map_or(0, Spanned::into_inner),
                    message: self.known_operation("message", &message)?,
                })
            }
            _ => self.start(line, &kind, raw),
        }
    }

    fn start(&mut self, line: usize, kind: &str, raw: file::Step) -> Result<Action> {
        let at = self.need_endpoint(line, "at", kind, raw.at)?;
        let id = self.need_spanned(line, "id", kind, raw.id)?;
        let id_line = self.source.line(id.span().start);
        let id = id.into_inner();
        if let Some((_, first)) = self.operations.get(&id) {
            return Err(self.source.error(
                id_line,
                "id",
                format!("`{id}` was started on line {first} already"),
                "give each operation its own id",
            ));
        }
        let length = self.need_spanned(line, "length", kind, raw.length)?;
        if *length.as_ref() > MAX_LENGTH {
            return Err(self.source.error(
                self.source.line(length.span().start),
                "length",
                format!("{} bytes", length.as_ref()),
                format!("the limit is {MAX_LENGTH}"),
            ));
        }
        let length = length.into_inner();
        let seed = match raw.seed {
            Some(seed) => seed.into_inner(),
            // Operations differ even if nobody chose seeds.
            None => 1 + self.operations.len() as u64,
        };
        let payload = Payload { length, seed };
        let data = raw.data.map(Spanned::into_inner);
        let offset = raw.offset.map_or(0, Spanned::into_inner);
        let operation = match kind {
            "recv" | "trecv" => Operation::Recv {
                length,
                from: raw
                    .from
                    .map(|given| self.endpoint("from", &given))
                    .transpose()?,
                tag: match kind {
                    "trecv" => Some(TagMatch {
                        tag: self.need(line, "tag", kind, raw.tag)?,
                        ignore: raw.ignore.map_or(0, Spanned::into_inner),
                    }),
                    _ => None,
                },
            },
            "register" => {
                let access = self.need(line, "access", kind, raw.access)?;
                Operation::Register {
                    payload,
                    access: access
                        .iter()
                        .map(|given| lookup(self.source, "access", given, &RegionAccess::NAMES))
                        .collect::<Result<_>>()?,
                }
            }
            "write" => {
                let to = self.need_endpoint(line, "to", kind, raw.to)?;
                let region = self.need_spanned(line, "region", kind, raw.region)?;
                Operation::Write {
                    to,
                    region: self.region("region", &region, to)?,
                    offset,
                    payload,
                    data,
                }
            }
            "read" => {
                let from = self.need_endpoint(line, "from", kind, raw.from)?;
                let region = self.need_spanned(line, "region", kind, raw.region)?;
                Operation::Read {
                    from,
                    region: self.region("region", &region, from)?,
                    offset,
                    length,
                }
            }
            _ => Operation::Send {
                to: self.need_endpoint(line, "to", kind, raw.to)?,
                payload,
                tag: match kind.starts_with('t') {
                    true => Some(self.need(line, "tag", kind, raw.tag)?),
                    false => None,
                },
                data,
                mode: match kind {
                    "inject" | "tinject" => SendMode::Inject,
                    "send-dc" | "tsend-dc" => SendMode::DeliveryComplete,
                    _ => SendMode::Normal,
                },
            },
        };
        let expect = raw
            .expect
            .map(|given| self.expectation(given))
            .transpose()?
            .unwrap_or_default();
        self.operations.insert(id.clone(), (at, line));
        Ok(Action::Start {
            at,
            id,
            operation,
            expect,
        })
    }

    fn refuse_foreign_keys(&self, kind: &str, keys: &[&str], raw: &file::Step) -> Result<()> {
        fn start<T>(value: &Option<Spanned<T>>) -> Option<usize> {
            value.as_ref().map(|value| value.span().start)
        }
        let given = [
            ("at", start(&raw.at)),
            ("id", start(&raw.id)),
            ("to", start(&raw.to)),
            ("from", start(&raw.from)),
            ("length", start(&raw.length)),
            ("seed", start(&raw.seed)),
            ("tag", start(&raw.tag)),
            ("ignore", start(&raw.ignore)),
            ("data", start(&raw.data)),
            ("region", start(&raw.region)),
            ("offset", start(&raw.offset)),
            ("access", start(&raw.access)),
            ("message", start(&raw.message)),
            ("for", start(&raw.operations)),
            ("progress", start(&raw.progress)),
            ("expect", start(&raw.expect)),
        ];
        for (key, offset) in given {
            let Some(offset) = offset else { continue };
            if !keys.contains(&key) {
                let list: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
                return Err(self.source.error(
                    self.source.line(offset),
                    key,
                    format!("`{kind}` does not take this key"),
                    format!("it takes {}", list.join(", ")),
                ));
            }
        }
        Ok(())
    }

    fn need_spanned<T>(
        &self,
        line: usize,
        key: &str,
        kind: &str,
        value: Option<Spanned<T>>,
    ) -> Result<Spanned<T>> {
        value.ok_or_else(|| {
            self.source.error(
                line,
                key,
                format!("`{kind}` needs this key"),
                format!("add `{key} = ...`"),
            )
        })
    }

    fn need<T>(&self, line: usize, key: &str, kind: &str, value: Option<Spanned<T>>) -> Result<T> {
        self.need_spanned(line, key, kind, value)
            .map(Spanned::into_inner)
    }

    fn need_endpoint(
        &self,
        line: usize,
        key: &str,
        kind: &str,
        value: Option<Spanned<String>>,
    ) -> Result<EndpointIndex> {
        let value = self.need_spanned(line, key, kind, value)?;
        self.endpoint(key, &value)
    }

    fn endpoint(&self, key: &str, given: &Spanned<String>) -> Result<EndpointIndex> {
        endpoint_named(self.source, self.endpoints, key, given)
    }

    fn progress(&self, given: Option<Spanned<Vec<Spanned<String>>>>) -> Result<Vec<EndpointIndex>> {
        given.map_or(Ok(Vec::new()), |names| {
            names
                .as_ref()
                .iter()
                .map(|name| self.endpoint("progress", name))
                .collect()
        })
    }

    /// An operation that an earlier step started.
    fn known_operation(&self, key: &str, given: &Spanned<String>) -> Result<String> {
        let name = given.as_ref();
        if self.operations.contains_key(name) {
            return Ok(name.clone());
        }
        Err(self.source.error(
            self.source.line(given.span().start),
            key,
            format!("no earlier step has the id `{name}`"),
            suggest(name, self.operations.keys().map(String::as_str)),
        ))
    }

    /// A region that `owner` registered in an earlier step.
    fn region(&self, key: &str, given: &Spanned<String>, owner: EndpointIndex) -> Result<String> {
        let name = self.known_operation(key, given)?;
        if self.operations[&name].0 != owner {
            return Err(self.source.error(
                self.source.line(given.span().start),
                key,
                format!("`{name}` is not memory of `{}`", self.endpoints[owner].name),
                "name a `register` step of that endpoint",
            ));
        }
        Ok(name)
    }

    fn expectation(&self, given: Spanned<file::Expect>) -> Result<Expectation> {
        let raw = given.into_inner();
        let error = raw
            .error
            .map(|given| {
                let known: Vec<_> = ErrorName::ALL.iter().map(|e| (e.name, *e)).collect();
                lookup(self.source, "error", &given, &known)
            })
            .transpose()?;
        Ok(Expectation {
            // A message may be sent after the receive for it was posted: see `check_messages`.
            message: raw.message.map(Spanned::into_inner),
            error,
            overflow: raw.overflow,
        })
    }
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
