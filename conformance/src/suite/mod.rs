//! Running a corpus of traces.

pub mod html;
pub mod json;
pub mod junit;
pub mod progress;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::check;
use crate::drive::Identity;
use crate::replay::backend::{Backend, BackendError};
use crate::replay::emu::Emu;
use crate::replay::hw::{Hw, Outside};
use crate::replay::{Engine, Opener, Strictness, Verdict, codec, coverage, replay};
use crate::scenario::{Action, Capability, Operation, Scenario};
use crate::trace::{Trace, TraceError};

/// What the engine is called in results.
pub const ENGINE: &str = "core";
/// What stock libfabric is called in results.
pub const STOCK: &str = "libfabric";

/// How a case ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Everything went as recorded.
    Passed {
        /// Packets of the endpoint under test that were compared.
        compared: usize,
        /// Packets that the scripted endpoints sent.
        played: usize,
        /// Seeds under which the outcome was the same.
        seeds: usize,
    },
    /// The implementation cannot play the trace yet: its packets were parsed, written again and
    /// checked against the rules, nothing more.
    CodecOnly {
        /// Why.
        reason: String,
        /// Packets that were looked at.
        packets: usize,
    },
    /// The scenario says that nobody else can take this endpoint's place.
    NotUnderTest {
        /// Why.
        reason: String,
    },
    /// What is under test cannot do this, by its own account.
    Unsupported {
        /// What it cannot do.
        reason: String,
    },
    /// Something went otherwise.
    Failed {
        /// What, one text each.
        problems: Vec<String>,
    },
}

/// One trace, on one backend, with one endpoint under test.
#[derive(Clone, Debug)]
pub struct Case {
    /// The trace's name.
    pub trace: String,
    /// The trace's file.
    pub path: PathBuf,
    /// The backend's name.
    pub backend: String,
    /// What is under test, such as `core`.
    pub dut: String,
    /// The endpoint whose place it takes; all of them if they were only looked at.
    pub role: String,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took.
    pub duration: Duration,
}

