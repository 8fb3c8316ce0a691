//! `check`: judges captures by the rules of the protocol.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use efa_capture::Reader;
use efa_check::capture::{CapturedItem, Frames};
use efa_check::check::{CheckResult, Judge, NEED_ORDER, NotJudged};
use efa_core::rules::{Evidence, RULES, Rule, Severity};
use efa_suite::parallel;

use crate::annotations::{AnnotatedCapture, Format, annotate};
use crate::captures::captures;
use crate::outcome::{Outcome, complain, say};

#[derive(clap::Args)]
pub(crate) struct Check {
    /// The captures to check, and directories of captures; `-` reads standard input.
    #[arg(
        required_unless_present = "rules",
        conflicts_with = "rules",
        value_name = "CAPTURE"
    )]
    captures: Vec<PathBuf>,
    /// List the rules instead.
    #[arg(long)]
    rules: bool,
    /// Fail if a finding is at least this severe.
    #[arg(long, value_name = "SEVERITY", default_value = "error", value_parser = severity)]
    fail_on: Severity,
    /// A capture with nothing to judge is not an error.
    #[arg(long)]
    allow_empty: bool,
    /// Fail, with status 2, if not all of a capture can be judged.
    #[arg(long)]
    require_complete: bool,
    /// The number of captures to judge at the same time.
    #[arg(long, value_name = "N", default_value = "1")]
    jobs: NonZeroUsize,
    /// Print the result as one JSON object, and of several captures a list of them.
    #[arg(long, conflicts_with = "rules")]
    json: bool,
    /// Explain each finding: what was seen, the statement, what a right sender would have sent, the
    /// frames to look at.
    #[arg(long, conflicts_with_all = ["rules", "json", "format"])]
    explain: bool,
    /// Print the findings as annotations of a CI system, the findings of several captures together.
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["rules", "json"])]
    format: Option<Format>,
}

pub(crate) fn severity(name: &str) -> Result<Severity, String> {
    let known = Severity::ALL.into_iter().find(|known| known.name() == name);
    known.ok_or_else(|| "a severity is error, warning or note".into())
}

pub(crate) fn check(arguments: &Check) -> Outcome {
    if arguments.rules {
        list_rules();
        return Outcome::Passed;
    }
    let (captures, is_one) = match captures(&arguments.captures) {
        Ok(captures) => captures,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let mut documents = Vec::new();
    let mut annotated = Vec::new();
    let mut worst = Outcome::Passed;
    let mut workers = vec![(); arguments.jobs.get()];
    let judge = |_: &mut (), path: &PathBuf| judge_file(path);
    parallel::in_order(&captures, &mut workers, judge, |path, judged| {
        let outcome = match judged {
            Ok(judged) => {
                let (outcome, problem) = judged.outcome(arguments);
                if arguments.json {
                    documents.push(judged.json(path, outcome));
                } else if arguments.format.is_some() {
                    annotated.push(AnnotatedCapture {
                        capture: path.display().to_string(),
                        findings: judged.checked.findings,
                    });
                } else {
                    judged.say(path, arguments.explain);
                }
                match problem {
                    Some(problem) => {
                        complain(format_args!("{}: {problem}", path.display()), outcome)
                    }
                    None => outcome,
                }
            }
            Err(problem) => complain(problem, Outcome::Unfit),
        };
        worst = worst.and(outcome);
    });
    if arguments.json {
        // One capture is a single object; several are a list.
        let document = match is_one {
            true => documents.pop().unwrap_or_default(),
            false => documents.into(),
        };
        if document != serde_json::Value::Null {
            say(format_args!("{document:#}"));
        }
    }
    // Unreadable captures have nothing to annotate.
    if let Some(format) = arguments.format.filter(|_| !annotated.is_empty()) {
        match annotate(format, &annotated) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => say(text),
            Err(error) => return complain(error, Outcome::Unfit),
        }
    }
    worst
}

