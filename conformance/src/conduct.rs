//! Playing a scenario with driver processes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::application::{Report, Started, Token};
use crate::drive::{Bytes, Command, Event, Opening};
use crate::libfabric::Version;
use crate::operation::{EndpointIndex, Remote};
use crate::player::{Player, PlayerError};
use crate::scenario::{Action, Operation, Scenario, Software};
use crate::verify;

/// How long operations may take to complete, in all of one `wait`.
const WAIT_TIME: Duration = Duration::from_secs(30);
/// For how long nothing must happen before a `settle` is over.
const QUIET_TIME: Duration = Duration::from_millis(100);
/// How often a request is repeated when resources are short, and how long in between.
const TRY_AGAIN: (u32, Duration) = (2000, Duration::from_millis(1));

/// Why a scenario was not played to its end.
#[derive(Debug, thiserror::Error)]
pub enum ConductError {
    /// A process failed.
    #[error(transparent)]
    Player(#[from] PlayerError),
    /// The wrong release of a library was loaded.
    #[error(
        "endpoint `{endpoint}` needs libfabric {needed}, but {library} has {found}; name another \
         library with --libfabric PATH"
    )]
    Version {
        /// Which endpoint.
        endpoint: String,
        /// What the scenario says.
        needed: Version,
        /// What was loaded.
        found: String,
        /// From where.
        library: PathBuf,
    },
    /// Operations did not complete.
    #[error("line {line}: {operations} did not complete within {limit:?}")]
    Timeout {
        /// The step's line in the scenario.
        line: usize,
        /// The operations that are missing.
        operations: String,
        /// How long was waited.
        limit: Duration,
    },
}

impl ConductError {
    /// Whether the environment is at fault rather than what was tested.
    pub fn is_environment(&self) -> bool {
        matches!(
            self,
            ConductError::Version { .. }
                | ConductError::Player(
                    PlayerError::Start { .. }
                        | PlayerError::Refused { .. }
                        | PlayerError::Unsupported { .. }
                        | PlayerError::Ended { is_unfit: true, .. }
                )
        )
    }
}

/// When a step began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The step's place in the scenario, from 0.
    pub step: usize,
    /// Since the Unix epoch.
    pub time: Duration,
}

/// Where registered memory was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionMark {
    /// The `register` step's id.
    pub id: String,
    /// Its place and key.
    pub remote: Remote,
    /// When it was registered, since the Unix epoch.
    pub time: Duration,
}

/// What came of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// When each step began.
    pub marks: Vec<Mark>,
    /// The release of each endpoint's software.
    pub versions: Vec<String>,
    /// Where each `register` step's memory was.
    pub regions: Vec<RegionMark>,
    /// Where applications saw something else than the scenario says.
    pub problems: Vec<String>,
}

/// Plays a scenario.
pub struct Conductor<'a> {
    scenario: &'a Scenario,
    players: Vec<Player>,
    library: PathBuf,
    tokens: HashMap<&'a str, Token>,
    regions: HashMap<&'a str, Remote>,
    reports: HashMap<Token, Report>,
    /// Completion data that came with writes of peers, by the endpoint that it came to.
    written: HashMap<EndpointIndex, Vec<u64>>,
    transcript: Transcript,
}

