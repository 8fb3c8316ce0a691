//! Playing a scenario, step by step, whoever plays its endpoints.
//!
//! A recording is a run in which all endpoints are live, each in a process ([`crate::conduct`]). A replay
//! is one in which one endpoint is live and the others say what was recorded ([`crate::replay`]), or in
//! which the engine stands in for them ([`crate::replay::live`]). Here is what they have in common: the
//! order of the steps, what applications were told and what they saw, and whether that is what the
//! scenario says. A [`Stage`] adds how an endpoint is reached and how long is waited.

use std::collections::HashMap;

use crate::application::{Report, Request, Token};
use crate::operation::{EndpointIndex, Payload, Remote};
use crate::scenario::{Action, Operation, Scenario};
use crate::verify;

/// What was asked of applications and what they saw.
#[derive(Clone, Debug)]
pub struct Record<'s> {
    scenario: &'s Scenario,
    tokens: HashMap<&'s str, Token>,
    /// Where the memory of `register` steps is.
    regions: HashMap<&'s str, Remote>,
    reports: HashMap<Token, Report>,
    /// Completion data that came with writes of peers, by the endpoint that it came to.
    written: HashMap<EndpointIndex, Vec<u64>>,
}

/// An operation that an endpoint is to start.
#[derive(Clone, Debug)]
pub struct Start<'s> {
    /// Where.
    pub at: EndpointIndex,
    /// The step's id.
    pub id: &'s str,
    /// What reports will call the operation.
    pub token: Token,
    /// The operation.
    pub request: Request,
    /// The message whose bytes it must deliver.
    pub seed: Option<u64>,
}

/// A comparison of registered memory with a message.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'s> {
    /// Whose memory.
    pub at: EndpointIndex,
    /// The `register` step's id.
    pub region: &'s str,
    /// What that step's operation is called.
    pub token: Token,
    /// Where in the memory.
    pub offset: usize,
    /// The message's id.
    pub message: &'s str,
    /// The message.
    pub payload: Payload,
}

impl<'s> Record<'s> {
    /// Nothing has happened yet.
    pub fn new(scenario: &'s Scenario) -> Self {
        Record {
            scenario,
            tokens: HashMap::new(),
            regions: HashMap::new(),
            reports: HashMap::new(),
            written: HashMap::new(),
        }
    }

    /// The scenario.
    pub fn scenario(&self) -> &'s Scenario {
        self.scenario
    }

    /// Notes where the memory of a `register` step is.
    pub fn registered(&mut self, id: &'s str, remote: Remote) {
        self.regions.insert(id, remote);
    }

    /// Where the memory of a `register` step is.
    pub fn region(&self, id: &str) -> Option<Remote> {
        self.regions.get(id).copied()
    }

    /// Takes what the application of endpoint `at` saw; returns what is wrong with it, if it can belong to
    /// nothing.
    pub fn take(&mut self, at: EndpointIndex, report: Report) -> Option<String> {
        let Some(token) = report.token else {
            // A peer wrote to its memory.
            return match report.data {
                Some(data) => {
                    self.written.entry(at).or_default().push(data);
                    None
                }
                None => Some(format!("a completion that belongs to nothing: {report:?}")),
            };
        };
        let known = self.tokens.iter().find(|(_, known)| **known == token);
        let Some((id, _)) = known else {
            return Some(format!("a completion that belongs to nothing: {report:?}"));
        };
        let id = *id;
        let earlier = self.reports.insert(token, report);
        earlier.map(|_| format!("`{id}` completed twice"))
    }

    /// Whether an operation has completed, or never tells.
    pub fn is_done(&self, id: &str) -> bool {
        let completes = self
            .scenario
            .operation(id)
            .is_some_and(|(_, operation, _)| operation.completes());
        let report = self
            .tokens
            .get(id)
            .and_then(|token| self.reports.get(token));
        !completes || report.is_some()
    }

    /// How the operation's completion departs from what the scenario says, if it has completed.
    fn judge(&self, id: &str) -> Vec<String> {
        let report = self
            .tokens
            .get(id)
            .and_then(|token| self.reports.get(token));
        report.map_or_else(Vec::new, |report| {
            verify::completion(self.scenario, id, report)
        })
    }

    /// How what peers wrote to memory of endpoint `at` departs from what the scenario says.
    fn judge_written(&self, at: EndpointIndex) -> Option<String> {
        let arrived = self.written.get(&at).map_or(&[][..], Vec::as_slice);
        verify::written(self.scenario, at, arrived)
    }

    fn start(
        &mut self,
        step: usize,
        at: EndpointIndex,
        id: &'s str,
        operation: &Operation,
    ) -> Start<'s> {
        let token = step as Token;
        self.tokens.insert(id, token);
        // A scenario names only memory that an earlier step registered: nothing is nowhere unless
        // registering failed, and then the run has said so.
        let nowhere = Remote { address: 0, key: 0 };
        let request = operation.with_remote(|place| {
            let region = self.region(&place.region).unwrap_or(nowhere);
            place.within(region)
        });
        Start {
            at,
            id,
            token,
            request,
            seed: verify::expected_seed(self.scenario, id),
        }
    }

    fn comparison(
        &self,
        at: EndpointIndex,
        region: &'s str,
        offset: usize,
        message: &'s str,
    ) -> Option<Comparison<'s>> {
        let (_, operation, _) = self.scenario.operation(message)?;
        Some(Comparison {
            at,
            region,
            token: *self.tokens.get(region)?,
            offset,
            message,
            payload: operation.payload()?,
        })
    }
}

