//! Playing scenarios on several hosts.
//!
//! Nothing is replayed there: scripted packets need the device's own frames, and a real device shows them to
//! nobody. All endpoints are live, each at its place, and what the applications see is compared with the
//! scenario.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use efa_core::rules;
use efa_core::rules::Severity;

use super::ladder::Ladder;
use super::runner::Ended;
use super::{Case, Options, Outcome, STOCK};
use crate::compare::Finding;
use crate::conduct::{ConductError, Conductor, Transcript};
use crate::player::{Patience, Place, Player, PlayerError, Program, Reach};
use crate::scenario::{EndpointSpec, Scenario, Software};

/// The name of this backend in results.
pub const BACKEND: &str = "hosts";

/// After so many cases in a row that ended because a host was lost or silent, it is given up.
const MOST_LOST: u32 = 3;

/// Who sits where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seats {
    /// Endpoints by their names.
    Named(BTreeMap<String, Place>),
    /// The first endpoint of each scenario at the first place, the second at the second, and so on in turn.
    InTurn([Place; 2]),
}

impl Seats {
    /// All places.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        match self {
            Seats::Named(places) => places.values().collect::<Vec<_>>(),
            Seats::InTurn(places) => places.iter().collect(),
        }
        .into_iter()
    }

    /// The place of an endpoint.
    fn of(&self, index: usize, name: &str) -> Option<&Place> {
        match self {
            Seats::Named(places) => places.get(name),
            Seats::InTurn(places) => Some(&places[index % places.len()]),
        }
    }
}

/// A scenario that is to be played.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// The trace.
    pub path: PathBuf,
    /// Where.
    pub seats: Seats,
}

/// The hosts, and the software under test.
#[derive(Debug)]
pub struct Hosts {
    reach: Reach,
    program: Program,
    /// Who plays the endpoints that are not under test; `None`: all are.
    peer: Option<Program>,
    /// The name in results of what is under test.
    dut: String,
    patience: Patience,
    options: Options,
    /// The number of cases that each host was lost or silent in since the last one that it was heard in.
    lost: Mutex<BTreeMap<String, u32>>,
}

/// Why a scenario did not come to its end.
enum Stop {
    Conduct(ConductError),
    /// The host is not tried any more.
    GivenUp(String),
}

impl From<ConductError> for Stop {
    fn from(error: ConductError) -> Self {
        Stop::Conduct(error)
    }
}

impl From<PlayerError> for Stop {
    fn from(error: PlayerError) -> Self {
        Stop::Conduct(error.into())
    }
}

impl Hosts {
    /// `program` plays the endpoints under test, `peer` the others; without it all are under test at once.
    pub fn new(
        reach: Reach,
        program: Program,
        peer: Option<Program>,
        dut: String,
        patience: Patience,
        options: Options,
    ) -> Self {
        Hosts {
            reach,
            program,
            peer,
            dut,
            patience,
            options,
            lost: Mutex::default(),
        }
    }

