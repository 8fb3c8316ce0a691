//! Playing a scenario with the engine as the peer of the endpoint under test.
//!
//! A recorded peer answers what the recorded endpoint sent. An endpoint that chooses another
//! subprotocol, as it may, needs other answers: the engine gives them. The application must see what
//! the scenario says, as ever.

use std::collections::HashMap;

use super::backend::{Backend, BackendError};
use super::{Engine, Opener};
use crate::application::subject::Subject;
use crate::application::{Report, RequestError, Started, Token};
use crate::operation::{EndpointIndex, Remote};
use crate::scenario::{Action, Operation, Scenario};
use crate::verify;

/// How often everybody is polled without result before nothing more is expected in a `settle`.
const QUIET_POLLS: u32 = 4;

struct Live<'s, 'b, B: Backend> {
    scenario: &'s Scenario,
    backend: &'b mut B,
    subjects: Vec<Box<dyn Subject>>,
    tokens: HashMap<&'s str, Token>,
    regions: HashMap<&'s str, Remote>,
    reports: HashMap<Token, Report>,
    written: HashMap<EndpointIndex, Vec<u64>>,
    problems: Vec<String>,
}

/// The scenario cannot go on; the problems say why.
struct Stopped;

/// Plays a scenario with what `opener` opens as endpoint `dut` and the engine as all others. Returns
/// what the applications saw that the scenario does not say.
pub fn play<B: Backend>(
    scenario: &Scenario,
    dut: EndpointIndex,
    backend: &mut B,
    opener: &mut dyn Opener<B>,
) -> Result<Vec<String>, BackendError>
where
    B::Nic: 'static,
{
    backend.reset();
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    for (at, endpoint) in scenario.endpoints.iter().enumerate() {
        subjects.push(if at == dut {
            opener.open(backend, endpoint)?
        } else {
            Engine::default().open(backend, endpoint)?
        });
    }
    let addresses = subjects
        .iter()
        .map(|subject| subject.address())
        .collect::<Result<Vec<_>, RequestError>>()?;
    for (subject, endpoint) in subjects.iter_mut().zip(&scenario.endpoints) {
        for &peer in &endpoint.address_vector {
            let inserted = subject.insert(peer, &addresses[peer]);
            inserted?;
        }
        subject.poll()?;
    }
    let mut live = Live {
        scenario,
        backend,
        subjects,
        tokens: HashMap::new(),
        regions: HashMap::new(),
        reports: HashMap::new(),
        written: HashMap::new(),
        problems: Vec::new(),
    };
    // Whether it stopped early shows in the problems.
    let _ = live.run();
    Ok(live.problems)
}

