//! Plays a scenario step by step.
//!
//! In a recording all endpoints are live, each in a process ([`crate::process_runner`]). In a
//! replay one endpoint is live, and the others send the recorded packets (`efa_replay::replay`) or
//! are played by the engine (`efa_replay::replay::live`). This module is the common part: the order
//! of the steps, the requests to applications, and the comparison of their results with the
//! scenario. A [`Runner`] implements the access to an endpoint, and the waits.

use std::collections::HashMap;

use crate::application::{OperationRequest, Report, Token};
use crate::operation::{EndpointIndex, Payload, Remote};
use crate::scenario::{Action, Operation, Scenario};
use crate::verify;

/// The requests to applications, and the applications' results.
#[derive(Clone, Debug)]
pub struct OperationTracker<'s> {
    scenario: &'s Scenario,
    tokens: HashMap<&'s str, Token>,
    regions: HashMap<&'s str, Remote>,
    reports: HashMap<Token, Report>,
    /// Completion data of peers' writes, by the target endpoint.
    written: HashMap<EndpointIndex, Vec<u64>>,
}

/// An operation for an endpoint to start.
#[derive(Clone, Debug)]
pub struct Start<'s> {
    /// The endpoint that starts it.
    pub at: EndpointIndex,
    /// The operation's name in the scenario.
    pub id: &'s str,
    /// The operation's name in reports.
    pub token: Token,
    /// The operation, with the addresses and memory of the other endpoints.
    pub request: OperationRequest,
    /// The seed of the message whose bytes it must deliver.
    pub seed: Option<u64>,
}

/// A comparison of registered memory with a message.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'s> {
    /// The owner of the memory.
    pub at: EndpointIndex,
    /// The `register` step's id.
    pub region: &'s str,
    /// The name of this step's operation.
    pub token: Token,
    /// The offset in the memory, in bytes.
    pub offset: usize,
    pub(crate) message: &'s str,
    /// The bytes of that message.
    pub payload: Payload,
}

