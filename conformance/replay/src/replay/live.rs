//! Plays a scenario with the engine as the peer of the endpoint under test.
//!
//! A recorded peer has answers for the recorded packets only. An endpoint that chooses another
//! subprotocol, which the protocol permits, needs other answers, which the engine provides. The
//! application must see the results in the scenario, as in every replay.

use efa_core::address::RawAddress;
use efa_play::application::checked::{CheckedApplication, ExitError};
use efa_play::application::{RequestError, Started};
use efa_play::operation::{EndpointIndex, Remote};
use efa_play::runner::{self, Comparison, OperationTracker, Runner, Start};
use efa_play::scenario::Scenario;
use efa_play::trace::{END_OF_STEPS, region_comment};

use super::backend::{Backend, BackendError, arm_faults};
use super::opener::{Engine, Opener};

/// Polls without result after which a `settle` is complete.
const QUIET_POLLS: u32 = 4;

struct LiveRun<'s, 'b, B: Backend> {
    scenario: &'s Scenario,
    backend: &'b mut B,
    annotate: Option<&'b mut Annotate<'b, B>>,
    subjects: Vec<Box<dyn CheckedApplication>>,
    tracker: OperationTracker<'s>,
    problems: Vec<String>,
}

/// The scenario cannot continue. The problems have the reason.
struct Stopped;

/// Called with the comments of a trace: the step that begins, the memory that was registered.
pub type Annotate<'a, B> = dyn FnMut(&mut B, String) + 'a;

/// Plays a scenario with the result of `opener` as endpoint `dut` and the engine as all others.
/// Returns the application's results that differ from the scenario.
pub fn play_with_engine<'a, B: Backend>(
    scenario: &Scenario,
    dut: EndpointIndex,
    backend: &'a mut B,
    opener: &mut dyn Opener<B>,
    annotate: Option<&'a mut Annotate<'a, B>>,
) -> Result<Vec<String>, BackendError>
where
    B::Nic: 'static,
{
    backend.reset();
    let mut subjects: Vec<Box<dyn CheckedApplication>> = Vec::new();
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
    let places = addresses
        .iter()
        .map(|address| address.first_chunk().map(RawAddress::from_bytes))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| RequestError::Refused("an endpoint has no raw address".into()))?;
    if let Some(lack) = arm_faults(backend, scenario, &places)? {
        return Ok(vec![format!("the scenario cannot be played: {lack}")]);
    }
    let mut live = LiveRun {
        scenario,
        backend,
        annotate,
        subjects,
        tracker: OperationTracker::new(scenario),
        problems: Vec::new(),
    };
    // If it stopped early, the problems have the reason.
    let _ = runner::run(&mut live);
    // The earlier replay has reported it if its program does not exit.
    if let Err(ExitError::Failed(text)) = live.subjects[dut].end() {
        live.problems.push(text);
    }
    Ok(live.problems)
}

impl<'s, B: Backend> LiveRun<'s, '_, B> {
    fn stop(&mut self, text: String) -> Stopped {
        self.problems.push(text);
        Stopped
    }

    fn annotate(&mut self, text: String) {
        if let Some(annotate) = &mut self.annotate {
            annotate(self.backend, text);
        }
    }

    fn idle(&mut self, rounds: u32) -> bool {
        let timeouts = self.subjects.iter().filter_map(|s| s.next_timeout());
        let timeout = timeouts.min();
        self.backend.idle(rounds, timeout)
    }

    /// Polls all endpoints that make progress. Returns whether there was any event.
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
                self.problems.extend(self.tracker.take(at, report));
            }
        }
        Ok(busy)
    }

    /// Waits until the given operations are complete and there are no more events.
    fn until(&mut self, only: &[EndpointIndex], operations: &[String]) -> Result<(), Stopped> {
        let (mut idle, mut quiet) = (0, 0);
        loop {
            if self.round(only)? {
                (idle, quiet) = (0, 0);
                continue;
            }
            idle += 1;
            let goes_on = self.idle(idle);
            match operations.iter().find(|id| !self.tracker.is_done(id)) {
                None => {
                    quiet += 1;
                    if quiet > QUIET_POLLS.max(self.backend.quiet_rounds().min(200)) || !goes_on {
                        return Ok(());
                    }
                }
                Some(_) if goes_on => {}
                Some(id) => {
                    let text = format!("`{id}` did not complete with the engine as peer");
                    return Err(self.stop(text));
                }
            }
        }
    }
}

impl<'s, B: Backend> Runner<'s> for LiveRun<'s, '_, B> {
    type Stop = Stopped;

    fn tracker(&mut self) -> &mut OperationTracker<'s> {
        &mut self.tracker
    }

    fn is_live(&self, _: EndpointIndex) -> bool {
        true
    }

    fn begin(&mut self, step: usize) {
        let text = match self.scenario.steps.get(step) {
            Some(begins) => begins.describe(step, self.scenario),
            None => END_OF_STEPS.into(),
        };
        self.annotate(text);
    }

    fn start(&mut self, _: usize, start: &Start<'s>) -> Result<Option<Remote>, Stopped> {
        let id = start.id;
        let mut rounds = 0;
        loop {
            let subject = &mut self.subjects[start.at];
            match subject.start(start.token, &start.request, start.seed) {
                Ok(Started::Operation) => return Ok(None),
                Ok(Started::Region(remote)) => {
                    self.annotate(region_comment(id, remote));
                    return Ok(Some(remote));
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

    fn wait(
        &mut self,
        _: usize,
        operations: &'s [String],
        progress: &[EndpointIndex],
    ) -> Result<(), Stopped> {
        self.until(progress, operations)
    }

    fn settle(&mut self, _: usize, progress: &[EndpointIndex]) -> Result<(), Stopped> {
        self.until(progress, &[])
    }

    fn compare(&mut self, comparison: Comparison<'s>) -> Result<(), Stopped> {
        let Comparison {
            at,
            region,
            token,
            offset,
            payload,
            ..
        } = comparison;
        let text = match self.subjects[at].check(token, offset, payload) {
            Ok(None) => return Ok(()),
            Ok(Some(difference)) => runner::differs(&comparison, difference),
            Err(error) => format!("memory `{region}` cannot be checked: {error}"),
        };
        self.problem(text)
    }

    fn problem(&mut self, text: String) -> Result<(), Stopped> {
        self.problems.push(text);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Stopped> {
        self.until(&[], &[])
    }
}