impl<'s, B: Backend> Live<'s, '_, B> {
    fn run(&mut self) -> Result<(), Stopped> {
        let scenario = self.scenario;
        for (index, step) in scenario.steps.iter().enumerate() {
            match &step.action {
                Action::Start {
                    at, id, operation, ..
                } => self.start(*at, index as Token, id, operation)?,
                Action::Wait {
                    operations,
                    progress,
                } => {
                    self.until(progress, operations)?;
                    for id in operations {
                        if let Some(report) = self.reports.get(&self.tokens[id.as_str()]) {
                            let problems = verify::completion(scenario, id, report);
                            self.problems.extend(problems);
                        }
                    }
                }
                Action::Settle { progress } => self.until(progress, &[])?,
                Action::Check {
                    at,
                    region,
                    offset,
                    message,
                } => self.check(*at, region, *offset, message),
            }
        }
        self.until(&[], &[])?;
        for at in 0..self.subjects.len() {
            let arrived = self.written.get(&at).map_or(&[][..], Vec::as_slice);
            self.problems.extend(verify::written(scenario, at, arrived));
        }
        Ok(())
    }

    fn stop(&mut self, text: String) -> Stopped {
        self.problems.push(text);
        Stopped
    }

    fn start(
        &mut self,
        at: EndpointIndex,
        token: Token,
        id: &'s str,
        operation: &Operation,
    ) -> Result<(), Stopped> {
        self.tokens.insert(id, token);
        let nowhere = Remote { address: 0, key: 0 };
        let request = operation.with_remote(|place| {
            let region = self.regions.get(place.region.as_str()).copied();
            place.within(region.unwrap_or(nowhere))
        });
        let seed = verify::expected_seed(self.scenario, id);
        let mut rounds = 0;
        loop {
            match self.subjects[at].start(token, &request, seed) {
                Ok(Started::Operation) => return Ok(()),
                Ok(Started::Region(remote)) => {
                    self.regions.insert(id, remote);
                    return Ok(());
                }
                Err(RequestError::TryAgain) => {
                    self.round(&[])?;
                    rounds += 1;
                    if !self.idle(rounds) {
                        return Err(self.stop(format!("`{id}`: resources stayed short")));
                    }
                }
                Err(error) => {
                    return Err(self.stop(format!("`{id}` was not started: {error}")));
                }
            }
        }
    }

    fn idle(&mut self, rounds: u32) -> bool {
        let timeouts = self.subjects.iter().filter_map(|s| s.next_timeout());
        let timeout = timeouts.min();
        self.backend.idle(rounds, timeout)
    }

    /// Everybody that makes progress does; returns whether anything happened.
    fn round(&mut self, only: &[EndpointIndex]) -> Result<bool, Stopped> {
        let mut busy = false;
        for at in 0..self.subjects.len() {
            if !only.is_empty() && !only.contains(&at) {
                continue;
            }
            let reports = match self.subjects[at].poll() {
                Ok(reports) => reports,
                Err(error) => return Err(self.stop(format!("polling failed: {error}"))),
            };
            let name = &self.scenario.endpoints[at].name;
            for event in self.subjects[at].events().unwrap_or_default() {
                self.problems
                    .push(format!("endpoint `{name}` reported {event}"));
            }
            for report in reports {
                busy = true;
                match (report.token, report.data) {
                    (Some(token), _) => {
                        self.reports.insert(token, report);
                    }
                    (None, Some(data)) => self.written.entry(at).or_default().push(data),
                    (None, None) => {}
                }
            }
        }
        Ok(busy)
    }

    /// Until the named operations are complete and nothing more happens.
    fn until(&mut self, only: &[EndpointIndex], operations: &[String]) -> Result<(), Stopped> {
        let waited: Vec<(&str, Token)> = operations
            .iter()
            .filter(|id| {
                let found = self.scenario.operation(id);
                found.is_some_and(|(_, operation, _)| operation.completes())
            })
            .map(|id| (id.as_str(), self.tokens[id.as_str()]))
            .collect();
        let (mut idle, mut quiet) = (0, 0);
        loop {
            if self.round(only)? {
                (idle, quiet) = (0, 0);
                continue;
            }
            let missing = waited
                .iter()
                .find(|(_, token)| !self.reports.contains_key(token));
            idle += 1;
            let goes_on = self.idle(idle);
            match missing {
                None => {
                    quiet += 1;
                    if quiet > QUIET_POLLS.max(self.backend.quiet_rounds().min(200)) || !goes_on {
                        return Ok(());
                    }
                }
                Some(_) if goes_on => {}
                Some((id, _)) => {
                    let text = format!("`{id}` did not complete with the engine as peer");
                    return Err(self.stop(text));
                }
            }
        }
    }

    fn check(&mut self, at: EndpointIndex, region: &str, offset: usize, message: &str) {
        let found = self.scenario.operation(message);
        let Some(payload) = found.and_then(|(_, operation, _)| operation.payload()) else {
            return;
        };
        match self.subjects[at].check(self.tokens[region], offset, payload) {
            Ok(None) => {}
            Ok(Some(difference)) => self.problems.push(format!(
                "memory `{region}` does not hold `{message}`: {difference}"
            )),
            Err(error) => self
                .problems
                .push(format!("memory `{region}` cannot be checked: {error}")),
        }
    }
}
