//! Plays scenarios on several hosts.
//!
//! There is no replay: scripted packets need the device's frames, which are not visible on a real
//! device. All endpoints are live, each on its host, and the applications' results are compared
//! with the scenario. Where the hosts can record, their captures are merged, after a comparison of
//! their clocks, and judged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use efa_core::rules;
use efa_core::rules::Severity;
use efa_play::player::{
    HostDevice, HostedProgram, Player, PlayerError, Program, Recording, RemoteAccess, Timeouts,
};
use efa_play::process_runner::{Played, ProcessRunner, RunError, Transcript};
use efa_play::scenario::{EndpointSpec, Scenario, Software};
use efa_replay::compare::Finding;

use super::TraceResult;
use super::judged::judge;
use super::ladder::Ladder;
use super::{Case, Options, Outcome, STOCK};

/// The name of this backend in results.
pub const BACKEND: &str = "hosts";

/// The number of successive cases lost to a host, or to its silence, after which the host is not
/// used any more.
const MOST_LOST: u32 = 3;

/// The hosts of the endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostAssignment {
    /// By the names of the endpoints in the scenarios.
    Named(BTreeMap<String, HostDevice>),
    /// The first endpoint of each scenario is at the first place of the pair, the second at the
    /// second.
    Pair {
        /// The two places, which differ in host or device.
        pair: [HostDevice; 2],
        /// The places of further endpoints, in turn. If there are none, further endpoints use the
        /// places of the pair in turn.
        others: Vec<HostDevice>,
    },
}

impl HostAssignment {
    /// The named places, or the pair.
    pub fn places(&self) -> impl Iterator<Item = &HostDevice> {
        match self {
            HostAssignment::Named(places) => places.values().collect::<Vec<_>>(),
            HostAssignment::Pair { pair, .. } => pair.iter().collect(),
        }
        .into_iter()
    }

    fn of(&self, index: usize, name: &str) -> Option<&HostDevice> {
        match self {
            HostAssignment::Named(places) => places.get(name),
            HostAssignment::Pair { pair, others } => {
                Some(match (index.checked_sub(pair.len()), &others[..]) {
                    (Some(further), [_, ..]) => &others[further % others.len()],
                    _ => &pair[index % pair.len()],
                })
            }
        }
    }
}

/// A scenario to play.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// The file of the scenario.
    pub path: PathBuf,
    /// The hosts that its endpoints are played on.
    pub assignment: HostAssignment,
}

/// The hosts, and the software under test.
#[derive(Debug)]
pub struct Hosts {
    reach: RemoteAccess,
    program: Program,
    /// The program of the endpoints that are not under test; `None` if all are.
    peer: Option<Program>,
    /// The name in results of the software under test.
    dut: String,
    timeouts: Timeouts,
    options: Options,
    recording: Option<Recording>,
    /// The hosts on which packets cannot be recorded.
    unrecorded: BTreeSet<String>,
    /// The number of cases that each host was lost or silent in, since the last case in which it
    /// answered.
    lost: Mutex<BTreeMap<String, u32>>,
}

/// The reason why a scenario was not completed.
enum StopReason {
    Run(RunError),
    /// The host is no longer used.
    GivenUp(String),
}

impl From<RunError> for StopReason {
    fn from(error: RunError) -> Self {
        StopReason::Run(error)
    }
}

impl From<PlayerError> for StopReason {
    fn from(error: PlayerError) -> Self {
        StopReason::Run(error.into())
    }
}

impl Hosts {
    /// `program` plays the endpoints under test, and `peer` the others; without `peer` all are
    /// under test simultaneously.
    pub fn new(
        reach: RemoteAccess,
        program: Program,
        peer: Option<Program>,
        dut: String,
        timeouts: Timeouts,
        options: Options,
    ) -> Self {
        Hosts {
            reach,
            program,
            peer,
            dut,
            timeouts,
            options,
            recording: None,
            unrecorded: BTreeSet::new(),
            lost: Mutex::default(),
        }
    }

    /// Records packets and judges them, except on the hosts in `unrecorded`.
    #[must_use]
    pub fn recorded(self, recording: Option<Recording>, unrecorded: BTreeSet<String>) -> Self {
        Hosts {
            recording,
            unrecorded,
            ..self
        }
    }

