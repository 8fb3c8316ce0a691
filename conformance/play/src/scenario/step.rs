//! The steps of a scenario.

use efa_core::wire::AtomicDatatype;

use super::contents::Scenario;
use super::expectation::Expectation;
use crate::operation::{self, EndpointIndex, RegionOffset, SendMode, element_size};

/// An operation in the form of steps.
pub type Operation = operation::Operation<RegionOffset>;

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    pub(crate) line: usize,
    /// What is done in it.
    pub action: Action,
}

/// The action of a step.
#[derive(Clone, Debug)]
pub enum Action {
    /// An endpoint starts an operation.
    Start {
        /// The endpoint that starts it.
        at: EndpointIndex,
        /// The operation's name, unique in the scenario.
        id: String,
        /// The operation, with names instead of addresses.
        operation: Operation,
        /// The expected completion; meaningless for operations without one.
        expect: Expectation,
    },
    /// The named operations complete; meanwhile the endpoints make progress.
    Wait {
        /// Names of operations.
        operations: Vec<String>,
        /// Endpoints that make progress; empty means all.
        progress: Vec<EndpointIndex>,
    },
    /// Endpoints make progress until nothing more happens.
    Settle {
        /// Endpoints that make progress; empty means all.
        progress: Vec<EndpointIndex>,
    },
    /// Checks that registered memory contains a message's bytes.
    Check {
        /// The endpoint that owns the memory.
        at: EndpointIndex,
        /// Name of a `register` step.
        region: String,
        /// The offset in the region, in bytes.
        offset: usize,
        /// Name of the operation whose bytes must be there.
        message: String,
    },
}

impl Step {
    /// The step in a line, such as `step 4: b sends question to a`; `index` counts from 0. Traces
    /// include this line, so that packets can be attributed to steps.
    pub fn describe(&self, index: usize, scenario: &Scenario) -> String {
        let name = |at: EndpointIndex| scenario.endpoints[at].name.as_str();
        let names = |all: &[EndpointIndex]| match all {
            [] => "all".to_owned(),
            some => Vec::from_iter(some.iter().map(|&at| name(at))).join(", "),
        };
        let text = match &self.action {
            Action::Start {
                at, id, operation, ..
            } => {
                let at = name(*at);
                match operation {
                    Operation::Recv { length, tag, .. } => {
                        let kind = if tag.is_some() { "tagged " } else { "" };
                        format!("{at} posts {kind}receive {id} of {length} bytes")
                    }
                    Operation::Send {
                        to,
                        payload,
                        tag,
                        mode,
                        ..
                    } => {
                        let kind = if tag.is_some() { "tagged " } else { "" };
                        let verb = match mode {
                            SendMode::Normal => "sends",
                            SendMode::Inject => "injects",
                            SendMode::DeliveryComplete => "sends (delivery complete)",
                        };
                        let length = payload.length;
                        format!("{at} {verb} {kind}{id} of {length} bytes to {}", name(*to))
                    }
                    Operation::Register { payload, .. } => {
                        format!("{at} registers {id} of {} bytes", payload.length)
                    }
                    Operation::Write {
                        to,
                        remote: RegionOffset { region, .. },
                        payload,
                        ..
                    } => {
                        let length = payload.length;
                        format!(
                            "{at} writes {id} of {length} bytes to {region} of {}",
                            name(*to)
                        )
                    }
                    Operation::Atomic {
                        to,
                        remote: RegionOffset { region, .. },
                        operand,
                        datatype,
                        action,
                        ..
                    } => {
                        let elements = operand.length / element_size(*datatype);
                        let op = action.code().name().unwrap_or("unknown operation");
                        // Recordings without a type use the word.
                        let kind = match *datatype {
                            AtomicDatatype::UINT64 => "integers",
                            other => other.name().unwrap_or("unknown elements"),
                        };
                        format!(
                            "{at} applies {id}, {op} of {elements} {kind}, to {region} of {}",
                            name(*to)
                        )
                    }
                    Operation::Read {
                        from,
                        remote: RegionOffset { region, .. },
                        length,
                        ..
                    } => {
                        format!(
                            "{at} reads {id} of {length} bytes from {region} of {}",
                            name(*from)
                        )
                    }
                }
            }
            Action::Wait {
                operations,
                progress,
            } => format!(
                "{} make progress until {} are complete",
                names(progress),
                operations.join(", ")
            ),
            Action::Settle { progress } => {
                format!("{} make progress until nothing happens", names(progress))
            }
            Action::Check {
                at,
                region,
                message,
                ..
            } => format!("{} finds {message} in {region}", name(*at)),
        };
        format!("step {}: {text}", index + 1)
    }
}
