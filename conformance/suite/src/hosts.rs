//! Plays scenarios on several hosts.
//!
//! There is no replay: scripted packets need the device's frames, which are not visible on a real
//! device. All endpoints are live, each on its host, and the applications' results are compared
//! with the scenario. Where the hosts can record, their captures are merged, after a comparison of
//! their clocks, and judged.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use efa_check::capture::Capture;
use efa_check::check;
use efa_check::clocks;
use efa_check::merge::merge_clocks;
use efa_core::rules;
use efa_core::rules::Severity;
use efa_play::player::{
    HostDevice, Hosted, Player, PlayerError, Program, Recording, RemoteAccess, Timeouts,
};
use efa_play::process_runner::{Played, ProcessRunner, RunError, Transcript};
use efa_play::record::Scratch;
use efa_play::scenario::{EndpointSpec, Scenario, Software};
use efa_replay::compare::Finding;

use super::Ended;
use super::ladder::Ladder;
use super::parallel;
use super::{Case, Options, Outcome, STOCK};

/// The name of this backend in results.
pub const BACKEND: &str = "hosts";

/// The number of successive cases lost to a host, or to its silence, after which the host is not
/// used any more.
const MOST_LOST: u32 = 3;

/// The hosts of the endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seats {
    Named(BTreeMap<String, HostDevice>),
    /// The first endpoint of each scenario is at the first place of the pair, the second at the
    /// second.
    Pair {
        pair: [HostDevice; 2],
        /// The places of further endpoints, in turn. If there are none, further endpoints use the
        /// places of the pair in turn.
        others: Vec<HostDevice>,
    },
}

impl Seats {
    /// The named places, or the pair.
    pub fn places(&self) -> impl Iterator<Item = &HostDevice> {
        match self {
            Seats::Named(places) => places.values().collect::<Vec<_>>(),
            Seats::Pair { pair, .. } => pair.iter().collect(),
        }
        .into_iter()
    }