    /// Plays a scenario: once if all endpoints are under test, otherwise with each in turn under
    /// test.
    pub fn run(&self, task: &Task) -> TraceResult {
        let scenario = match Scenario::load(&task.path.with_extension("toml")) {
            Ok(scenario) => scenario,
            Err(error) => return TraceResult::unfit(error.to_string()),
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
            .map(|role| self.case(&task.path, &scenario, role, &task.assignment))
            .collect();
        TraceResult {
            cases,
            unfit: Vec::new(),
        }
    }

    fn case(
        &self,
        path: &Path,
        scenario: &Scenario,
        role: Option<usize>,
        assignment: &HostAssignment,
    ) -> Case {
        let start = Instant::now();
        let endpoints = scenario.endpoints.iter().enumerate();
        let places = endpoints.filter_map(|(index, endpoint)| {
            let place = assignment.of(index, &endpoint.name)?;
            Some((endpoint.name.clone(), place.to_string()))
        });
        let places = places.collect();
        let outcome = match self.obstacle(scenario, role, assignment) {
            Some(outcome) => outcome,
            None => self.outcome(scenario, role, assignment),
        };
        Case {
            trace: scenario.name.clone(),
            path: path.to_owned(),
            backend: BACKEND.to_owned(),
            dut: self.dut.clone(),
            role: role.map_or("all".into(), |role| scenario.endpoints[role].name.clone()),
            sections: scenario.spec.clone(),
            subprotocols: Vec::new(),
            places,
            outcome,
            ladder: Ladder::default(),
            duration: start.elapsed(),
        }
    }

    /// The reason why a scenario is not played, if any.
    fn obstacle(
        &self,
        scenario: &Scenario,
        role: Option<usize>,
        assignment: &HostAssignment,
    ) -> Option<Outcome> {
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
        let homeless = endpoints().find(|(index, it)| assignment.of(*index, &it.name).is_none());
        if let Some((_, endpoint)) = homeless {
            let name = &endpoint.name;
            return unsupported(format!(
                "endpoint `{name}` has no place; say --at {name}=HOST"
            ));
        }
        // Stock libfabric can always replace stock libfabric.
        let mut under_test =
            endpoints().filter(|(index, _)| role.is_none_or(|role| role == *index));
        let reason = under_test.find_map(|(_, it)| it.not_under_test.clone());
        reason
            .filter(|_| self.dut != STOCK)
            .map(|reason| Outcome::NotUnderTest { reason })
    }

    fn outcome(
        &self,
        scenario: &Scenario,
        role: Option<usize>,
        assignment: &HostAssignment,
    ) -> Outcome {
        let error = |text: String| vec![Finding::plain(Severity::Error, text)];
        let (transcript, stop) = match self.play_live(scenario, role, assignment) {
            Ok(Played { transcript, error }) => (transcript, error.map(StopReason::Run)),
            Err(stop) => (Transcript::default(), Some(stop)),
        };
        let stopped = match stop {
            None => Vec::new(),
            Some(StopReason::Run(RunError::Player(PlayerError::Unsupported { text, .. }))) => {
                return Outcome::Unsupported { reason: text };
            }
            Some(StopReason::Run(stopped)) if stopped.is_remark() => {
                vec![Finding::plain(Severity::Note, stopped.to_string())]
            }
            Some(StopReason::Run(stopped)) => error(stopped.to_string()),
            Some(StopReason::GivenUp(host)) => error(format!(
                "{host} was not tried again: the last {MOST_LOST} cases ended because it was lost or silent"
            )),
        };
        let mut judged = judge(scenario, role, &transcript.captures);
        let problems = transcript.problems.into_iter();
        let seen = problems.map(|text| Finding::of(&rules::OUTCOME, text));
        // Failures of the application are consequences of failures on the wire.
        let found = std::mem::take(&mut judged.findings);
        let findings: Vec<Finding> = stopped.into_iter().chain(found).chain(seen).collect();
        let (mut findings, mut remarks): (Vec<Finding>, Vec<Finding>) = findings
            .into_iter()
            .partition(|finding| finding.severity >= self.options.fail_on);
        if findings.is_empty() {
            remarks.append(&mut judged.statements);
            Outcome::Passed {
                compared: judged.packets,
                played: 0,
                seeds: 0,
                events: 0,
                remarks,
            }
        } else {
            findings.append(&mut judged.statements);
            let name = self.name_of_capture(scenario, role, assignment);
            let directory = self.options.captures.as_ref();
            let capture = directory.and_then(|directory| judged.keep(directory, &name));
            Outcome::Failed { findings, capture }
        }
    }

    /// The file name of the capture of a failed case.
    fn name_of_capture(
        &self,
        scenario: &Scenario,
        role: Option<usize>,
        assignment: &HostAssignment,
    ) -> String {
        let mut name = scenario.name.clone();
        if let Some(role) = role {
            name += &format!("-{}", scenario.endpoints[role].name);
        }
        for place in assignment.places() {
            name += &format!("-{place}");
        }
        name.replace('/', "_") + ".pcapng"
    }

    /// The program that plays an endpoint.
    fn program(&self, role: Option<usize>, index: usize) -> &Program {
        match (&self.peer, role) {
            (Some(peer), Some(role)) if role != index => peer,
            _ => &self.program,
        }
    }

    fn play_live(
        &self,
        scenario: &Scenario,
        role: Option<usize>,
        assignment: &HostAssignment,
    ) -> Result<Played, StopReason> {
        let mut live = scenario.clone();
        let mut players = Vec::new();
        let mut hosts = Vec::new();
        for (index, endpoint) in live.endpoints.iter_mut().enumerate() {
            let program = self.program(role, index);
            // Recordings need a certain release; live runs use the installed one.
            endpoint.version = None;
            endpoint.software = match program {
                Program::Core => Software::Core,
                Program::Libfabric { .. } | Program::Exec { .. } => Software::Libfabric,
            };
            if let Some(place) = assignment.of(index, &endpoint.name) {
                self.may_try(&place.host)?;
                hosts.push(place.host.clone());
                players.push(self.launch(endpoint, place, program)?);
            }
        }
        let played = ProcessRunner::new(&live, players, PathBuf::new()).run();
        self.note(&hosts, played.error.as_ref());
        Ok(played)
    }

    fn launch(
        &self,
        endpoint: &EndpointSpec,
        place: &HostDevice,
        program: &Program,
    ) -> Result<Player, PlayerError> {
        let is_recorded = !self.unrecorded.contains(&place.host);
        let hosted = HostedProgram {
            environment: endpoint.environment.clone(),
            recording: self.recording.clone().filter(|_| is_recorded),
            ..HostedProgram::driven(program)
        };
        let (name, reach) = (&endpoint.name, &self.reach);
        Player::launch_at(name, place, reach, &hosted, self.timeouts)
    }

    fn may_try(&self, host: &str) -> Result<(), StopReason> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match lost.get(host) {
            Some(MOST_LOST..) => Err(StopReason::GivenUp(host.to_owned())),
            _ => Ok(()),
        }
    }

