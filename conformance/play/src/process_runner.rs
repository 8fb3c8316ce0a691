//! Plays a scenario with driver processes.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::application::Started;
use crate::drive::{Bytes, Command, EndpointOptions, Event, Line};
use crate::libfabric::Version;
use crate::operation::{EndpointIndex, Remote};
use crate::player::{Player, PlayerError};
use crate::runner::{self, Comparison, OperationTracker, Runner, Start};
use crate::scenario::{Scenario, Software};

/// The longest time in which the operations of one `wait` have to complete.
const WAIT_TIME: Duration = Duration::from_secs(30);
/// The quiet time after which a `settle` ends.
const QUIET_TIME: Duration = Duration::from_millis(100);
/// The number of attempts when resources are exhausted, and the time between them.
const TRY_AGAIN: (u32, Duration) = (2000, Duration::from_millis(1));

/// The reason why a scenario was not played to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The process of an endpoint failed.
    #[error(transparent)]
    Player(#[from] PlayerError),
    /// The scenario needs another release of libfabric for an endpoint.
    #[error(
        "endpoint `{endpoint}` needs libfabric {needed}, but {library} has {found}; name another \
         library with --libfabric PATH"
    )]
    Version {
        /// The name of the endpoint.
        endpoint: String,
        /// The release that it needs at least.
        needed: Version,
        /// The release that its process stated.
        found: String,
        /// The library that was loaded.
        library: PathBuf,
    },
    /// An endpoint of the scenario has no application.
    #[error(
        "the packets of endpoint `{endpoint}` are written by hand, nothing plays it; `efa-conformance \
         run` tests the others"
    )]
    Scripted {
        /// The name of the endpoint.
        endpoint: String,
    },
    /// The faults of the scenario are handed over in a file, which cannot be written.
    #[error("cannot write the scenario's faults to a temporary file: {0}")]
    Faults(std::io::Error),
    /// Operations that the scenario waits for did not complete.
    #[error("line {line}: {operations} did not complete within {limit:?}")]
    Timeout {
        /// The step's line in the scenario.
        line: usize,
        /// Their names, as text.
        operations: String,
        /// The time that they had.
        limit: Duration,
    },
}

impl RunError {
    /// Returns whether the scenario was played to its end nevertheless.
    pub fn is_remark(&self) -> bool {
        matches!(self, RunError::Player(PlayerError::Lingers { .. }))
    }

    /// Returns whether the environment is at fault, not the software under test.
    pub fn is_environment(&self) -> bool {
        matches!(
            self,
            RunError::Version { .. }
                | RunError::Scripted { .. }
                | RunError::Faults(_)
                | RunError::Player(
                    PlayerError::Start { .. }
                        | PlayerError::Refused { .. }
                        | PlayerError::Unsupported { .. }
                        | PlayerError::Ended { is_unfit: true, .. }
                )
        )
    }
}

/// The start time of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepTime {
    /// The index of the step, from 0.
    pub step: usize,
    /// The time since the Unix epoch.
    pub time: Duration,
}

/// A memory registration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RegionMark {
    /// The `register` step's id.
    pub(crate) id: String,
    pub(crate) remote: Remote,
    /// The time of the registration, since the Unix epoch.
    pub(crate) time: Duration,
}

/// The result of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// The start time of each step.
    pub marks: Vec<StepTime>,
    /// The release of each endpoint's software.
    pub versions: Vec<String>,
    pub(crate) regions: Vec<RegionMark>,
    /// Differences between the applications' results and the scenario.
    pub problems: Vec<String>,
    /// The captures that the players printed, one for each endpoint; empty if there is none.
    pub captures: Vec<Vec<u8>>,
}

/// A played scenario, perhaps not to its end.
#[derive(Debug)]
pub struct Played {
    /// What happened until then.
    pub transcript: Transcript,
    /// The reason why it was not played to its end, if so.
    pub error: Option<RunError>,
}

impl Played {
    /// The result of a scenario that was played to its end.
    ///
    /// # Errors
    /// The reason why it was not.
    pub fn whole(self) -> Result<Transcript, RunError> {
        match self.error {
            None => Ok(self.transcript),
            Some(error) => Err(error),
        }
    }
}

