//! The case of a trace of tag matching: both ends on devices of a backend.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use efa_replay::compare::Finding;
use efa_replay::replay::emu::Emu;
use efa_replay::tagged::{Devices, TagTrace, Verbs, play};

use crate::ladder::Ladder;
use crate::run::keep;
use crate::{Case, Options, Outcome, TraceResult};

/// The device's name in results, because no protocol engine is under test.
const DEVICE: &str = "device";

/// The result of a trace of tag matching that is not played, with the reason.
pub fn leave_out(path: &Path, backend: &str, reason: &str) -> TraceResult {
    let reason = reason.to_owned();
    match TagTrace::load(path) {
        Ok(trace) => {
            let outcome = Outcome::NotUnderTest { reason };
            TraceResult::from(case(path, &trace, backend, outcome, Instant::now()))
        }
        Err(error) => TraceResult::unfit(error.to_string()),
    }
}

/// Runs a trace over verbs, if there is a device for it.
pub(crate) fn run_over_verbs(path: &Path, trace: &TagTrace, options: &Options) -> Case {
    match Verbs::open() {
        Ok(mut verbs) => run(path, trace, &mut verbs, options),
        Err(error) => {
            let reason = error.to_string();
            let outcome = Outcome::Unsupported { reason };
            case(path, trace, "hw", outcome, Instant::now())
        }
    }
}

/// Runs a trace in the simulator, and in the number of random networks that the options specify.
pub(crate) fn run_in_simulator(
    path: &Path,
    trace: &TagTrace,
    emu: &mut Emu,
    options: &Options,
) -> Case {
    let mut case = run(path, trace, emu, options);
    for seed in 1..=options.seeds {
        let Outcome::Passed { seeds, .. } = &mut case.outcome else {
            break;
        };
        *seeds += 1;
        let found = play(trace, &mut Emu::disorderly(seed)).findings.into_iter();
        let named = found.map(|finding| Finding {
            text: format!("seed {seed}: {}", finding.text),
            ..finding
        });
        let findings: Vec<Finding> = named.filter(|it| it.severity >= options.fail_on).collect();
        if !findings.is_empty() {
            let capture = None;
            case.outcome = Outcome::Failed { findings, capture };
        }
    }
    case
}

fn run<D: Devices>(path: &Path, trace: &TagTrace, devices: &mut D, options: &Options) -> Case {
    let start = Instant::now();
    let verdict = play(trace, devices);
    let (findings, remarks) = verdict
        .findings
        .into_iter()
        .partition::<Vec<_>, _>(|finding| finding.severity >= options.fail_on);
    let outcome = match (verdict.unsupported, findings.is_empty()) {
        (Some(reason), _) => Outcome::Unsupported { reason },
        (None, true) => Outcome::Passed {
            compared: verdict.compared,
            played: verdict.played,
            seeds: 0,
            events: 0,
            remarks,
        },
        (None, false) => {
            let capture = verdict.capture.zip(options.captures.as_deref());
            let name = format!("{}-{}", trace.scenario.name, devices.name());
            let capture = capture.and_then(|(capture, to)| keep(&capture, &name, to));
            Outcome::Failed { findings, capture }
        }
    };
    case(path, trace, devices.name(), outcome, start)
}

fn case(path: &Path, trace: &TagTrace, backend: &str, outcome: Outcome, start: Instant) -> Case {
    Case {
        trace: trace.scenario.name.clone(),
        path: path.to_owned(),
        backend: backend.to_owned(),
        dut: DEVICE.to_owned(),
        role: "all".to_owned(),
        sections: trace.scenario.spec.clone(),
        subprotocols: Vec::new(),
        places: BTreeMap::new(),
        outcome,
        ladder: Ladder::default(),
        duration: start.elapsed(),
    }
}
