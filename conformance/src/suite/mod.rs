//! Running a corpus of traces.

pub mod each_event;
pub mod expected;
pub mod hosts;
pub mod html;
pub mod jobs;
pub mod json;
pub mod junit;
pub mod ladder;
pub mod matrix;
pub mod pairs;
pub mod runner;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use efa_capture::Reader;
use efa_core::rules::{self, Severity};
use efa_core::wire::PacketType;
use efa_device_model::fault::Action::Repeat;
use efa_device_model::fault::{Fault, HostName, Match, PacketTypes};
use serde::{Deserialize, Serialize};

use crate::check;
use crate::compare::Finding;
use crate::drive::Identity;
use crate::replay::backend::{Backend, BackendError};
use crate::replay::emu::Emu;
use crate::replay::hw::Hw;
use crate::replay::outside::Outside;
use crate::replay::{Engine, Opener, Strictness, codec, coverage, live, replay};
use crate::scenario::{Action, Capability, Operation, Scenario, Software};
use crate::trace::{Frames, Trace, TraceError};
use each_event::Changes;
use ladder::Ladder;

/// The engine's name in results.
pub const ENGINE: &str = "core";
/// Stock libfabric's name in results.
pub const STOCK: &str = "libfabric";

/// How a case ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Everything went as recorded.
    Passed {
        /// Packets of the endpoint under test that were compared.
        compared: usize,
        /// Packets that the scripted endpoints sent.
        played: usize,
        /// The number of seeds under which the outcome was the same.
        seeds: usize,
        /// The number of runs with one event changed in which nothing went wrong.
        events: usize,
        /// Legal differences from the recording.
        remarks: Vec<Finding>,
    },
    /// The endpoint under test or its device lacks something that the trace needs.
    Unsupported {
        /// What is lacking.
        reason: String,
    },
    /// The trace cannot be played: its packets were only parsed, written again and checked against
    /// the rules.
    CodecOnly {
        /// Why.
        reason: String,
        /// The number of packets.
        packets: usize,
    },
    /// The scenario says that nothing else can take this endpoint's place.
    NotUnderTest {
        /// Why.
        reason: String,
    },
    /// The release under test is known to fail the case by its own fault.
    Expected {
        /// The row of docs/deviations.md with the reason and the evidence.
        row: u32,
        /// The reasons of the failure.
        findings: Vec<Finding>,
    },
    /// A statement of the protocol or of the scenario does not hold.
    Failed {
        /// The violated statements.
        findings: Vec<Finding>,
        /// The capture of the case.
        capture: Option<PathBuf>,
    },
}

/// One trace, on one backend, with one endpoint under test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// The trace's name.
    pub trace: String,
    /// The trace's file.
    pub path: PathBuf,
    /// The backend's name.
    pub backend: String,
    /// What is under test, such as `core`.
    pub dut: String,
    /// The endpoint whose place the implementation under test takes; `all` if it takes all of them,
    /// or if the trace was not played.
    pub role: String,
    /// Where each endpoint was played, if that was not on this host.
    pub places: BTreeMap<String, String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The recorded messages beside the actual ones; empty unless [`Options::ladders`] asks for
    /// them.
    pub ladder: Ladder,
    /// How long the case took.
    pub duration: Duration,
}

impl Case {
    /// Returns whether the case failed.
    pub fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed { .. })
    }

    /// `TRACE BACKEND ROLE`.
    pub fn name(&self) -> String {
        format!("{} {} {}", self.trace, self.backend, self.role)
    }

    /// Where it was played, as in `a at node0, b at node1`; empty on this host.
    pub fn whereabouts(&self) -> String {
        let places = self.places.iter();
        let places: Vec<String> = places
            .map(|(endpoint, place)| format!("{endpoint} at {place}"))
            .collect();
        places.join(", ")
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = format!(
            "{:<32} {:<4} {} as {}",
            self.trace, self.backend, self.dut, self.role
        );
        if !self.places.is_empty() {
            name += &format!(", {}", self.whereabouts());
        }
        match &self.outcome {
            Outcome::Passed {
                compared,
                played,
                seeds,
                events,
                remarks,
            } => {
                match self.places.is_empty() {
                    true => write!(
                        f,
                        "PASS  {name}: {compared} packets compared, {played} played"
                    )?,
                    false if *compared == 0 => write!(f, "PASS  {name}")?,
                    false => write!(f, "PASS  {name}: {compared} packets judged")?,
                }
                if *seeds > 0 {
                    write!(f, ", same outcome under {seeds} seeds")?;
                }
                if *events > 0 {
                    write!(f, ", right with one event changed in {events} runs")?;
                }
                if !remarks.is_empty() {
                    write!(f, ", {} remarks", remarks.len())?;
                }
                Ok(())
            }
            Outcome::CodecOnly { reason, packets } => write!(
                f,
                "CODEC {name}: codec only: {reason}; {packets} packets parsed, written again and \
                 checked"
            ),
            Outcome::Unsupported { reason } => write!(f, "UNSUP {name}: unsupported: {reason}"),
            Outcome::NotUnderTest { reason } => write!(f, "SKIP  {name}: {reason}"),
            Outcome::Expected { row, findings } => {
                write!(f, "KNOWN {name}: row {row} of docs/deviations.md")?;
                match findings.first() {
                    Some(finding) => write!(f, ": {finding}"),
                    None => Ok(()),
                }
            }
            Outcome::Failed { findings, capture } => {
                write!(f, "FAIL  {name}")?;
                for finding in findings {
                    write!(f, "\n      {finding}")?;
                }
                if let Some(capture) = capture {
                    write!(f, "\n      captured in {}", capture.display())?;
                }
                Ok(())
            }
        }
    }
}