    /// Counts the cases that end because hosts are lost or silent.
    fn note(&self, hosts: &[String], error: Option<&RunError>) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(RunError::Player(PlayerError::Lost { host, .. })) => {
                *lost.entry(host.clone()).or_default() += 1;
            }
            // One of the endpoints did not answer; the state of the others is unknown.
            Some(RunError::Player(PlayerError::Silent { .. })) => {
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

    fn place(text: &str) -> HostDevice {
        text.parse().unwrap()
    }

    #[test]
    fn further_endpoints_prefer_hosts_beyond_the_pair() {
        let assignment = |others: &[&str]| {
            let others = others.iter().map(|name| place(name)).collect();
            let pair = [place("x"), place("y%efa_1")];
            let assignment = HostAssignment::Pair { pair, others };
            let names = ["a", "b", "c", "d", "e"].iter().enumerate();
            let names = names.map(|(index, name)| assignment.of(index, name).unwrap().to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(assignment(&[]), ["x", "y%efa_1", "x", "y%efa_1", "x"]);
        assert_eq!(assignment(&["z"]), ["x", "y%efa_1", "z", "z", "z"]);
        assert_eq!(assignment(&["z", "w"]), ["x", "y%efa_1", "z", "w", "z"]);
        let named = HostAssignment::Named(BTreeMap::from([("b".to_owned(), place("x"))]));
        assert_eq!(named.of(1, "b"), Some(&place("x")));
        assert_eq!(named.of(0, "a"), None);
    }
}