impl<'s> OperationTracker<'s> {
    /// The state before the first step.
    pub fn new(scenario: &'s Scenario) -> Self {
        OperationTracker {
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

    /// Notes the memory of a `register` step.
    pub fn registered(&mut self, id: &'s str, remote: Remote) {
        self.regions.insert(id, remote);
    }

    /// Returns the memory of a `register` step.
    pub fn region(&self, id: &str) -> Option<Remote> {
        self.regions.get(id).copied()
    }

    /// Processes a report of endpoint `at`'s application. Returns a problem if the report belongs
    /// to no operation.
    pub fn take(&mut self, at: EndpointIndex, report: Report) -> Option<String> {
        let Some(token) = report.token else {
            // A peer wrote to this endpoint's memory.
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

    /// Returns whether an operation has completed or has no completion.
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

    /// Returns the differences between an operation's completion, if any, and the scenario.
    fn judge(&self, id: &str) -> Vec<String> {
        let report = self
            .tokens
            .get(id)
            .and_then(|token| self.reports.get(token));
        report.map_or_else(Vec::new, |report| {
            verify::completion(self.scenario, id, report)
        })
    }

    /// Returns the difference between the completion data of peers' writes to endpoint `at` and the
    /// scenario.
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
        // A scenario names only memory that an earlier step registered. If the registration failed,
        // the run has already reported that.
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

/// The endpoints of a run.
pub trait Runner<'s> {
    /// The reason why a run stops.
    type Stop;

    /// The record of the run.
    fn tracker(&mut self) -> &mut OperationTracker<'s>;

    /// Returns whether an application plays the endpoint.
    fn is_live(&self, at: EndpointIndex) -> bool;

    /// Called when a step begins, and with the number of steps at the end.
    fn begin(&mut self, step: usize);

    /// Starts an operation. Returns its memory, if it registers some.
    ///
    /// # Errors
    /// The run stops.
    fn start(&mut self, step: usize, start: &Start<'s>) -> Result<Option<Remote>, Self::Stop>;

    /// Lets the named endpoints make progress, all if none is named, until the operations have
    /// completed.
    ///
    /// # Errors
    /// The run stops.
    fn wait(
        &mut self,
        step: usize,
        operations: &'s [String],
        progress: &[EndpointIndex],
    ) -> Result<(), Self::Stop>;

    /// Lets the named endpoints make progress, all if none is named, until nothing more happens.
    ///
    /// # Errors
    /// The run stops.
    fn settle(&mut self, step: usize, progress: &[EndpointIndex]) -> Result<(), Self::Stop>;

    /// Compares memory; a difference is a [`Runner::problem`].
    ///
    /// # Errors
    /// The run stops.
    fn compare(&mut self, comparison: Comparison<'s>) -> Result<(), Self::Stop>;

    /// Reports something that an application saw and the scenario does not expect.
    ///
    /// # Errors
    /// The run stops.
    fn problem(&mut self, text: String) -> Result<(), Self::Stop>;

    /// Called after the last step.
    ///
    /// # Errors
    /// The run stops.
    fn end(&mut self) -> Result<(), Self::Stop>;
}

/// Plays all steps.
///
/// # Errors
/// The errors of the runner.
pub fn run<'s, S: Runner<'s>>(runner: &mut S) -> Result<(), S::Stop> {
    let scenario = runner.tracker().scenario();
    for (index, step) in scenario.steps.iter().enumerate() {
        runner.begin(index);
        match &step.action {
            Action::Start {
                at, id, operation, ..
            } => {
                let start = runner.tracker().start(index, *at, id, operation);
                if let Some(remote) = runner.start(index, &start)? {
                    runner.tracker().registered(id, remote);
                }
            }
            Action::Wait {
                operations,
                progress,
            } => {
                runner.wait(index, operations, progress)?;
                for id in operations {
                    for text in runner.tracker().judge(id) {
                        runner.problem(text)?;
                    }
                }
            }
            Action::Settle { progress } => runner.settle(index, progress)?,
            Action::Check {
                at,
                region,
                offset,
                message,
            } => {
                if let Some(comparison) = runner.tracker().comparison(*at, region, *offset, message)
                {
                    runner.compare(comparison)?;
                }
            }
        }
    }
    runner.begin(scenario.steps.len());
    runner.end()?;
    for at in 0..scenario.endpoints.len() {
        if runner.is_live(at)
            && let Some(text) = runner.tracker().judge_written(at)
        {
            runner.problem(text)?;
        }
    }
    Ok(())
}

/// The message about a difference that a comparison of memory found.
pub fn differs(comparison: &Comparison<'_>, difference: impl std::fmt::Display) -> String {
    format!(
        "memory `{}` does not hold `{}`: {difference}",
        comparison.region, comparison.message
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Step;

    fn report(token: Option<Token>) -> Report {
        Report {
            token,
            length: 0,
            tag: 0,
            data: None,
            source: None,
            failure: None,
            difference: None,
        }
    }

    #[test]
    fn duplicate_or_unknown_completions_are_problems() {
        let traces = efa_testing::workspace::traces();
        let scenario = Scenario::load(&traces.join("eager-tagged.toml")).unwrap();
        let mut tracker = OperationTracker::new(&scenario);
        for (step, Step { action, .. }) in scenario.steps.iter().enumerate() {
            if let Action::Start {
                at, id, operation, ..
            } = action
            {
                tracker.start(step, *at, id, operation);
            }
        }
        let token = tracker.tokens["question-arrives"];
        assert!(!tracker.is_done("question-arrives"));
        assert_eq!(tracker.take(1, report(Some(token))), None);
        assert!(tracker.is_done("question-arrives"));
        let again = tracker.take(1, report(Some(token)));
        assert_eq!(again.unwrap(), "`question-arrives` completed twice");
        for foreign in [Some(999), None] {
            let problem = tracker.take(1, report(foreign)).unwrap();
            assert!(problem.contains("belongs to nothing"), "{problem}");
        }
        // A peer's write has no token, and is judged at the end.
        let written = Report {
            data: Some(7),
            ..report(None)
        };
        assert_eq!(tracker.take(1, written), None);
        assert!(tracker.judge_written(1).unwrap().contains("actual [7]"));
        assert_eq!(tracker.judge_written(0), None);
    }
}