/// A trace that cannot be used at all.
#[derive(Debug)]
pub struct Unusable {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub error: TraceError,
}

/// Finds the traces that arguments name: themselves, or in directories and the directories in them.
/// Traces are recordings, `.pcapng`, and scenarios whose packets are written by hand.
pub fn find_traces(arguments: &[PathBuf], filter: Option<&str>) -> Result<Vec<PathBuf>, String> {
    let mut all = Vec::new();
    for argument in arguments {
        all.push(argument.clone());
        let entries = std::fs::read_dir(argument).into_iter().flatten().flatten();
        let mut inside: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir() && holds_trace(path))
            .collect();
        inside.sort();
        all.extend(inside);
    }
    find_files(&all, "traces", is_trace, filter)
}

fn is_trace(path: &Path) -> bool {
    has_extension(path, "pcapng") || (has_extension(path, "toml") && Scenario::has_packets(path))
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|known| known == extension)
}

fn holds_trace(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .any(|path| is_trace(&path))
}

/// Finds the scenarios that arguments name: themselves, or in directories.
pub fn find_scenarios(arguments: &[PathBuf], filter: Option<&str>) -> Result<Vec<PathBuf>, String> {
    let is_played = |path: &Path| has_extension(path, "toml") && !Scenario::has_packets(path);
    find_files(arguments, "scenarios", is_played, filter)
}

fn find_files(
    arguments: &[PathBuf],
    what: &str,
    is_one: impl Fn(&Path) -> bool,
    filter: Option<&str>,
) -> Result<Vec<PathBuf>, String> {
    let mut traces = Vec::new();
    for argument in arguments {
        if argument.is_dir() {
            let entries = std::fs::read_dir(argument)
                .map_err(|error| format!("{}: {error}", argument.display()))?;
            let mut found: Vec<PathBuf> = entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| is_one(path))
                .collect();
            if found.is_empty() {
                return Err(format!(
                    "{} holds no {what}; make traces with `efa-conformance record`",
                    argument.display()
                ));
            }
            found.sort();
            traces.extend(found);
        } else if argument.is_file() {
            traces.push(argument.clone());
        } else {
            return Err(format!(
                "{} is neither a file nor a directory",
                argument.display()
            ));
        }
    }
    let Some(filter) = filter else {
        return Ok(traces);
    };
    traces.retain(|path| name_of(path).contains(filter));
    if traces.is_empty() {
        return Err(format!(
            "no name contains `{filter}`; `efa-conformance list` shows them"
        ));
    }
    Ok(traces)
}

/// A trace's name: its file's, without the extension.
pub fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}

/// What is wrong with a trace before anything is played.
fn inspect(trace: &Trace) -> Vec<Finding> {
    let checked = check::check(&trace.capture);
    let broken = checked.worse_than(Severity::Warning);
    let broken = broken.filter(|finding| !trace.scenario.breaks.contains(&finding.rule.id));
    let damage = trace.capture.damage.iter().cloned();
    damage
        .chain(broken.map(ToString::to_string))
        .map(|text| Finding::plain(Severity::Error, text))
        .collect()
}