    /// Plays all tasks, up to `jobs` at once. `ended` gets the results in the order of `tasks`.
    pub fn run_all(&self, tasks: &[Task], jobs: NonZeroUsize, mut ended: impl FnMut(&Task, Ended)) {
        let next = AtomicUsize::new(0);
        let (sender, results) = channel();
        thread::scope(|scope| {
            for _ in 0..jobs.get().min(tasks.len()) {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || {
                    while let Some((number, task)) = {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        tasks.get(number).map(|task| (number, task))
                    } {
                        if sender.send((number, self.run(task))).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let mut early = BTreeMap::new();
            let mut due = 0;
            for (number, result) in results {
                early.insert(number, result);
                while let Some(result) = early.remove(&due) {
                    ended(&tasks[due], result);
                    due += 1;
                }
            }
        });
    }

    /// Plays a scenario: once if all endpoints are under test, otherwise with each in turn.
    pub fn run(&self, task: &Task) -> Ended {
        let scenario = match Scenario::load(&task.path.with_extension("toml")) {
            Ok(scenario) => scenario,
            Err(error) => {
                return Ended {
                    cases: Vec::new(),
                    unfit: vec![error.to_string()],
                };
            }
        };
        let roles: Vec<Option<usize>> = match self.peer {
            None => vec![None],
            Some(_) => {
                let endpoints = scenario.endpoints.iter().enumerate();
                let played = endpoints.filter(|(_, it)| it.software != Software::Script);
                played.map(|(role, _)| Some(role)).collect()
            }
        };
        let cases = roles
            .into_iter()
            .map(|role| self.case(&task.path, &scenario, role, &task.seats))
            .collect();
        Ended {
            cases,
            unfit: Vec::new(),
        }
    }

    fn case(&self, path: &Path, scenario: &Scenario, role: Option<usize>, seats: &Seats) -> Case {
        let start = Instant::now();
        let endpoints = scenario.endpoints.iter().enumerate();
        let places = endpoints.filter_map(|(index, endpoint)| {
            let place = seats.of(index, &endpoint.name)?;
            Some((endpoint.name.clone(), place.to_string()))
        });
        let places = places.collect();
        let outcome = match self.obstacle(scenario, role, seats) {
            Some(outcome) => outcome,
            None => self.outcome(scenario, role, seats),
        };
        Case {
            trace: scenario.name.clone(),
            path: path.to_owned(),
            backend: BACKEND.to_owned(),
            dut: self.dut.clone(),
            role: role.map_or("all".into(), |role| scenario.endpoints[role].name.clone()),
            places,
            outcome,
            ladder: Ladder::default(),
            duration: start.elapsed(),
        }
    }

    /// Why a scenario is not played, if it is not.
    fn obstacle(&self, scenario: &Scenario, role: Option<usize>, seats: &Seats) -> Option<Outcome> {
        let unsupported = |reason: String| Some(Outcome::Unsupported { reason });
        let endpoints = || scenario.endpoints.iter().enumerate();
        if let Some((_, endpoint)) = endpoints().find(|(_, it)| it.software == Software::Script) {
            let name = &endpoint.name;
            return unsupported(format!(
                "the packets of endpoint `{name}` are written by hand: no program sends them"
            ));
        }
        if !scenario.faults.is_empty() {
            return unsupported(
                "staged faults, which only an emulator of this host can stage".into(),
            );
        }
        let homeless = endpoints().find(|(index, it)| seats.of(*index, &it.name).is_none());
        if let Some((_, endpoint)) = homeless {
            let name = &endpoint.name;
            return unsupported(format!(
                "endpoint `{name}` has no place; say --at {name}=HOST"
            ));
        }
        // Stock libfabric can always take the place of stock libfabric.
        let mut under_test =
            endpoints().filter(|(index, _)| role.is_none_or(|role| role == *index));
        let reason = under_test.find_map(|(_, it)| it.not_under_test.clone());
        reason
            .filter(|_| self.dut != STOCK)
            .map(|reason| Outcome::NotUnderTest { reason })
    }

    fn outcome(&self, scenario: &Scenario, role: Option<usize>, seats: &Seats) -> Outcome {
        let error = |text: String| vec![Finding::plain(Severity::Error, text)];
        let findings = match self.play(scenario, role, seats) {
            Ok(transcript) => transcript
                .problems
                .into_iter()
                .map(|text| Finding::of(&rules::OUTCOME, text))
                .collect(),
            Err(Stop::Conduct(ConductError::Player(PlayerError::Unsupported { text, .. }))) => {
                return Outcome::Unsupported { reason: text };
            }
            Err(Stop::Conduct(conducted)) => error(conducted.to_string()),
            Err(Stop::GivenUp(host)) => error(format!(
                "{host} was not tried again: the last {MOST_LOST} cases ended because it was lost or silent"
            )),
        };
        let (findings, remarks): (Vec<Finding>, Vec<Finding>) = findings
            .into_iter()
            .partition(|finding| finding.severity >= self.options.fail_on);
        if findings.is_empty() {
            Outcome::Passed {
                compared: 0,
                played: 0,
                seeds: 0,
                events: 0,
                remarks,
            }
        } else {
            Outcome::Failed {
                findings,
                capture: None,
            }
        }
    }

    /// The program that plays an endpoint.
    fn program(&self, role: Option<usize>, index: usize) -> &Program {
        match (&self.peer, role) {
            (Some(peer), Some(role)) if role != index => peer,
            _ => &self.program,
        }
    }

    fn play(
        &self,
        scenario: &Scenario,
        role: Option<usize>,
        seats: &Seats,
    ) -> Result<Transcript, Stop> {
        let mut cast = scenario.clone();
        let mut players = Vec::new();
        let mut hosts = Vec::new();
        for (index, endpoint) in cast.endpoints.iter_mut().enumerate() {
            let program = self.program(role, index);
            // Recordings need a certain release; live runs take the one that is there.
            endpoint.version = None;
            endpoint.software = match program {
                Program::Core => Software::Core,
                Program::Libfabric { .. } | Program::Exec { .. } => Software::Libfabric,
            };
            if let Some(place) = seats.of(index, &endpoint.name) {
                self.may_try(&place.host)?;
                hosts.push(place.host.clone());
                players.push(self.launch(endpoint, place, program)?);
            }
        }
        let played = Conductor::new(&cast, players, PathBuf::new()).play();
        self.note(&hosts, played.as_ref().err());
        Ok(played?)
    }

    fn launch(
        &self,
        endpoint: &EndpointSpec,
        place: &Place,
        program: &Program,
    ) -> Result<Player, PlayerError> {
        let (name, environment) = (&endpoint.name, &endpoint.environment);
        Player::launch_at(
            name,
            place,
            &self.reach,
            program,
            environment,
            self.patience,
        )
    }

    fn may_try(&self, host: &str) -> Result<(), Stop> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match lost.get(host) {
            Some(MOST_LOST..) => Err(Stop::GivenUp(host.to_owned())),
            _ => Ok(()),
        }
    }

    /// Counts the cases that end because hosts are lost or silent.
    fn note(&self, hosts: &[String], error: Option<&ConductError>) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(ConductError::Player(PlayerError::Lost { host, .. })) => {
                *lost.entry(host.clone()).or_default() += 1;
            }
            // One of them, and nothing is known of the others.
            Some(ConductError::Player(PlayerError::Silent { .. })) => {
                for host in hosts {
                    *lost.entry(host.clone()).or_default() += 1;
                }
            }
            Some(_) => {}
            None => lost.retain(|host, _| !hosts.contains(host)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        text.parse().unwrap()
    }

    #[test]
    fn a_pair_takes_the_endpoints_in_turn() {
        let seats = Seats::InTurn([place("x"), place("y%efa_1")]);
        let seats: Vec<String> = ["a", "b", "c"]
            .iter()
            .enumerate()
            .map(|(index, name)| seats.of(index, name).unwrap().to_string())
            .collect();
        assert_eq!(seats, ["x", "y%efa_1", "x"]);
        let named = Seats::Named(BTreeMap::from([("b".to_owned(), place("x"))]));
        assert_eq!(named.of(1, "b"), Some(&place("x")));
        assert_eq!(named.of(0, "a"), None);
    }
}