/// How the endpoints of a run are reached.
pub trait Stage<'s> {
    /// Why a run does not go on.
    type Stop;

    /// What has happened so far.
    fn record(&mut self) -> &mut Record<'s>;

    /// Whether an application plays the endpoint, so that there is something to see.
    fn is_live(&self, at: EndpointIndex) -> bool;

    /// A step begins; the number of steps stands for the end.
    fn begin(&mut self, step: usize);

    /// Starts an operation: where its memory is, if it registers some.
    ///
    /// # Errors
    /// The run does not go on.
    fn start(&mut self, step: usize, start: &Start<'s>) -> Result<Option<Remote>, Self::Stop>;

    /// Lets the named endpoints make progress, all if none is named, until the operations have
    /// completed.
    ///
    /// # Errors
    /// The run does not go on.
    fn wait(
        &mut self,
        step: usize,
        operations: &'s [String],
        progress: &[EndpointIndex],
    ) -> Result<(), Self::Stop>;

    /// Lets the named endpoints make progress, all if none is named, until nothing more happens.
    ///
    /// # Errors
    /// The run does not go on.
    fn settle(&mut self, step: usize, progress: &[EndpointIndex]) -> Result<(), Self::Stop>;

    /// Compares memory; what differs is a [`Stage::problem`].
    ///
    /// # Errors
    /// The run does not go on.
    fn compare(&mut self, comparison: Comparison<'s>) -> Result<(), Self::Stop>;

    /// Something that an application saw and the scenario does not say.
    ///
    /// # Errors
    /// The run does not go on.
    fn problem(&mut self, text: String) -> Result<(), Self::Stop>;

    /// Whatever is to happen after the last step.
    ///
    /// # Errors
    /// The run does not go on.
    fn end(&mut self) -> Result<(), Self::Stop>;
}

/// Plays all steps.
///
/// # Errors
/// Those of the stage.
pub fn play<'s, S: Stage<'s>>(stage: &mut S) -> Result<(), S::Stop> {
    let scenario = stage.record().scenario();
    for (index, step) in scenario.steps.iter().enumerate() {
        stage.begin(index);
        match &step.action {
            Action::Start {
                at, id, operation, ..
            } => {
                let start = stage.record().start(index, *at, id, operation);
                if let Some(remote) = stage.start(index, &start)? {
                    stage.record().registered(id, remote);
                }
            }
            Action::Wait {
                operations,
                progress,
            } => {
                stage.wait(index, operations, progress)?;
                for id in operations {
                    for text in stage.record().judge(id) {
                        stage.problem(text)?;
                    }
                }
            }
            Action::Settle { progress } => stage.settle(index, progress)?,
            Action::Check {
                at,
                region,
                offset,
                message,
            } => {
                if let Some(comparison) = stage.record().comparison(*at, region, *offset, message) {
                    stage.compare(comparison)?;
                }
            }
        }
    }
    stage.begin(scenario.steps.len());
    stage.end()?;
    for at in 0..scenario.endpoints.len() {
        if stage.is_live(at)
            && let Some(text) = stage.record().judge_written(at)
        {
            stage.problem(text)?;
        }
    }
    Ok(())
}

/// What a comparison of memory says if it found a difference.
pub fn differs(comparison: &Comparison<'_>, difference: impl std::fmt::Display) -> String {
    format!(
        "memory `{}` does not hold `{}`: {difference}",
        comparison.region, comparison.message
    )
}