    fn of(&self, index: usize, name: &str) -> Option<&HostDevice> {
        match self {
            Seats::Named(places) => places.get(name),
            Seats::Pair { pair, others } => {
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
    pub path: PathBuf,
    pub seats: Seats,
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
enum Stop {
    Run(RunError),
    /// The host is no longer used.
    GivenUp(String),
}

impl From<RunError> for Stop {
    fn from(error: RunError) -> Self {
        Stop::Run(error)
    }
}

impl From<PlayerError> for Stop {
    fn from(error: PlayerError) -> Self {
        Stop::Run(error.into())
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

    /// Plays all tasks, up to `jobs` simultaneously. `ended` gets the results in the order of
    /// `tasks`.
    pub fn run_all(&self, tasks: &[Task], jobs: NonZeroUsize, ended: impl FnMut(&Task, Ended)) {
        parallel::in_order(tasks, jobs, |task| self.run(task), ended);
    }

    /// Plays a scenario: once if all endpoints are under test, otherwise with each in turn under
    /// test.
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
            sections: scenario.spec.clone(),
            subprotocols: Vec::new(),
            places,
            outcome,
            ladder: Ladder::default(),
            duration: start.elapsed(),
        }
    }

    /// The reason why a scenario is not played, if any.
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
        // Stock libfabric can always replace stock libfabric.
        let mut under_test =
            endpoints().filter(|(index, _)| role.is_none_or(|role| role == *index));
        let reason = under_test.find_map(|(_, it)| it.not_under_test.clone());
        reason
            .filter(|_| self.dut != STOCK)
            .map(|reason| Outcome::NotUnderTest { reason })
    }

    fn outcome(&self, scenario: &Scenario, role: Option<usize>, seats: &Seats) -> Outcome {
        let error = |text: String| vec![Finding::plain(Severity::Error, text)];
        let (transcript, stop) = match self.play_live(scenario, role, seats) {
            Ok(Played { transcript, error }) => (transcript, error.map(Stop::Run)),
            Err(stop) => (Transcript::default(), Some(stop)),
        };
        let stopped = match stop {
            None => Vec::new(),
            Some(Stop::Run(RunError::Player(PlayerError::Unsupported { text, .. }))) => {
                return Outcome::Unsupported { reason: text };
            }
            Some(Stop::Run(stopped)) if stopped.is_remark() => {
                vec![Finding::plain(Severity::Note, stopped.to_string())]
            }
            Some(Stop::Run(stopped)) => error(stopped.to_string()),
            Some(Stop::GivenUp(host)) => error(format!(
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
            let name = self.name_of_capture(scenario, role, seats);
            let directory = self.options.captures.as_ref();
            let capture = directory.and_then(|directory| judged.keep(directory, &name));
            Outcome::Failed { findings, capture }
        }
    }

    /// The file name of the capture of a failed case.
    fn name_of_capture(&self, scenario: &Scenario, role: Option<usize>, seats: &Seats) -> String {
        let mut name = scenario.name.clone();
        if let Some(role) = role {
            name += &format!("-{}", scenario.endpoints[role].name);
        }
        for place in seats.places() {
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
        seats: &Seats,
    ) -> Result<Played, Stop> {
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
            if let Some(place) = seats.of(index, &endpoint.name) {
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
        let hosted = Hosted {
            environment: endpoint.environment.clone(),
            recording: self.recording.clone().filter(|_| is_recorded),
            ..Hosted::driven(program)
        };
        let (name, reach) = (&endpoint.name, &self.reach);
        Player::launch_at(name, place, reach, &hosted, self.timeouts)
    }

    fn may_try(&self, host: &str) -> Result<(), Stop> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match lost.get(host) {
            Some(MOST_LOST..) => Err(Stop::GivenUp(host.to_owned())),
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

/// The judgement of a case's captures.
#[derive(Default)]
struct Judged {
    findings: Vec<Finding>,
    /// The comparison of the clocks, and the gaps of the captures. These do not fail a case.
    statements: Vec<Finding>,
    /// The number of packets that were judged.
    packets: usize,
    /// The merged capture, in its directory.
    merged: Option<(Scratch, PathBuf)>,
}

impl Judged {
    /// Keeps the merged capture in a directory.
    fn keep(&self, directory: &Path, name: &str) -> Option<PathBuf> {
        let (_, merged) = self.merged.as_ref()?;
        let path = directory.join(name);
        let copied = std::fs::create_dir_all(directory).and_then(|()| std::fs::copy(merged, &path));
        // An error does not change the verdict.
        copied.is_ok().then_some(path)
    }
}

/// Judges the captures of the endpoints as one. If that is impossible, because their clocks
/// contradict each other or one of them lost frames, judges each separately. Errors of endpoints
/// that are not under test are notes.
fn judge(scenario: &Scenario, role: Option<usize>, captures: &[Vec<u8>]) -> Judged {
    let mut judged = Judged::default();
    if captures.iter().all(Vec::is_empty) {
        return judged;
    }
    let Recorded {
        directory,
        captures,
        problems,
    } = match Recorded::load(scenario, captures) {
        Ok(recorded) => recorded,
        Err(problem) => {
            judged.state(format!("the captures are not judged: {problem}"));
            return judged;
        }
    };
    for problem in problems {
        judged.state(problem);
    }
    match merged(scenario, &captures, &directory.0) {
        Ok(Merged {
            path,
            capture,
            endpoints,
            clocks,
        }) => {
            judged.take(role, &capture, &endpoints);
            for text in clocks {
                judged.state(text);
            }
            judged.merged = Some((directory, path));
        }
        Err(problem) => {
            judged.state(format!("each capture is judged by itself: {problem}"));
            for (at, _, capture) in &captures {
                judged.take(role, capture, &vec![*at; capture.interfaces.len()]);
            }
        }
    }
    judged
}

impl Judged {
    /// Adds the findings about a capture; `endpoints` are the endpoints of its interfaces.
    fn take(&mut self, role: Option<usize>, capture: &Capture, endpoints: &[usize]) {
        let checked = check::check(capture);
        self.packets += usize::try_from(checked.packets).unwrap_or(usize::MAX);
        let found = checked.worse_than(Severity::Note).map(|found| {
            let endpoint = endpoints.get(found.interface).copied();
            let is_under_test = role.is_none() || role == endpoint;
            let finding = Finding::of_capture(found);
            Finding {
                severity: if is_under_test {
                    finding.severity
                } else {
                    Severity::Note
                },
                ..finding
            }
        });
        self.findings.extend(found);
        for text in &capture.damage {
            self.state(text.clone());
        }
    }

    fn state(&mut self, text: String) {
        self.statements.push(Finding::plain(Severity::Note, text));
    }
}

/// The captures of endpoints, in files.
struct Recorded {
    directory: Scratch,
    /// The endpoint, the file, and its content.
    captures: Vec<(usize, PathBuf, Capture)>,
    /// The reasons why others cannot be read.
    problems: Vec<String>,
}

impl Recorded {
    fn load(scenario: &Scenario, captures: &[Vec<u8>]) -> Result<Self, std::io::Error> {
        let mut recorded = Recorded {
            directory: Scratch::new()?,
            captures: Vec::new(),
            problems: Vec::new(),
        };
        for (at, bytes) in captures.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            let path = recorded.directory.0.join(format!("{at}.pcapng"));
            std::fs::write(&path, bytes)?;
            match Capture::load(&path) {
                Ok(capture) => recorded.captures.push((at, path, capture)),
                Err(error) => {
                    let name = &scenario.endpoints[at].name;
                    let problem =
                        format!("the capture of endpoint `{name}` is not judged: {error}");
                    recorded.problems.push(problem);
                }
            }
        }
        Ok(recorded)
    }
}

/// The captures of several endpoints, merged into one.
struct Merged {
    path: PathBuf,
    capture: Capture,
    /// The endpoint of each interface.
    endpoints: Vec<usize>,
    clocks: Vec<String>,
}

/// The captures of several endpoints cannot be merged.
#[derive(Debug, thiserror::Error)]
enum UnmergedError {
    /// The clock of an endpoint's capture cannot be compared with that of the first.
    #[error("the capture of endpoint `{endpoint}`: {source}")]
    Clocks {
        endpoint: String,
        source: clocks::ClockError,
    },
    #[error(transparent)]
    Write(#[from] efa_check::merge::MergeError),
    #[error(transparent)]
    Read(#[from] efa_capture::ReadError),
}

fn merged(
    scenario: &Scenario,
    recorded: &[(usize, PathBuf, Capture)],
    directory: &Path,
) -> Result<Merged, UnmergedError> {
    let name = |at: usize| &scenario.endpoints[at].name;
    let loaded: Vec<&Capture> = recorded.iter().map(|(.., capture)| capture).collect();
    let differences = clocks::align(&loaded).map_err(|(at, source)| UnmergedError::Clocks {
        endpoint: name(recorded[at].0).clone(),
        source,
    })?;
    let first = recorded.first().map_or(0, |(at, ..)| *at);
    let described = recorded.iter().zip(&differences).skip(1);
    let described = described
        .map(|((at, ..), difference)| {
            format!(
                "the clock of endpoint `{}` compared with that of endpoint `{}`: {difference}",
                name(*at),
                name(first)
            )
        })
        .collect::<Vec<_>>();
    let sources: Vec<_> = recorded
        .iter()
        .zip(&differences)
        .map(|((_, path, _), difference)| (path.clone(), *difference))
        .collect();
    let path = directory.join("merged.pcapng");
    let comments = [vec![scenario.description.clone()], described.clone()].concat();
    merge_clocks(&sources, &comments, &[], &path)?;
    let capture = Capture::load(&path)?;
    let endpoints = recorded
        .iter()
        .flat_map(|(at, _, it)| vec![*at; it.interfaces.len()]);
    Ok(Merged {
        path,
        capture,
        endpoints: endpoints.collect(),
        clocks: described,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use efa_capture::{InterfaceId, Reader, RecordedFrame, Writer};

    use super::*;

    fn place(text: &str) -> HostDevice {
        text.parse().unwrap()
    }

    /// A trace of the corpus: its scenario, and the bytes of its capture.
    fn trace(name: &str) -> (Scenario, Vec<u8>) {
        let path = efa_testing::workspace::traces().join(name);
        let scenario = Scenario::load(&path.with_extension("toml")).unwrap();
        (scenario, std::fs::read(path).unwrap())
    }

    fn statements(judged: &Judged) -> String {
        let texts = judged.statements.iter().map(|it| it.text.as_str());
        texts.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn unrelated_captures_are_judged_separately() {
        let (scenario, eager) = trace("eager-tagged.pcapng");
        let (_, long) = trace("long-cts.pcapng");
        let alone = |capture: &Vec<u8>| judge(&scenario, None, &[capture.clone(), Vec::new()]);
        let packets = alone(&eager).packets + alone(&long).packets;
        assert!(alone(&eager).packets > 0 && alone(&long).packets > 0);
        let judged = judge(&scenario, None, &[eager, long]);
        let said = statements(&judged);
        let why = "each capture is judged by itself: the capture of endpoint `b`: no packet is in both captures";
        assert!(said.contains(why), "{said}");
        assert_eq!(judged.packets, packets);
        assert!(judged.findings.is_empty(), "{:?}", judged.findings);
    }

    /// A trace of the corpus as its hosts recorded it, each with a separate clock. `shown` returns
    /// the time on the clock of a host from the host's number, the number of the frame on it, and
    /// the true time.
    fn recorded_apart(
        name: &str,
        shown: impl Fn(usize, usize, Duration) -> Duration,
    ) -> (Scenario, Vec<Vec<u8>>) {
        let (scenario, bytes) = trace(name);
        let mut reader = Reader::new(&bytes[..], name).unwrap();
        let mut frames = Vec::new();
        while let Some(frame) = reader.next_frame().unwrap() {
            let host = frame.interface.0 as usize;
            frames.push((host, RecordedFrame::from(&frame)));
        }
        let captures = reader.interfaces().iter().enumerate();
        let captures = captures.map(|(host, interface)| {
            let mut writer = Writer::new(Vec::new()).unwrap();
            writer.add_interface(&interface.device().unwrap()).unwrap();
            let of_host = frames.iter().filter(|(of, _)| *of == host);
            for (number, (_, frame)) in of_host.enumerate() {
                let mut frame = frame.clone();
                frame.time = shown(host, number, frame.time);
                writer.add(InterfaceId::FIRST, &frame).unwrap();
            }
            writer.finish(Duration::ZERO).unwrap()
        });
        (scenario, captures.collect())
    }

    fn frames_of(bytes: &[u8]) -> usize {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Capture::load(file.path()).unwrap().frames.len()
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn captures_with_clock_steps_are_judged_separately() {
        // The middle of the second host's capture.
        let (_, captures) = recorded_apart("ping-pong.pcapng", |_, _, time| time);
        let half = frames_of(&captures[1]) / 2;
        assert!(half > 2);
        for forward in [true, false] {
            let (scenario, captures) =
                recorded_apart("ping-pong.pcapng", |host, frame, time| match host {
                    1 if frame < half => time,
                    1 if forward => time + HOUR,
                    1 => time - HOUR,
                    _ => time,
                });
            let judged = judge(&scenario, None, &captures);
            let said = statements(&judged);
            let why = "each capture is judged by itself: the capture of endpoint `b`: whatever the difference of the \
                       clocks, packets arrived before they were sent: a clock was set during the capture";
            assert!(said.contains(why), "{said}");
            // No frame is lost, invented or merged.
            let whole: usize = captures
                .iter()
                .map(|capture| judge(&scenario, None, &[capture.clone(), Vec::new()]).packets)
                .sum();
            assert_eq!(judged.packets, whole);
            assert!(judged.findings.is_empty(), "{:?}", judged.findings);
            assert!(judged.merged.is_none());
        }
        // A clock that is an hour ahead from the beginning on.
        let (scenario, captures) = recorded_apart("ping-pong.pcapng", |host, _, time| match host {
            1 => time + HOUR,
            _ => time,
        });
        let judged = judge(&scenario, None, &captures);
        let said = statements(&judged);
        assert!(said.contains("of endpoint `a`: 3"), "{said}");
        assert!(judged.merged.is_some());
    }

    #[test]
    fn an_unreadable_capture_does_not_block_others() {
        let (scenario, eager) = trace("eager-tagged.pcapng");
        let judged = judge(&scenario, None, &[b"rubbish".to_vec(), eager]);
        let said = statements(&judged);
        assert!(
            said.contains("the capture of endpoint `a` is not judged: "),
            "{said}"
        );
        assert!(judged.packets > 0);
        let judged = judge(&scenario, None, &[b"rubbish".to_vec(), Vec::new()]);
        assert_eq!((judged.packets, judged.statements.len()), (0, 1));
    }

    #[test]
    fn further_endpoints_prefer_hosts_beyond_the_pair() {
        let seats = |others: &[&str]| {
            let others = others.iter().map(|name| place(name)).collect();
            let pair = [place("x"), place("y%efa_1")];
            let seats = Seats::Pair { pair, others };
            let names = ["a", "b", "c", "d", "e"].iter().enumerate();
            let names = names.map(|(index, name)| seats.of(index, name).unwrap().to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(seats(&[]), ["x", "y%efa_1", "x", "y%efa_1", "x"]);
        assert_eq!(seats(&["z"]), ["x", "y%efa_1", "z", "z", "z"]);
        assert_eq!(seats(&["z", "w"]), ["x", "y%efa_1", "z", "w", "z"]);
        let named = Seats::Named(BTreeMap::from([("b".to_owned(), place("x"))]));
        assert_eq!(named.of(1, "b"), Some(&place("x")));
        assert_eq!(named.of(0, "a"), None);
    }
}