/// How cases are run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// The number of disorderly networks in which the engine must bring about the same outcome.
    pub seeds: u64,
    /// What is done to each single event of a run of the engine.
    pub each_event: Changes,
    /// What makes a case fail.
    #[serde(with = "crate::compare::words::severity")]
    pub fail_on: Severity,
    /// Keep the messages of each case, for reports that draw them.
    pub ladders: bool,
    /// Where captures of failed cases go; `None` keeps none.
    pub captures: Option<PathBuf>,
}

impl Default for Options {
    /// No seeds; what every implementation must do.
    fn default() -> Self {
        Options {
            seeds: 0,
            each_event: Changes::default(),
            fail_on: Severity::Error,
            ladders: false,
            captures: None,
        }
    }
}

/// Runs one trace on one backend, each endpoint in turn under test.
pub fn run_trace<B: Backend>(
    trace: &Trace,
    backend: &mut B,
    dut: &str,
    opener: &mut dyn Opener<B>,
    beyond: Option<String>,
    options: &Options,
) -> Result<Vec<Case>, BackendError>
where
    B::Nic: 'static,
{
    let name = backend.name();
    let case = |role: &str, outcome, ladder, start: Instant| Case {
        trace: trace.scenario.name.clone(),
        path: trace.capture.path.clone(),
        backend: name.to_owned(),
        dut: dut.to_owned(),
        role: role.to_owned(),
        places: BTreeMap::new(),
        outcome,
        ladder,
        duration: start.elapsed(),
    };
    let wrong = inspect(trace);
    if let Some(reason) = beyond {
        let start = Instant::now();
        let (packets, problems) = codec::check(trace);
        let mut findings: Vec<Finding> = problems
            .into_iter()
            .map(|text| Finding::plain(Severity::Error, text))
            .collect();
        findings.extend(wrong);
        let outcome = if findings.is_empty() {
            Outcome::CodecOnly { reason, packets }
        } else {
            let capture = None;
            Outcome::Failed { findings, capture }
        };
        return Ok(vec![case("all", outcome, Ladder::default(), start)]);
    }
    let mut cases = Vec::new();
    for (role, endpoint) in trace.scenario.endpoints.iter().enumerate() {
        let start = Instant::now();
        if endpoint.software == Software::Script {
            continue;
        }
        // Stock libfabric can always take the place of stock libfabric.
        if let Some(reason) = &endpoint.not_under_test
            && dut != STOCK
        {
            let reason = reason.clone();
            cases.push(case(
                &endpoint.name,
                Outcome::NotUnderTest { reason },
                Ladder::default(),
                start,
            ));
            continue;
        }
        let (outcome, ladder) = run_role(trace, role, backend, opener, &wrong, options)?;
        cases.push(case(&endpoint.name, outcome, ladder, start));
    }
    Ok(cases)
}

