//! `list`: traces and their descriptions.

use std::path::PathBuf;

use efa_play::scenario::tags::End;
use efa_play::trace::Trace;
use efa_replay::replay::coverage;
use efa_replay::synthetic;
use efa_replay::tagged::TagTrace;
use serde::Serialize;

use crate::corpus;
use crate::outcome::{Outcome, complain, say};

#[derive(clap::Args)]
pub(crate) struct List {
    /// The traces, or directories of traces; without any, the corpus that belongs to this program.
    traces: Vec<PathBuf>,
    /// Print the page `traces/README.md`: the packet types that the traces cover, by release.
    #[arg(long)]
    matrix: bool,
    /// Print a JSON object for each trace, on a line of its own.
    #[arg(long, conflicts_with = "matrix")]
    json: bool,
}

#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    path: String,
    description: String,
    spec: &'a [String],
    endpoints: Vec<&'a str>,
    packets: usize,
    /// The reason why the engine cannot play it.
    #[serde(skip_serializing_if = "Option::is_none")]
    codec_only: Option<String>,
}

impl Listed<'_> {
    fn say(&self, as_json: bool) -> Result<(), Outcome> {
        if as_json {
            let line = serde_json::to_string(self);
            say(line.map_err(|error| complain(error, Outcome::Unfit))?);
            return Ok(());
        }
        let coverage = match &self.codec_only {
            None => String::new(),
            Some(reason) => format!("; codec only: {reason}"),
        };
        say(format_args!(
            "{:<32} {} ({} packets, spec {}{coverage})",
            self.name,
            self.description,
            self.packets,
            self.spec.join(", ")
        ));
        Ok(())
    }
}

pub(crate) fn run(arguments: &List) -> Outcome {
    let traces = match corpus::or_named(&arguments.traces).and_then(|named| {
        // The page only covers packets of the protocol.
        let found = match arguments.matrix {
            true => efa_suite::find_traces(&named, None),
            false => efa_suite::find_cases(&named, None),
        };
        found.map_err(|error| error.to_string())
    }) {
        Ok(traces) => traces,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    if arguments.matrix {
        return matrix(&traces);
    }
    let mut outcome = Outcome::Passed;
    for path in traces {
        if TagTrace::is_one(&path) {
            match TagTrace::load(&path) {
                Ok(trace) => {
                    let TagTrace { scenario, recorded } = trace;
                    let endpoints = vec![End::A.name(), End::B.name()];
                    let listed = Listed {
                        name: &scenario.name,
                        path: path.display().to_string(),
                        description: scenario.description.replace('\n', " "),
                        spec: &scenario.spec,
                        endpoints,
                        packets: recorded.len(),
                        codec_only: None,
                    };
                    if let Err(problem) = listed.say(arguments.json) {
                        return problem;
                    }
                }
                Err(error) => outcome = complain(error, Outcome::Unfit),
            }
            continue;
        }
        let trace = match synthetic::load(&path) {
            Ok(trace) => trace,
            Err(error) => {
                outcome = complain(error, Outcome::Unfit);
                continue;
            }
        };
        let scenario = &trace.scenario;
        let beyond = coverage::beyond_script(&trace);
        let listed = Listed {
            name: &scenario.name,
            path: path.display().to_string(),
            description: scenario.description.trim().replace('\n', " "),
            spec: &scenario.spec,
            endpoints: scenario.endpoints.iter().map(|e| e.name.as_str()).collect(),
            packets: trace.capture.sent().count(),
            codec_only: beyond.or_else(|| coverage::beyond_engine(&trace)),
        };
        if let Err(problem) = listed.say(arguments.json) {
            return problem;
        }
    }
    outcome
}

/// Prints the page about the coverage of the traces. Fails if a packet type is missing without a
/// reason.
fn matrix(paths: &[PathBuf]) -> Outcome {
    let loaded: Result<Vec<Trace>, _> = paths.iter().map(|path| synthetic::load(path)).collect();
    match loaded {
        Ok(traces) => {
            let (page, unexplained) = efa_suite::matrix::render(&traces);
            say(page.trim_end());
            if unexplained.is_empty() {
                return Outcome::Passed;
            }
            let missing = format!("in no trace: {}", unexplained.join(", "));
            complain(missing, Outcome::Failed)
        }
        Err(error) => complain(error, Outcome::Unfit),
    }
}