fn now() -> Duration {
    // A clock before 1970 gives times that are merely wrong in the capture's comments.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

impl<'a> Conductor<'a> {
    /// `players` are in the order of the scenario's endpoints.
    pub fn new(scenario: &'a Scenario, players: Vec<Player>, library: PathBuf) -> Self {
        Conductor {
            scenario,
            players,
            library,
            tokens: HashMap::new(),
            regions: HashMap::new(),
            reports: HashMap::new(),
            written: HashMap::new(),
            transcript: Transcript::default(),
        }
    }

    /// Opens the endpoints, plays all steps and ends the processes.
    pub fn play(mut self) -> Result<Transcript, ConductError> {
        self.open()?;
        for (index, step) in self.scenario.steps.iter().enumerate() {
            self.transcript.marks.push(Mark {
                step: index,
                time: now(),
            });
            self.step(step.line, &step.action)?;
        }
        self.transcript.marks.push(Mark {
            step: self.scenario.steps.len(),
            time: now(),
        });
        for at in 0..self.players.len() {
            let arrived = self.written.get(&at).map_or(&[][..], Vec::as_slice);
            let problem = verify::written(self.scenario, at, arrived);
            self.transcript.problems.extend(problem);
        }
        for player in self.players.drain(..) {
            player.end()?;
        }
        Ok(self.transcript)
    }

    fn ask(&mut self, at: EndpointIndex, command: &Command) -> Result<Event, ConductError> {
        let mut aside = Vec::new();
        let answer = self.players[at].ask(command, &mut aside)?;
        for event in aside {
            self.take(at, event);
        }
        Ok(answer)
    }

    fn unexpected(&self, at: EndpointIndex, event: &Event) -> ConductError {
        self.players[at].unexpected(event).into()
    }

    fn open(&mut self) -> Result<(), ConductError> {
        let mut addresses = Vec::new();
        for (at, endpoint) in self.scenario.endpoints.iter().enumerate() {
            let identity = self.players[at].identity()?;
            match (endpoint.software, endpoint.version) {
                (Software::Libfabric, Some(needed)) if identity.version() != Some(needed) => {
                    return Err(ConductError::Version {
                        endpoint: endpoint.name.clone(),
                        needed,
                        found: identity.to_string(),
                        library: self.library.clone(),
                    });
                }
                _ => {}
            }
            let command = Command::open(&Opening::from(endpoint));
            let answer = self.ask(at, &command)?;
            let Event::Opened { address } = answer else {
                return Err(self.unexpected(at, &answer));
            };
            self.transcript.versions.push(match endpoint.software {
                Software::Libfabric => format!("{identity}, interface {}", endpoint.api),
                Software::Core => identity.to_string(),
            });
            addresses.push(address.0);
        }
        for (at, endpoint) in self.scenario.endpoints.iter().enumerate() {
            for &peer in &endpoint.address_vector {
                let address = Bytes(addresses[peer].clone());
                self.ask(at, &Command::Insert { peer, address })?;
            }
        }
        // Stock libfabric posts its receive buffers when it first makes progress; without them the
        // first messages would meet receivers that are not ready.
        self.settle(&[])
    }

    fn step(&mut self, line: usize, action: &'a Action) -> Result<(), ConductError> {
        match action {
            Action::Start {
                at, id, operation, ..
            } => self.start(*at, id, operation),
            Action::Wait {
                operations,
                progress,
            } => self.wait(line, operations, progress),
            Action::Settle { progress } => self.settle(progress),
            Action::Check {
                at,
                region,
                offset,
                message,
            } => self.check(*at, region, *offset, message),
        }
    }

    fn start(
        &mut self,
        at: EndpointIndex,
        id: &'a str,
        operation: &Operation,
    ) -> Result<(), ConductError> {
        let token = self.tokens.len() as Token;
        self.tokens.insert(id, token);
        let regions = &self.regions;
        let request = operation.with_remote(|place| place.within(regions[place.region.as_str()]));
        let seed = verify::expected_seed(self.scenario, id);
        let command = Command::start(token, &request, seed);
        let mut attempts = 0;
        loop {
            match self.ask(at, &command)?.into_started() {
                Ok(started) => {
                    if let Started::Region(remote) = started {
                        self.regions.insert(id, remote);
                        self.transcript.regions.push(RegionMark {
                            id: id.to_owned(),
                            remote,
                            time: now(),
                        });
                    }
                    return Ok(());
                }
                // Every endpoint may have to move before there is room again.
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

    /// Starts or stops progress at the named endpoints, or at all.
    fn set_progress(&mut self, only: &[EndpointIndex], on: bool) -> Result<(), ConductError> {
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

    fn wait(
        &mut self,
        line: usize,
        operations: &[String],
        progress: &[EndpointIndex],
    ) -> Result<(), ConductError> {
        self.set_progress(progress, true)?;
        let deadline = Instant::now() + WAIT_TIME;
        loop {
            let missing: Vec<&str> = operations
                .iter()
                .map(String::as_str)
                .filter(|id| !self.is_done(id))
                .collect();
            if missing.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                return Err(ConductError::Timeout {
                    line,
                    operations: missing.join(", "),
                    limit: WAIT_TIME,
                });
            }
            self.listen(progress)?;
        }
        self.set_progress(progress, false)?;
        for id in operations {
            let Some(report) = self.reports.get(&self.tokens[id.as_str()]) else {
                continue;
            };
            let problems = verify::completion(self.scenario, id, report);
            self.transcript.problems.extend(problems);
        }
        Ok(())
    }

    fn is_done(&self, id: &str) -> bool {
        let completes = self
            .scenario
            .operation(id)
            .is_some_and(|(_, operation, _)| operation.completes());
        !completes || self.reports.contains_key(&self.tokens[id])
    }

    fn settle(&mut self, progress: &[EndpointIndex]) -> Result<(), ConductError> {
        self.set_progress(progress, true)?;
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET_TIME {
            if self.listen(progress)? {
                quiet_since = Instant::now();
            }
        }
        self.set_progress(progress, false)
    }

    /// Takes what drivers say for a moment; returns whether they said anything.
    fn listen(&mut self, only: &[EndpointIndex]) -> Result<bool, ConductError> {
        let mut heard = false;
        for at in self.chosen(only) {
            while let Some(event) = self.players[at].hear(Duration::from_millis(1))? {
                heard = true;
                self.take(at, event);
            }
        }
        Ok(heard)
    }

    fn take(&mut self, at: EndpointIndex, event: Event) {
        let name = &self.scenario.endpoints[at].name;
        match event.into_report() {
            Ok(report) => match (report.token, report.data) {
                (Some(token), _) => {
                    self.reports.insert(token, report);
                }
                // Without a token a peer wrote to our memory.
                (None, Some(data)) => self.written.entry(at).or_default().push(data),
                (None, None) => {}
            },
            Err(Event::Reported { text }) => {
                let problem = format!("endpoint `{name}` reported: {}", text.0);
                self.transcript.problems.push(problem);
            }
            Err(other) => {
                let problem = format!("endpoint `{name}` said unasked: `{}`", other.line());
                self.transcript.problems.push(problem);
            }
        }
    }

    fn check(
        &mut self,
        at: EndpointIndex,
        region: &str,
        offset: usize,
        message: &str,
    ) -> Result<(), ConductError> {
        let payload = self
            .scenario
            .operation(message)
            .and_then(|(_, operation, _)| operation.payload());
        let Some(payload) = payload else {
            return Ok(());
        };
        let command = Command::check(self.tokens[region], offset, payload);
        match self.ask(at, &command)?.difference() {
            Ok(None) => Ok(()),
            Ok(Some(difference)) => {
                self.transcript.problems.push(format!(
                    "memory `{region}` does not hold `{message}`: {difference}"
                ));
                Ok(())
            }
            Err(answer) => Err(self.unexpected(at, &answer)),
        }
    }
}