fn judge_file(path: &Path) -> Result<CheckedCapture, String> {
    if path == Path::new("-") {
        let reader = Reader::new(io::stdin(), "standard input");
        return judge(Frames::new(reader.map_err(|error| error.to_string())?));
    }
    judge(Frames::open(path).map_err(|error| error.to_string())?)
}

/// Judges a capture.
fn judge<R: io::Read>(frames: Frames<R>) -> Result<CheckedCapture, String> {
    let mut frames = frames.without_rdma_data();
    let mut judge = Judge::new();
    while let Some(item) = frames.next_item().map_err(|error| error.to_string())? {
        match item {
            CapturedItem::Frame(frame) => {
                let judged = judge.frame(frame).map_err(|error| error.to_string())?;
                frames.reuse(judged);
            }
            CapturedItem::Connected(packet) => judge.connected(&packet),
        }
    }
    for interface in frames.lossy() {
        judge.lossy(interface);
    }
    Ok(CheckedCapture {
        checked: judge.finish(),
        damage: frames.damage(),
        foreign_frames: frames.foreign(),
        skipped_blocks: frames.skipped_blocks(),
    })
}

fn list_rules() {
    for rule in RULES.iter().filter(|rule| rule.is_checked()) {
        say(format_args!(
            "{:<8} {:<21} {} ({})",
            rule.severity, rule.id, rule.meaning, rule.statement
        ));
    }
}

/// A capture and the verdict on it.
struct CheckedCapture {
    checked: CheckResult,
    damage: Vec<String>,
    /// The number of frames of other protocols than the emulated wire.
    foreign_frames: u64,
    /// The number of blocks of unknown types.
    skipped_blocks: u64,
}

impl CheckedCapture {
    /// The outcome, and the reason if it differs from the findings' outcome.
    fn outcome(&self, arguments: &Check) -> (Outcome, Option<String>) {
        if self.checked.at_least(arguments.fail_on) > 0 {
            return (Outcome::Failed, None);
        }
        if self.checked.is_empty() && !arguments.allow_empty {
            let why = match (self.checked.foreign, self.checked.not_judged.untagged) {
                (0, 0) => "it has no RDM packets".to_owned(),
                (0, packets) => format!(
                    "no rendezvous shows that messages of its {packets} packets of reliable \
                     connections have tags"
                ),
                (sends, _) => {
                    format!("its {sends} sends are not RDM packets of protocol version 4")
                }
            };
            let remedy = "`--allow-empty` if that is as it should be";
            return (
                Outcome::Unfit,
                Some(format!("nothing to judge: {why}; {remedy}")),
            );
        }
        if arguments.require_complete && !self.is_complete() {
            let problem = "not all of it could be judged (`--require-complete`)";
            return (Outcome::Unfit, Some(problem.to_owned()));
        }
        (Outcome::Passed, None)
    }

    fn is_complete(&self) -> bool {
        self.damage.is_empty() && self.not_judged().is_empty()
    }

