//! Reading steps.

use std::collections::BTreeMap;

use efa_core::wire::{AtomicDatatype, AtomicOp};
use toml::Spanned;

use super::error::{Source, suggest};
use super::load::{Result, endpoint_named, lookup};
use super::{Action, EndpointSpec, ErrorName, Expectation, Operation, file};
use crate::operation::{
    ATOMIC_OPS, AtomicAction, COMPARE_OPS, DATATYPES, EndpointIndex, Payload, Place, RegionAccess,
    SendMode, TagMatch, element_size,
};

/// Largest message or region that a scenario may ask for, in bytes: a typing error must not exhaust
/// memory.
const MAX_LENGTH: usize = 1 << 28;

/// Reads steps; knows the operations that earlier steps started.
pub(super) struct Steps<'a> {
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
        "write" | "write-dc" => &[
            "at", "id", "to", "region", "offset", "length", "seed", "data", "expect",
        ],
        "atomic" | "atomic-dc" | "fetch-atomic" => &[
            "at", "id", "to", "region", "offset", "length", "seed", "datatype", "op", "expect",
        ],
        "compare-atomic" => &[
            "at",
            "id",
            "to",
            "region",
            "offset",
            "length",
            "seed",
            "datatype",
            "op",
            "comparand",
            "expect",
        ],
        "read" => &["at", "id", "from", "region", "offset", "length", "expect"],
        "check" => &["at", "region", "offset", "message"],
        "wait" => &["for", "progress"],
        "settle" => &["progress"],
        _ => return None,
    })
}

const KINDS: [&str; 17] = [
    "recv",
    "trecv",
    "send",
    "tsend",
    "send-dc",
    "tsend-dc",
    "inject",
    "tinject",
    "register",
    "write",
    "write-dc",
    "read",
    "atomic",
    "atomic-dc",
    "fetch-atomic",
    "compare-atomic",
    "check",
];

impl<'a> Steps<'a> {
    /// No step has been read yet.
    pub(super) fn new(source: &'a Source<'a>, endpoints: &'a [EndpointSpec]) -> Self {
        Steps {
            source,
            endpoints,
            operations: BTreeMap::new(),
        }
    }
}

impl Steps<'_> {
    /// Reads a step that begins on `line`.
    pub(super) fn step(&mut self, line: usize, raw: file::Step) -> Result<Action> {
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
            "write" | "write-dc" => {
                let to = self.need_endpoint(line, "to", kind, raw.to)?;
                let region = self.need_spanned(line, "region", kind, raw.region)?;
                Operation::Write {
                    to,
                    remote: Place {
                        region: self.region("region", &region, to)?,
                        offset,
                    },
                    payload,
                    data,
                    delivery_complete: kind == "write-dc",
                }
            }
            "atomic" | "atomic-dc" | "fetch-atomic" | "compare-atomic" => {
                let datatype = match &raw.datatype {
                    Some(given) => lookup(self.source, "datatype", given, &DATATYPES)?,
                    None => AtomicDatatype::UINT64,
                };
                let element = element_size(datatype);
                if length == 0 || !length.is_multiple_of(element) {
                    return Err(self.source.error(
                        line,
                        "length",
                        format!("{length} bytes"),
                        format!("the elements of this operation have {element} bytes"),
                    ));
                }
                let to = self.need_endpoint(line, "to", kind, raw.to)?;
                let region = self.need_spanned(line, "region", kind, raw.region)?;
                Operation::Atomic {
                    to,
                    remote: Place {
                        region: self.region("region", &region, to)?,
                        offset,
                    },
                    operand: payload,
                    datatype,
                    action: match kind {
                        "compare-atomic" => {
                            let op = match &raw.op {
                                Some(given) => lookup(self.source, "op", given, &COMPARE_OPS)?,
                                None => AtomicOp::CSWAP,
                            };
                            let comparand = self.need(line, "comparand", kind, raw.comparand)?;
                            AtomicAction::Compare { op, comparand }
                        }
                        "fetch-atomic" => {
                            let op = self.need_spanned(line, "op", kind, raw.op)?;
                            AtomicAction::Fetch(lookup(self.source, "op", &op, &ATOMIC_OPS)?)
                        }
                        _ => {
                            let op = self.need_spanned(line, "op", kind, raw.op)?;
                            let updates: Vec<_> = ATOMIC_OPS
                                .into_iter()
                                .filter(|(_, op)| *op != AtomicOp::ATOMIC_READ)
                                .collect();
                            AtomicAction::Update(lookup(self.source, "op", &op, &updates)?)
                        }
                    },
                    delivery_complete: kind == "atomic-dc",
                }
            }
            "read" => {
                let from = self.need_endpoint(line, "from", kind, raw.from)?;
                let region = self.need_spanned(line, "region", kind, raw.region)?;
                Operation::Read {
                    from,
                    remote: Place {
                        region: self.region("region", &region, from)?,
                        offset,
                    },
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
            ("datatype", start(&raw.datatype)),
            ("op", start(&raw.op)),
            ("comparand", start(&raw.comparand)),
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