impl Case {
    /// Whether it failed.
    pub fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed { .. })
    }

    /// `TRACE BACKEND ROLE`.
    pub fn name(&self) -> String {
        format!("{} {} {}", self.trace, self.backend, self.role)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!(
            "{:<32} {:<4} {} as {}",
            self.trace, self.backend, self.dut, self.role
        );
        match &self.outcome {
            Outcome::Passed {
                compared,
                played,
                seeds,
            } => {
                write!(
                    f,
                    "PASS  {name}: {compared} packets compared, {played} played"
                )?;
                if *seeds > 0 {
                    write!(f, ", same outcome under {seeds} seeds")?;
                }
                Ok(())
            }
            Outcome::CodecOnly { reason, packets } => write!(
                f,
                "CODEC {name}: codec only: {reason}; {packets} packets parsed, written again and \
                 checked"
            ),
            Outcome::NotUnderTest { reason } => write!(f, "SKIP  {name}: {reason}"),
            Outcome::Unsupported { reason } => write!(f, "UNSUP {name}: unsupported: {reason}"),
            Outcome::Failed { problems } => {
                write!(f, "FAIL  {name}")?;
                for problem in problems {
                    write!(f, "\n      {problem}")?;
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

/// Finds the files that arguments name, traces or scenarios by their `extension`: themselves, or in
/// directories.
pub fn find(
    arguments: &[PathBuf],
    extension: &str,
    filter: Option<&str>,
) -> Result<Vec<PathBuf>, String> {
    let mut traces = Vec::new();
    for argument in arguments {
        if argument.is_dir() {
            let entries = std::fs::read_dir(argument)
                .map_err(|error| format!("{}: {error}", argument.display()))?;
            let mut found: Vec<PathBuf> = entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| path.extension().is_some_and(|e| e == extension))
                .collect();
            if found.is_empty() {
                return Err(format!(
                    "{} holds no .{extension} files; make traces with `efa-conformance record`",
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
fn inspect(trace: &Trace) -> Vec<String> {
    let mut problems = trace.capture.damage.clone();
    let checked = check::check(&trace.capture);
    problems.extend(checked.violations.iter().map(ToString::to_string));
    problems
}

/// Runs one trace on one backend, each endpoint in turn under test.
pub fn run_trace<B: Backend>(
    trace: &Trace,
    backend: &mut B,
    dut: &str,
    opener: &mut dyn Opener<B>,
    beyond: Option<String>,
    seeds: u64,
) -> Result<Vec<Case>, BackendError> {
    let name = backend.name();
    let case = |role: &str, outcome, start: Instant| Case {
        trace: trace.scenario.name.clone(),
        path: trace.capture.path.clone(),
        backend: name.to_owned(),
        dut: dut.to_owned(),
        role: role.to_owned(),
        outcome,
        duration: start.elapsed(),
    };
    let wrong = inspect(trace);
    if let Some(reason) = beyond {
        let start = Instant::now();
        let (packets, mut problems) = codec::check(trace);
        problems.extend(wrong);
        let outcome = if problems.is_empty() {
            Outcome::CodecOnly { reason, packets }
        } else {
            Outcome::Failed { problems }
        };
        return Ok(vec![case("all", outcome, start)]);
    }
    let mut cases = Vec::new();
    for (role, endpoint) in trace.scenario.endpoints.iter().enumerate() {
        let start = Instant::now();
        // Stock libfabric may do again what stock libfabric did.
        if let Some(reason) = &endpoint.not_under_test
            && dut != STOCK
        {
            let reason = reason.clone();
            cases.push(case(
                &endpoint.name,
                Outcome::NotUnderTest { reason },
                start,
            ));
            continue;
        }
        let verdict = replay(trace, role, Strictness::Fields, backend, opener)?;
        let mut problems = verdict.texts();
        problems.extend(wrong.iter().cloned());
        if let Some(reason) = verdict.unsupported {
            cases.push(case(&endpoint.name, Outcome::Unsupported { reason }, start));
            continue;
        }
        let mut same = 0;
        if problems.is_empty() {
            for seed in 1..=seeds {
                let verdict = under_seed(trace, role, seed)?;
                if verdict.passed() {
                    same += 1;
                }
                let texts = verdict.texts();
                problems.extend(texts.iter().map(|text| format!("seed {seed}: {text}")));
            }
        }
        let outcome = if problems.is_empty() {
            Outcome::Passed {
                compared: verdict.compared,
                played: verdict.played,
                seeds: same,
            }
        } else {
            Outcome::Failed { problems }
        };
        cases.push(case(&endpoint.name, outcome, start));
    }
    Ok(cases)
}

/// The engine in a network that reorders, loses and refuses. Under every other seed an endpoint that
/// only listens has nobody in its address book, so that its device cannot name the senders.
fn under_seed(trace: &Trace, role: usize, seed: u64) -> Result<Verdict, BackendError> {
    let stranger = (seed % 2 == 1 && only_listens(&trace.scenario, role)).then(|| {
        let mut trace = trace.clone();
        let endpoint = &mut trace.scenario.endpoints[role];
        endpoint.address_vector.clear();
        // Who is not in the address vector cannot be named as a source either.
        endpoint.capabilities.retain(|c| *c != Capability::Source);
        trace
    });
    let mut emu = Emu::disorderly(seed);
    replay(
        stranger.as_ref().unwrap_or(trace),
        role,
        Strictness::Outcome,
        &mut emu,
        &mut Engine { seed },
    )
}

/// Whether an endpoint's application never names a peer.
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
    seeds: u64,
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
        seeds,
    )
}

/// Runs one trace on verbs with what a program plays under test; `dut` is what results call it.
pub fn run_outside(
    trace: &Trace,
    backend: &mut Hw,
    dut: &str,
    outside: &mut Outside,
) -> Result<Vec<Case>, BackendError> {
    let beyond = coverage::beyond_script(trace);
    run_trace(trace, backend, dut, outside, beyond, 0)
}

/// What a run gave, for reports.
#[derive(Clone, Debug)]
pub struct Results {
    /// What was under test.
    pub under_test: Identity,
    /// How it fared.
    pub cases: Vec<Case>,
}

/// Counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Cases in which everything went as recorded.
    pub passed: usize,
    /// Cases that were only looked at.
    pub codec_only: usize,
    /// Endpoints in whose place nothing was tested.
    pub not_under_test: usize,
    /// Cases that what is under test cannot do.
    pub unsupported: usize,
    /// Cases in which something went otherwise.
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
            Outcome::Failed { .. } => self.failed += 1,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} codec only, {} skipped, {} unsupported, {} failed",
            self.passed, self.codec_only, self.not_under_test, self.unsupported, self.failed
        )
    }
}
