//! Reading steps.

use std::collections::BTreeMap;

use efa_core::wire::{AtomicDatatype, AtomicOp};
use serde::Deserialize;

use super::endpoint::{EndpointSpec, endpoint_named};
use super::error::{Result, Source, suggest};
use super::keys::{Keys, RawTable};
use super::step::{Action, Operation, Step};
use crate::operation::{
    AtomicAction, EndpointIndex, Payload, RegionOffset, SendMode, TagMatch, element_size, names,
};

/// The largest message or region of a scenario, in bytes: a typing error must not exhaust memory.
const MAX_LENGTH: usize = 1 << 28;

/// The values of `do`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StepName {
    Recv,
    Trecv,
    Send,
    Tsend,
    SendDc,
    TsendDc,
    Inject,
    Tinject,
    Register,
    Write,
    WriteDc,
    Read,
    Atomic,
    AtomicDc,
    FetchAtomic,
    CompareAtomic,
    Check,
    Wait,
    Settle,
}

/// The values of `datatype`.
#[derive(Deserialize)]
struct Datatype(#[serde(with = "names::datatype")] AtomicDatatype);

/// The values of `op` of a `compare-atomic`.
#[derive(Deserialize)]
struct ComparedOp(#[serde(with = "names::compared_op")] AtomicOp);

/// The values of `op` of a `fetch-atomic`.
#[derive(Deserialize)]
struct FetchedOp(#[serde(with = "names::fetched_op")] AtomicOp);

/// The values of `op` of other atomics.
#[derive(Deserialize)]
struct UpdatedOp(#[serde(with = "names::updated_op")] AtomicOp);

/// Reads steps; tracks the operations that earlier steps started.
pub(super) struct Steps<'a> {
    source: &'a Source<'a>,
    endpoints: &'a [EndpointSpec],
    /// The endpoint and the line at which each operation was started.
    operations: BTreeMap<String, (EndpointIndex, usize)>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(source: &'a Source<'a>, endpoints: &'a [EndpointSpec]) -> Self {
        Steps {
            source,
            endpoints,
            operations: BTreeMap::new(),
        }
    }

    pub(super) fn step(&mut self, raw: RawTable) -> Result<Step> {
        let (name, mut keys) = Keys::step(self.source, raw)?;
        let action = match name {
            StepName::Wait => Action::Wait {
                operations: self.known_operations(&mut keys)?,
                progress: self.progress(&mut keys)?,
            },
            StepName::Settle => Action::Settle {
                progress: self.progress(&mut keys)?,
            },
            StepName::Check => {
                let at = self.endpoint(&mut keys, "at")?;
                let place = self.region(&mut keys, at)?;
                let message: String = keys.need("message")?;
                self.check_operation(&keys, "message", &message)?;
                Action::Check {
                    at,
                    region: place.region,
                    offset: place.offset,
                    message,
                }
            }
            _ => self.start(name, &mut keys)?,
        };
        let line = keys.line;
        keys.finish()?;
        Ok(Step { line, action })
    }

    fn start(&mut self, name: StepName, keys: &mut Keys<'_>) -> Result<Action> {
        let at = self.endpoint(keys, "at")?;
        let id: String = keys.need("id")?;
        if let Some((_, first)) = self.operations.get(&id) {
            return Err(keys.error(
                "id",
                format!("`{id}` was started on line {first} already"),
                "give each operation its own id",
            ));
        }
        let operation = match name {
            StepName::Recv | StepName::Trecv => Operation::Recv {
                from: self.optional_endpoint(keys, "from")?,
                length: length(keys)?,
                tag: match name {
                    StepName::Trecv => Some(TagMatch {
                        tag: keys.need("tag")?,
                        ignore: keys.optional("ignore")?.unwrap_or_default(),
                    }),
                    _ => None,
                },
            },
            StepName::Register => Operation::Register {
                payload: self.payload(keys)?,
                access: keys.need("access")?,
            },
            StepName::Write | StepName::WriteDc => {
                let to = self.endpoint(keys, "to")?;
                Operation::Write {
                    to,
                    remote: self.region(keys, to)?,
                    payload: self.payload(keys)?,
                    data: keys.optional("data")?,
                    delivery_complete: name == StepName::WriteDc,
                }
            }
            StepName::Read => {
                let from = self.endpoint(keys, "from")?;
                Operation::Read {
                    from,
                    remote: self.region(keys, from)?,
                    length: length(keys)?,
                }
            }
            StepName::Atomic
            | StepName::AtomicDc
            | StepName::FetchAtomic
            | StepName::CompareAtomic => self.atomic(name, keys)?,
            _ => Operation::Send {
                to: self.endpoint(keys, "to")?,
                payload: self.payload(keys)?,
                tag: match name {
                    StepName::Tsend | StepName::TsendDc | StepName::Tinject => {
                        Some(keys.need("tag")?)
                    }
                    _ => None,
                },
                data: keys.optional("data")?,
                mode: match name {
                    StepName::Inject | StepName::Tinject => SendMode::Inject,
                    StepName::SendDc | StepName::TsendDc => SendMode::DeliveryComplete,
                    _ => SendMode::Normal,
                },
            },
        };
        let expect = match operation.completes() {
            true => keys.optional("expect")?.unwrap_or_default(),
            false => Default::default(),
        };
        self.operations.insert(id.clone(), (at, keys.line));
        Ok(Action::Start {
            at,
            id,
            operation,
            expect,
        })
    }

    fn atomic(&self, name: StepName, keys: &mut Keys<'_>) -> Result<Operation> {
        let to = self.endpoint(keys, "to")?;
        let remote = self.region(keys, to)?;
        let operand = self.payload(keys)?;
        let Datatype(datatype) = keys
            .optional("datatype")?
            .unwrap_or(Datatype(AtomicDatatype::UINT64));
        let element = element_size(datatype);
        if operand.length == 0 || !operand.length.is_multiple_of(element) {
            return Err(keys.error(
                "length",
                format!("{} bytes", operand.length),
                format!("the elements of this operation have {element} bytes"),
            ));
        }
        let action = match name {
            StepName::CompareAtomic => AtomicAction::Compare {
                op: keys
                    .optional("op")?
                    .map_or(AtomicOp::CSWAP, |ComparedOp(op)| op),
                comparand: keys.need("comparand")?,
            },
            StepName::FetchAtomic => AtomicAction::Fetch(keys.need::<FetchedOp>("op")?.0),
            _ => AtomicAction::Update(keys.need::<UpdatedOp>("op")?.0),
        };
        Ok(Operation::Atomic {
            to,
            remote,
            datatype,
            action,
            operand,
            delivery_complete: name == StepName::AtomicDc,
        })
    }

    fn payload(&self, keys: &mut Keys<'_>) -> Result<Payload> {
        // Default seeds differ between operations.
        let other = 1 + self.operations.len() as u64;
        Ok(Payload {
            length: length(keys)?,
            seed: keys.optional("seed")?.unwrap_or(other),
        })
    }

    fn endpoint(&self, keys: &mut Keys<'_>, key: &'static str) -> Result<EndpointIndex> {
        let name: String = keys.need(key)?;
        self.index(keys, key, &name)
    }

    fn optional_endpoint(
        &self,
        keys: &mut Keys<'_>,
        key: &'static str,
    ) -> Result<Option<EndpointIndex>> {
        let name: Option<String> = keys.optional(key)?;
        name.map(|name| self.index(keys, key, &name)).transpose()
    }

    fn progress(&self, keys: &mut Keys<'_>) -> Result<Vec<EndpointIndex>> {
        let names: Vec<String> = keys.optional("progress")?.unwrap_or_default();
        let index = |name: &String| self.index(keys, "progress", name);
        names.iter().map(index).collect()
    }

    fn index(&self, keys: &Keys<'_>, key: &str, name: &str) -> Result<EndpointIndex> {
        endpoint_named(self.source, self.endpoints, keys.line_of(key), key, name)
    }

    fn known_operations(&self, keys: &mut Keys<'_>) -> Result<Vec<String>> {
        let names: Vec<String> = keys.need("for")?;
        for name in &names {
            self.check_operation(keys, "for", name)?;
        }
        Ok(names)
    }

    /// Refuses a name that is not an operation of an earlier step.
    fn check_operation(&self, keys: &Keys<'_>, key: &str, name: &str) -> Result<()> {
        if self.operations.contains_key(name) {
            return Ok(());
        }
        Err(keys.error(
            key,
            format!("no earlier step has the id `{name}`"),
            suggest(name, self.operations.keys().map(String::as_str)),
        ))
    }

    /// An offset in a region that `owner` registered in an earlier step.
    fn region(&self, keys: &mut Keys<'_>, owner: EndpointIndex) -> Result<RegionOffset> {
        let region: String = keys.need("region")?;
        self.check_operation(keys, "region", &region)?;
        if self.operations[&region].0 != owner {
            return Err(keys.error(
                "region",
                format!(
                    "`{region}` is not memory of `{}`",
                    self.endpoints[owner].name
                ),
                "name a `register` step of that endpoint",
            ));
        }
        let offset = keys.optional("offset")?.unwrap_or_default();
        Ok(RegionOffset { region, offset })
    }
}

fn length(keys: &mut Keys<'_>) -> Result<usize> {
    let length = keys.need("length")?;
    if length > MAX_LENGTH {
        return Err(keys.error(
            "length",
            format!("{length} bytes"),
            format!("the limit is {MAX_LENGTH}"),
        ));
    }
    Ok(length)
}
