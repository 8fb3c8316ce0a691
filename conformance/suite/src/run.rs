//! Runs the cases of one trace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use efa_capture::Reader;
use efa_check::capture::Frames;
use efa_check::check;
use efa_core::rules::{self, Severity};
use efa_core::wire::PacketType;
use efa_device_model::fault::Action::Repeat;
use efa_device_model::fault::{Fault, HostName, Match, PacketTypes};
use efa_play::scenario::{Action, Capability, Operation, Scenario, Software};
use efa_play::trace::Trace;
use efa_replay::compare::Finding;
use efa_replay::replay::backend::{Backend, BackendError};
use efa_replay::replay::emu::Emu;
use efa_replay::replay::{Engine, Opener, Strictness, Verdict, codec, coverage, live, replay};
use serde::{Deserialize, Serialize};

use crate::each_event::{self, Changes};
use crate::ladder::Ladder;
use crate::{Case, Outcome, subprotocols};

/// The engine's name in results.
pub const ENGINE: &str = "core";
/// Stock libfabric's name in results.
pub const STOCK: &str = "libfabric";

/// Findings about a trace before it is played.
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

/// The options of cases.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// The number of random networks in which the engine must reach the same outcome.
    pub seeds: u64,
    /// The changes to each single event of a run of the engine.
    pub each_event: Changes,
    /// The least severity that fails a case.
    #[serde(with = "efa_replay::compare::words::severity")]
    pub fail_on: Severity,
    /// Whether to keep the messages of each case, for reports that draw them.
    pub ladders: bool,
    /// The directory for captures of failed cases; `None` keeps none.
    pub captures: Option<PathBuf>,
}

impl Default for Options {
    /// No seeds, and the requirements for every implementation.
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

/// Runs one trace on one backend, with each endpoint in turn under test.
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
    let subprotocols = subprotocols::of(trace);
    let case = |role: &str, outcome, ladder, start: Instant| Case {
        trace: trace.scenario.name.clone(),
        path: trace.capture.path.clone(),
        backend: name.to_owned(),
        dut: dut.to_owned(),
        role: role.to_owned(),
        sections: trace.scenario.spec.clone(),
        subprotocols: subprotocols.clone(),
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
        // Stock libfabric can always replace stock libfabric.
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
    let mut verdict = replay(trace, role, Strictness::Fields, backend, opener, None)?;
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
            // No other implementation supports the packets.
            return Ok((Outcome::Unsupported { reason: how }, Ladder::default()));
        }
        let text = format!("{how}; played with the engine as its peer");
        verdict.add([Finding::plain(Severity::Note, text)]);
        backend.capture_next();
        let problems = live::play_with_engine(&trace.scenario, role, backend, opener, None)?;
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
        // Broken rules explain more than differences do.
        verdict.findings.splice(0..0, judge(capture, name));
    }
    let (same, events) = run_variations(trace, role, options, &mut verdict)?;
    // Failures of the application are consequences of failures on the wire.
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
        // Device errors explain a failure but are none: the implementation under test may have to
        // handle them.
        let said = verdict.device_errors.into_iter();
        findings.extend(said.map(|text| Finding::plain(Severity::Note, text)));
        let capture = match &options.captures {
            Some(directory) => {
                if captured.is_none() && !verdict.never_opened {
                    backend.capture_next_at_any_cost();
                    replay(trace, role, Strictness::Fields, backend, opener, None)?;
                    captured = backend.take_capture();
                }
                let name = format!("{}-{name}", trace.scenario.name);
                captured.and_then(|capture| keep(&capture, &name, directory))
            }
            None => None,
        };
        Outcome::Failed { findings, capture }
    };
    Ok((outcome, ladder))
}

/// Repeats a run without failures in random networks, and with changes to its events. Adds what
/// differs, and returns the number of networks with the same outcome, and of changed runs.
fn run_variations(
    trace: &Trace,
    role: usize,
    options: &Options,
    verdict: &mut Verdict,
) -> Result<(usize, usize), BackendError> {
    let (mut same, mut events) = (0, 0);
    let outcome = |text: String| Finding::of(&rules::OUTCOME, text);
    if verdict.failures(options.fail_on).next().is_none() {
        for seed in 1..=options.seeds {
            let texts = under_seed(trace, role, seed)?;
            same += usize::from(texts.is_empty());
            let texts = texts.into_iter().map(|text| format!("seed {seed}: {text}"));
            verdict.add(texts.map(outcome));
        }
    }
    if verdict.failures(options.fail_on).next().is_none() {
        let changes = &options.each_event.0;
        let turns = each_event::run_with_changes(trace, role, &mut Engine::default(), changes, 1)?;
        events = turns.runs;
        verdict.add(turns.texts.into_iter().map(outcome));
    }
    Ok((same, events))
}

/// The passive checker's findings about the endpoint on the host `name` in the capture of a run.
fn judge(capture: &[u8], name: &str) -> Vec<Finding> {
    // Without a readable capture there is only the verdict on the packets.
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
    // A missing answer is often the consequence of a wrong packet, so it is the last finding.
    broken.sort_by_key(|finding| finding.rule.id == rules::ANSWER_MISSING.id);
    broken.into_iter().map(Finding::of_capture).collect()
}

/// Keeps the capture of the case `name`.
pub(crate) fn keep(capture: &[u8], name: &str, directory: &Path) -> Option<PathBuf> {
    let path = directory.join(format!("{name}.pcapng"));
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, capture));
    // An error does not change the verdict.
    written.is_ok().then_some(path)
}

/// Duplicates every `every`-th packet to an endpoint, of the types whose duplicates can be noticed.
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

/// Replays with the engine in a network that reorders, loses and refuses packets, and duplicates
/// packets to it. Under every other seed an endpoint that only listens has an empty address book,
/// so that its device cannot name the senders.
fn under_seed(trace: &Trace, role: usize, seed: u64) -> Result<Vec<String>, BackendError> {
    let stranger = (seed % 2 == 1 && only_listens(&trace.scenario, role)).then(|| {
        let mut trace = trace.clone();
        let endpoint = &mut trace.scenario.endpoints[role];
        endpoint.address_vector.clear();
        // Completions cannot name a source that is not in the address vector either.
        endpoint.capabilities.retain(|c| *c != Capability::Source);
        trace
    });
    let name = &trace.scenario.endpoints[role].name;
    let mut emu = Emu::disorderly(seed).with_fault(second_copies(name, 1 + seed % 3));
    let trace = stranger.as_ref().unwrap_or(trace);
    let mut engine = Engine {
        seed,
        ..Engine::default()
    };
    let verdict = replay(
        trace,
        role,
        Strictness::Outcome,
        &mut emu,
        &mut engine,
        None,
    )?;
    match verdict.departed {
        Some(how) if trace.scenario.is_written() => Ok(vec![how]),
        Some(_) => live::play_with_engine(&trace.scenario, role, &mut emu, &mut engine, None),
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
