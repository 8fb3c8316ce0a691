//! `check`: judging a capture by the rules of the protocol.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use efa_capture::Reader;
use efa_check::capture::Frames;
use efa_check::check::{Checked, Finding, Judge};
use efa_core::rules::{RULES, Severity};
use serde::Serialize;

use crate::outcome::{Outcome, complain, say};

#[derive(clap::Args)]
pub(crate) struct Check {
    /// What to check; `-` reads standard input.
    #[arg(required_unless_present = "rules", conflicts_with = "rules")]
    capture: Option<PathBuf>,
    /// List the rules instead.
    #[arg(long)]
    rules: bool,
    /// Fail if a finding is at least this severe.
    #[arg(long, value_name = "SEVERITY", default_value = "error", value_parser = severity)]
    fail_on: Severity,
    /// A capture with nothing to judge is not an error.
    #[arg(long)]
    allow_empty: bool,
    /// Print the result as one JSON object.
    #[arg(long, conflicts_with = "rules")]
    json: bool,
}

pub(crate) fn severity(name: &str) -> Result<Severity, String> {
    let known = Severity::ALL.into_iter().find(|known| known.name() == name);
    known.ok_or_else(|| "a severity is error, warning or note".into())
}

pub(crate) fn check(arguments: &Check) -> Outcome {
    let Some(path) = arguments.capture.as_ref().filter(|_| !arguments.rules) else {
        list_rules();
        return Outcome::Passed;
    };
    let judged = if path == Path::new("-") {
        Reader::new(io::stdin().lock(), "standard input")
            .map_err(|error| error.to_string())
            .and_then(|reader| judge(Frames::new(reader)))
    } else {
        Frames::open(path)
            .map_err(|error| error.to_string())
            .and_then(judge)
    };
    let (checked, damage) = match judged {
        Ok(judged) => judged,
        Err(error) => return complain(error, Outcome::Unfit),
    };
    let is_empty = checked.is_empty() && !arguments.allow_empty;
    let outcome = match (checked.at_least(arguments.fail_on), is_empty) {
        (1.., _) => Outcome::Failed,
        (0, true) => Outcome::Unfit,
        (0, false) => Outcome::Passed,
    };
    if arguments.json {
        say_json(path, &checked, &damage, outcome);
    } else {
        say_text(path, &checked, &damage);
    }
    if outcome == Outcome::Unfit {
        let why = if checked.foreign > 0 {
            format!(
                "its {} sends are not RDM packets of protocol version 4",
                checked.foreign
            )
        } else {
            "it has no RDM packets".into()
        };
        return complain(
            format_args!(
                "{}: nothing to judge: {why}; `--allow-empty` if that is as it should be",
                path.display()
            ),
            outcome,
        );
    }
    outcome
}

/// Judges a capture; also returns the damage of the file.
fn judge<R: io::Read>(frames: Frames<R>) -> Result<(Checked, Vec<String>), String> {
    let mut frames = frames.without_rdma_data();
    let mut judge = Judge::new();
    while let Some(frame) = frames.next_frame().map_err(|error| error.to_string())? {
        judge.frame(frame).map_err(|error| error.to_string())?;
    }
    for interface in frames.lossy() {
        judge.lossy(interface);
    }
    Ok((judge.finish(), frames.damage()))
}

fn list_rules() {
    for rule in RULES.iter().filter(|rule| rule.is_checked()) {
        say(format_args!(
            "{:<8} {:<21} {} ({})",
            rule.severity, rule.id, rule.meaning, rule.statement
        ));
    }
}

fn say_text(path: &Path, checked: &Checked, damage: &[String]) {
    for damage in damage {
        say(format_args!("damaged: {damage}"));
    }
    for finding in &checked.findings {
        say(finding);
    }
    let all = checked.at_least(Severity::Note);
    let left_out = all - checked.findings.len() as u64;
    if left_out > 0 {
        say(format_args!("{left_out} more findings"));
    }
    if checked.unproven > 0 {
        say(format_args!(
            "{} findings were dropped: the capture lacks frames, so it does not prove them",
            checked.unproven
        ));
    }
    let count = |severity| checked.counts.get(&severity).copied().unwrap_or_default();
    say(format_args!(
        "{}: {} packets in {} conversations, {} errors, {} warnings, {} notes",
        path.display(),
        checked.packets,
        checked.conversations,
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Note)
    ));
}

/// The result as `--json` prints it; docs/conformance.md describes it.
#[derive(Serialize)]
struct Json<'a> {
    capture: String,
    version: &'static str,
    result: &'static str,
    packets: u64,
    conversations: u64,
    foreign: u64,
    unproven: u64,
    counts: BTreeMap<&'static str, u64>,
    damage: &'a [String],
    findings: Vec<JsonFinding<'a>>,
}

#[derive(Serialize)]
struct JsonFinding<'a> {
    rule: &'static str,
    statement: &'static str,
    severity: &'static str,
    packet: u64,
    #[serde(rename = "type")]
    kind: &'a str,
    text: &'a str,
}

impl<'a> From<&'a Finding> for JsonFinding<'a> {
    fn from(finding: &'a Finding) -> Self {
        JsonFinding {
            rule: finding.rule.id,
            statement: finding.rule.statement,
            severity: finding.severity.name(),
            packet: finding.packet,
            kind: &finding.kind,
            text: &finding.text,
        }
    }
}

fn say_json(path: &Path, checked: &Checked, damage: &[String], outcome: Outcome) {
    let counts = Severity::ALL.map(|severity| {
        let count = checked.counts.get(&severity).copied();
        (severity.name(), count.unwrap_or_default())
    });
    let json = Json {
        capture: path.display().to_string(),
        version: env!("CARGO_PKG_VERSION"),
        result: match outcome {
            Outcome::Passed => "passed",
            Outcome::Failed => "failed",
            Outcome::Unfit => "nothing to judge",
        },
        packets: checked.packets,
        conversations: checked.conversations,
        foreign: checked.foreign,
        unproven: checked.unproven,
        counts: counts.into_iter().collect(),
        damage,
        findings: checked.findings.iter().map(JsonFinding::from).collect(),
    };
    match serde_json::to_string_pretty(&json) {
        Ok(text) => say(text),
        Err(error) => {
            complain(error, Outcome::Unfit);
        }
    }
}