fn run_role<B: Backend>(
    trace: &Trace,
    role: usize,
    backend: &mut B,
    opener: &mut dyn Opener<B>,
    wrong: &[Finding],
    options: &Options,
) -> Result<(Outcome, Ladder), BackendError>
where
    B::Nic: 'static,
{
    backend.capture_next();
    let mut verdict = replay(trace, role, Strictness::Fields, backend, opener)?;
    let mut captured = backend.take_capture();
    if let Some(reason) = verdict.unsupported {
        return Ok((Outcome::Unsupported { reason }, Ladder::default()));
    }
    let ladder = match options.ladders {
        true => Ladder::of(trace, &verdict.exchanged),
        false => Ladder::default(),
    };
    if let Some(how) = verdict.departed.take() {
        if trace.scenario.is_written() {
            // Nobody else does what the packets are about.
            return Ok((Outcome::Unsupported { reason: how }, Ladder::default()));
        }
        let text = format!("{how}; played with the engine as its peer");
        verdict.add([Finding::plain(Severity::Note, text)]);
        backend.capture_next();
        let problems = live::play(&trace.scenario, role, backend, opener)?;
        captured = backend.take_capture();
        if let Some(idle) = backend.unapplied().into_iter().next() {
            let reason = format!("{how}: nothing happens that the fault {idle} is about");
            return Ok((Outcome::Unsupported { reason }, Ladder::default()));
        }
        verdict.add(
            problems
                .into_iter()
                .map(|text| Finding::of(&rules::OUTCOME, text)),
        );
    }
    verdict.add(wrong.iter().cloned());
    let name = &trace.scenario.endpoints[role].name;
    if let Some(capture) = &captured {
        // Rules say more than differences do.
        verdict.findings.splice(0..0, judge(capture, name));
    }
    let mut same = 0;
    if verdict.failures(options.fail_on).next().is_none() {
        for seed in 1..=options.seeds {
            let texts = under_seed(trace, role, seed)?;
            if texts.is_empty() {
                same += 1;
            }
            verdict.add(
                texts
                    .into_iter()
                    .map(|text| Finding::of(&rules::OUTCOME, format!("seed {seed}: {text}"))),
            );
        }
    }
    let mut events = 0;
    if verdict.failures(options.fail_on).next().is_none() {
        let changes = &options.each_event.0;
        let turns = each_event::run(trace, role, &mut Engine::default(), changes, 1)?;
        events = turns.runs;
        let wrong = turns.texts.into_iter();
        verdict.add(wrong.map(|text| Finding::of(&rules::OUTCOME, text)));
    }
    // What an application sees follows from what went wrong on the wire.
    let is_outcome = |finding: &Finding| {
        finding
            .rule
            .is_some_and(|rule| rule.id == rules::OUTCOME.id)
    };
    verdict.findings.sort_by_key(is_outcome);
    let (mut findings, remarks) = verdict
        .findings
        .into_iter()
        .partition::<Vec<_>, _>(|finding| finding.severity >= options.fail_on);
    let outcome = if findings.is_empty() {
        Outcome::Passed {
            compared: verdict.compared,
            played: verdict.played,
            seeds: same,
            events,
            remarks,
        }
    } else {
        // They explain a failure and are none: what is tested may have to cope with them.
        let said = verdict.device_errors.into_iter();
        findings.extend(said.map(|text| Finding::plain(Severity::Note, text)));
        let capture = match &options.captures {
            Some(directory) => {
                if captured.is_none() && !verdict.never_opened {
                    backend.capture_next_at_any_cost();
                    replay(trace, role, Strictness::Fields, backend, opener)?;
                    captured = backend.take_capture();
                }
                captured.and_then(|capture| keep(&capture, trace, name, directory))
            }
            None => None,
        };
        Outcome::Failed { findings, capture }
    };
    Ok((outcome, ladder))
}

/// What the passive judge says of the endpoint on the host `name` in the capture of a run.
fn judge(capture: &[u8], name: &str) -> Vec<Finding> {
    // A capture that cannot be read tells nothing; the verdict on the packets stands.
    let Ok(reader) = Reader::new(capture, name) else {
        return Vec::new();
    };
    let mut frames = Frames::new(reader).without_rdma_data();
    let mut judge = check::Judge::new();
    while let Ok(Some(frame)) = frames.next_frame() {
        if judge.frame(frame).is_err() {
            return Vec::new();
        }
    }
    let hosts = frames.interfaces();
    let is_its =
        |found: &&check::Finding| hosts.get(found.interface).is_some_and(|host| host == name);
    let checked = judge.finish();
    let mut broken: Vec<_> = checked.worse_than(Severity::Note).filter(is_its).collect();
    // What never came is said of the request, but often follows from what came instead.
    broken.sort_by_key(|finding| finding.rule.id == rules::ANSWER_MISSING.id);
    broken.into_iter().map(Finding::of_capture).collect()
}

/// Keeps the capture of a case.
fn keep(capture: &[u8], trace: &Trace, name: &str, directory: &Path) -> Option<PathBuf> {
    let path = directory.join(format!("{}-{name}.pcapng", trace.scenario.name));
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, capture));
    // The verdict does not depend on it.
    written.is_ok().then_some(path)
}

/// Every `every`-th packet to an endpoint arrives twice, of the types whose second copies show.
fn second_copies(to: &str, every: u64) -> Fault {
    let types = PacketType::ALL.iter();
    let types = types.filter(|of| of.has_header() && of.shows_second_copies());
    let when = Match {
        packet: PacketTypes(types.map(|of| of.code()).collect()),
        receiver: Some(HostName::Name(to.to_owned())),
        every: Some(every),
        ..Match::default()
    };
    Fault::new(when, Repeat)
}