/// Plays a scenario.
pub struct ProcessRunner<'a> {
    scenario: &'a Scenario,
    players: Vec<Player>,
    library: PathBuf,
    tracker: OperationTracker<'a>,
    transcript: Transcript,
}

fn now() -> Duration {
    // A clock before 1970 only makes the times in the capture's comments wrong.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

impl<'a> ProcessRunner<'a> {
    /// `players` are in the order of the scenario's endpoints.
    pub fn new(scenario: &'a Scenario, players: Vec<Player>, library: PathBuf) -> Self {
        ProcessRunner {
            scenario,
            players,
            library,
            tracker: OperationTracker::new(scenario),
            transcript: Transcript::default(),
        }
    }

    /// Opens the endpoints, plays all steps and ends the processes. If one endpoint fails, the
    /// others are ended too, and still return their captures.
    pub fn run(mut self) -> Played {
        let mut error = self.open().and_then(|()| runner::run(&mut self)).err();
        for player in self.players.drain(..) {
            let capture = match error {
                Some(ref error) if !error.is_remark() => player.salvage(),
                _ => player.end().unwrap_or_else(|problem| {
                    error = Some(problem.into());
                    Vec::new()
                }),
            };
            self.transcript.captures.push(capture);
        }
        Played {
            transcript: self.transcript,
            error,
        }
    }

    fn ask(&mut self, at: EndpointIndex, command: &Command) -> Result<Event, RunError> {
        let mut aside = Vec::new();
        let answer = self.players[at].ask(command, &mut aside)?;
        for event in aside {
            self.take(at, event);
        }
        Ok(answer)
    }

    fn unexpected(&mut self, at: EndpointIndex, event: &Event) -> RunError {
        self.players[at].unexpected(event).into()
    }

    fn open(&mut self) -> Result<(), RunError> {
        let mut addresses = Vec::new();
        for (at, endpoint) in self.scenario.endpoints.iter().enumerate() {
            let identity = self.players[at].identity()?;
            match (endpoint.software, endpoint.version) {
                (Software::Libfabric, Some(needed)) if identity.version() != Some(needed) => {
                    return Err(RunError::Version {
                        endpoint: endpoint.name.clone(),
                        needed,
                        found: identity.to_string(),
                        library: self.library.clone(),
                    });
                }
                _ => {}
            }
            let command = Command::Open(EndpointOptions {
                device: self.players[at].device().map(str::to_owned),
                ..EndpointOptions::from(endpoint)
            });
            let answer = self.ask(at, &command)?;
            let Event::Opened { address } = answer else {
                return Err(self.unexpected(at, &answer));
            };
            self.transcript.versions.push(match endpoint.software {
                Software::Libfabric => format!("{identity}, interface {}", endpoint.api),
                Software::Core | Software::Script => identity.to_string(),
            });
            addresses.push(address.0);
        }
        for (at, endpoint) in self.scenario.endpoints.iter().enumerate() {
            for &peer in &endpoint.address_vector {
                let address = Bytes(addresses[peer].clone());
                self.ask(at, &Command::Insert { peer, address })?;
            }
        }
        // Stock libfabric posts its receive buffers when it first makes progress. Without this, the
        // first messages would find receivers that are not ready.
        self.until_quiet(&[])
    }

    /// Starts or stops progress at the named endpoints, or at all.
    fn set_progress(&mut self, only: &[EndpointIndex], on: bool) -> Result<(), RunError> {
        let command = if on {
            Command::Progress {}
        } else {
            Command::Pause {}
        };
        for at in self.chosen(only) {
            self.ask(at, &command)?;
        }
        Ok(())
    }

    fn chosen(&self, only: &[EndpointIndex]) -> Vec<EndpointIndex> {
        if only.is_empty() {
            (0..self.players.len()).collect()
        } else {
            only.to_vec()
        }
    }

    /// Lets the named endpoints make progress, all if none is named, until they have been quiet for
    /// a while.
    fn until_quiet(&mut self, progress: &[EndpointIndex]) -> Result<(), RunError> {
        self.set_progress(progress, true)?;
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET_TIME {
            if self.listen(progress)? {
                quiet_since = Instant::now();
            }
        }
        self.set_progress(progress, false)
    }

    /// Handles events of the drivers for a moment; returns whether there were any.
    fn listen(&mut self, only: &[EndpointIndex]) -> Result<bool, RunError> {
        let mut heard = false;
        for at in self.chosen(only) {
            while let Some(event) = self.players[at].receive(Duration::from_millis(1))? {
                heard = true;
                self.take(at, event);
            }
        }
        Ok(heard)
    }

    fn take(&mut self, at: EndpointIndex, event: Event) {
        let name = &self.scenario.endpoints[at].name;
        match event {
            Event::Completed(report) => {
                let problem = self.tracker.take(at, report);
                self.transcript.problems.extend(problem);
            }
            Event::Reported { text } => {
                let problem = format!("endpoint `{name}` reported: {text}");
                self.transcript.problems.push(problem);
            }
            other => {
                let problem = format!("endpoint `{name}` said unasked: `{}`", other.line());
                self.transcript.problems.push(problem);
            }
        }
    }
}

impl<'a> Runner<'a> for ProcessRunner<'a> {
    type Stop = RunError;

    fn tracker(&mut self) -> &mut OperationTracker<'a> {
        &mut self.tracker
    }

    fn is_live(&self, _: EndpointIndex) -> bool {
        true
    }

    fn begin(&mut self, step: usize) {
        self.transcript.marks.push(StepTime { step, time: now() });
    }

    fn start(&mut self, _: usize, start: &Start<'a>) -> Result<Option<Remote>, RunError> {
        let at = start.at;
        let command = Command::Start {
            id: start.token,
            operation: start.request.clone(),
            expect: start.seed,
        };
        let mut attempts = 0;
        loop {
            match self.ask(at, &command)?.into_started() {
                Ok(Started::Operation) => return Ok(None),
                Ok(Started::Region(remote)) => {
                    self.transcript.regions.push(RegionMark {
                        id: start.id.to_owned(),
                        remote,
                        time: now(),
                    });
                    return Ok(Some(remote));
                }
                // Every endpoint may have to make progress before there is room again.
                Err(Event::Again {}) if attempts < TRY_AGAIN.0 => {
                    attempts += 1;
                    self.set_progress(&[], true)?;
                    std::thread::sleep(TRY_AGAIN.1);
                    self.set_progress(&[], false)?;
                }
                Err(answer) => return Err(self.unexpected(at, &answer)),
            }
        }
    }

    fn wait(
        &mut self,
        step: usize,
        operations: &'a [String],
        progress: &[EndpointIndex],
    ) -> Result<(), RunError> {
        self.set_progress(progress, true)?;
        let deadline = Instant::now() + WAIT_TIME;
        loop {
            let mut missing = operations.iter().filter(|id| !self.tracker.is_done(id));
            let Some(first) = missing.next() else {
                break;
            };
            if Instant::now() > deadline {
                let missing = missing.fold(first.clone(), |all, id| format!("{all}, {id}"));
                return Err(RunError::Timeout {
                    line: self.scenario.steps[step].line,
                    operations: missing,
                    limit: WAIT_TIME,
                });
            }
            self.listen(progress)?;
        }
        self.set_progress(progress, false)
    }

    fn settle(&mut self, _: usize, progress: &[EndpointIndex]) -> Result<(), RunError> {
        self.until_quiet(progress)
    }

    fn compare(&mut self, comparison: Comparison<'a>) -> Result<(), RunError> {
        let Comparison {
            at,
            token,
            offset,
            payload,
            ..
        } = comparison;
        let command = Command::Check {
            id: token,
            offset,
            payload,
        };
        match self.ask(at, &command)? {
            Event::Checked { difference: None } => Ok(()),
            Event::Checked {
                difference: Some(difference),
            } => self.problem(runner::differs(&comparison, difference)),
            answer => Err(self.unexpected(at, &answer)),
        }
    }

    fn problem(&mut self, text: String) -> Result<(), RunError> {
        self.transcript.problems.push(text);
        Ok(())
    }

    fn end(&mut self) -> Result<(), RunError> {
        Ok(())
    }
}
