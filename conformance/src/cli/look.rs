//! `show` and `list`: looking at captures.

use std::io::{self, Write};
use std::path::PathBuf;

use super::{Outcome, complain, say};
use crate::replay::coverage;
use crate::suite;
use crate::trace::{Capture, Trace};

#[derive(clap::Args)]
pub(super) struct Show {
    /// What to show.
    capture: PathBuf,
}

#[derive(clap::Args)]
pub(super) struct List {
    /// Traces, or directories of traces.
    #[arg(default_value = "traces")]
    traces: Vec<PathBuf>,
}

pub(super) fn show(arguments: &Show) -> Outcome {
    let capture = match Capture::load(&arguments.capture) {
        Ok(capture) => capture,
        Err(error) => return complain(error, Outcome::Unfit),
    };
    let mut output = io::BufWriter::new(io::stdout().lock());
    let written = crate::show::show(&capture, &mut output).and_then(|()| output.flush());
    match written {
        Ok(()) => Outcome::Passed,
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Passed,
        Err(error) => complain(error, Outcome::Unfit),
    }
}

pub(super) fn list(arguments: &List) -> Outcome {
    let traces = match suite::find(&arguments.traces, "pcapng", None) {
        Ok(traces) => traces,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let mut outcome = Outcome::Passed;
    for path in traces {
        match Trace::load(&path) {
            Ok(trace) => {
                let scenario = &trace.scenario;
                let description = scenario.description.replace('\n', " ");
                let beyond = coverage::beyond_script(&trace);
                let coverage = match beyond.or_else(|| coverage::beyond_engine(&trace)) {
                    None => String::new(),
                    Some(reason) => format!("; codec only: {reason}"),
                };
                say(format_args!(
                    "{:<32} {description} ({} packets, spec {}{coverage})",
                    scenario.name,
                    trace.capture.sent().count(),
                    scenario.spec.join(", ")
                ));
            }
            Err(error) => outcome = complain(error, Outcome::Unfit),
        }
    }
    outcome
}