    /// The parts that could not be judged, one line each.
    fn not_judged(&self) -> Vec<String> {
        let NotJudged {
            cut_headers,
            cut_data,
            without_direction,
            without_order,
            without_beginning,
            untagged,
        } = self.checked.not_judged;
        let named = |is_it: fn(&&Rule) -> bool| {
            let rules = RULES.iter().filter(|rule| rule.is_checked()).filter(is_it);
            rules.map(|rule| rule.id).collect::<Vec<_>>().join(", ")
        };
        let all = [
            (
                without_direction,
                "ends of conversations lack frames that they sent or got, or headers of them: only \
                 rules that need a single packet were applied there",
                named(|rule| rule.evidence == Evidence::Packet),
            ),
            (
                without_beginning,
                "ends of conversations lack their beginning: some rules were not applied there",
                named(|rule| matches!(rule.evidence, Evidence::Sender | Evidence::Beginning)),
            ),
            (
                without_order,
                "conversations have frames without a direction: rules that need the order of what \
                 an end sent and got find notes there at most",
                named(|rule| NEED_ORDER.contains(rule)),
            ),
            (
                cut_headers,
                "packets have no whole header: a snap length cut it",
                String::new(),
            ),
            (
                cut_data,
                "packets have not all of their data: a snap length cut it",
                String::new(),
            ),
            (
                self.checked.unproven,
                "findings were dropped: the capture lacks frames, so it does not prove them",
                String::new(),
            ),
            (
                untagged,
                "packets are of reliable connections whose messages are not known to have tags",
                String::new(),
            ),
            (
                self.foreign_frames,
                "frames are of other protocols",
                String::new(),
            ),
            (
                self.skipped_blocks,
                "blocks are of a type that is not known",
                String::new(),
            ),
        ];
        let said = all.into_iter().filter(|(count, ..)| *count > 0);
        said.map(|(count, what, rules)| match rules.as_str() {
            "" => format!("{count} {what}"),
            rules => format!("{count} {what} ({rules})"),
        })
        .collect()
    }

    fn say(&self, path: &Path, explain: bool) {
        let checked = &self.checked;
        for damage in &self.damage {
            say(format_args!("damaged: {damage}"));
        }
        for finding in &checked.findings {
            match explain {
                true => say(finding.explanation()),
                false => say(finding),
            }
        }
        let all = checked.at_least(Severity::Note);
        let left_out = all - checked.findings.len() as u64;
        if left_out > 0 {
            say(format_args!("{left_out} more findings"));
        }
        for line in self.not_judged() {
            say(format_args!("not judged: {line}"));
        }
        let count = |severity| checked.counts.get(&severity).copied().unwrap_or_default();
        say(format_args!(
            "{}: {} packets in {} conversations{}, {} errors, {} warnings, {} notes",
            path.display(),
            checked.packets,
            checked.conversations,
            match checked.tagged {
                0 => String::new(),
                tagged => format!(", {tagged} of connections with tags"),
            },
            count(Severity::Error),
            count(Severity::Warning),
            count(Severity::Note)
        ));
    }

    /// The result as `--json` prints it; docs/json.md describes it.
    fn json(&self, path: &Path, outcome: Outcome) -> serde_json::Value {
        let checked = &self.checked;
        let counts = Severity::ALL.map(|severity| {
            let count = checked.counts.get(&severity).copied();
            (severity.name(), count.unwrap_or_default())
        });
        let result = match outcome {
            Outcome::Passed => "passed",
            Outcome::Failed => "failed",
            Outcome::Unfit if checked.is_empty() => "nothing to judge",
            Outcome::Unfit => "incomplete",
        };
        let NotJudged {
            cut_headers,
            cut_data,
            without_direction,
            without_order,
            without_beginning,
            untagged,
        } = checked.not_judged;
        let findings = checked.findings.iter().map(|finding| {
            serde_json::json!({
                "rule": finding.rule.id,
                "statement": finding.rule.statement,
                "severity": finding.severity.name(),
                "packet": finding.packet,
                "type": finding.kind,
                "text": finding.text,
            })
        });
        serde_json::json!({
            "capture": path.display().to_string(),
            "version": env!("CARGO_PKG_VERSION"),
            "result": result,
            "packets": checked.packets,
            "conversations": checked.conversations,
            "foreign": checked.foreign,
            "tagged": checked.tagged,
            "unproven": checked.unproven,
            "complete": self.is_complete(),
            "not_judged": {
                "cut_headers": cut_headers,
                "cut_data": cut_data,
                "without_direction": without_direction,
                "without_order": without_order,
                "without_beginning": without_beginning,
                "untagged": untagged,
                "foreign_frames": self.foreign_frames,
                "skipped_blocks": self.skipped_blocks,
            },
            "counts": BTreeMap::from(counts),
            "damage": self.damage,
            "findings": findings.collect::<Vec<_>>(),
        })
    }
}