/// Replays with the engine in a network that reorders, loses and refuses packets, and in which
/// packets to it come twice. Under every other seed an endpoint that only listens has an empty
/// address book, so that its device cannot name the senders.
fn under_seed(trace: &Trace, role: usize, seed: u64) -> Result<Vec<String>, BackendError> {
    let stranger = (seed % 2 == 1 && only_listens(&trace.scenario, role)).then(|| {
        let mut trace = trace.clone();
        let endpoint = &mut trace.scenario.endpoints[role];
        endpoint.address_vector.clear();
        // Nor can completions name a source that is not in the address vector.
        endpoint.capabilities.retain(|c| *c != Capability::Source);
        trace
    });
    let name = &trace.scenario.endpoints[role].name;
    let mut emu = Emu::disorderly(seed).with_fault(second_copies(name, 1 + seed % 3));
    let trace = stranger.as_ref().unwrap_or(trace);
    let mut engine = Engine { seed };
    let verdict = replay(trace, role, Strictness::Outcome, &mut emu, &mut engine)?;
    match verdict.departed {
        Some(how) if trace.scenario.is_written() => Ok(vec![how]),
        Some(_) => live::play(&trace.scenario, role, &mut emu, &mut engine),
        None => Ok(verdict.texts()),
    }
}

/// Returns whether an endpoint's application never names a peer.
fn only_listens(scenario: &Scenario, role: usize) -> bool {
    scenario.steps.iter().all(|step| match &step.action {
        Action::Start { at, operation, .. } if *at == role => matches!(
            operation,
            Operation::Recv { from: None, .. } | Operation::Register { .. }
        ),
        _ => true,
    })
}

/// Runs one trace on one backend with the engine under test.
pub fn run_engine<B: Backend>(
    trace: &Trace,
    backend: &mut B,
    options: &Options,
) -> Result<Vec<Case>, BackendError>
where
    B::Nic: 'static,
{
    let beyond = coverage::beyond_script(trace).or_else(|| coverage::beyond_engine(trace));
    run_trace(
        trace,
        backend,
        ENGINE,
        &mut Engine::default(),
        beyond,
        options,
    )
}

/// Runs one trace on verbs with a program under test, whose name in results is `dut`.
pub fn run_outside(
    trace: &Trace,
    backend: &mut Hw,
    dut: &str,
    outside: &mut Outside,
    options: &Options,
) -> Result<Vec<Case>, BackendError> {
    let beyond = coverage::beyond_script(trace);
    run_trace(trace, backend, dut, outside, beyond, options)
}

/// The results of a run, for reports.
#[derive(Clone, Debug)]
pub struct Results {
    /// What was under test.
    pub under_test: Identity,
    /// The cases.
    pub cases: Vec<Case>,
}

/// Failures of the same cause.
#[derive(Clone, Debug)]
pub struct Cause<'a> {
    /// The common cause.
    pub text: String,
    /// The cases, each once.
    pub cases: Vec<&'a Case>,
}

/// The failures of a run by their cause, the most frequent first. The cause of a case is its first
/// finding, because the others often follow from it.
pub fn causes(cases: &[Case]) -> Vec<Cause<'_>> {
    let mut causes: Vec<Cause<'_>> = Vec::new();
    for case in cases {
        let Outcome::Failed { findings, .. } = &case.outcome else {
            continue;
        };
        let Some(first) = findings.first() else {
            continue;
        };
        let text = first.cause();
        match causes.iter_mut().find(|cause| cause.text == text) {
            Some(cause) => cause.cases.push(case),
            None => causes.push(Cause {
                text,
                cases: vec![case],
            }),
        }
    }
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.cases.len()));
    causes
}

/// Counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Cases in which everything went as recorded.
    pub passed: usize,
    /// Cases whose packets were only parsed and checked.
    pub codec_only: usize,
    /// Endpoints in whose place nothing was tested.
    #[serde(rename = "skipped")]
    pub not_under_test: usize,
    /// Cases about something that the endpoint under test or its device lacks.
    pub unsupported: usize,
    /// Cases that the release under test is known to fail.
    pub known: usize,
    /// Cases that failed.
    pub failed: usize,
}

impl Summary {
    /// Counts cases.
    pub fn of(cases: &[Case]) -> Self {
        let mut summary = Summary::default();
        for case in cases {
            summary.add(case);
        }
        summary
    }

    /// Counts a case.
    pub fn add(&mut self, case: &Case) {
        match case.outcome {
            Outcome::Passed { .. } => self.passed += 1,
            Outcome::CodecOnly { .. } => self.codec_only += 1,
            Outcome::NotUnderTest { .. } => self.not_under_test += 1,
            Outcome::Unsupported { .. } => self.unsupported += 1,
            Outcome::Expected { .. } => self.known += 1,
            Outcome::Failed { .. } => self.failed += 1,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} codec only, {} skipped, {} unsupported, {} known, {} failed",
            self.passed,
            self.codec_only,
            self.not_under_test,
            self.unsupported,
            self.known,
            self.failed
        )
    }
}
