//! The results of a run as data, from which JSON, pages and JUnit files are made.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use efa_play::drive::Identity;
use efa_replay::compare::Finding;
use serde::{Deserialize, Serialize, Serializer};

use super::ladder::Ladder;
use super::pairs::{self, PairReport};
use super::sections::{self, SectionReport};
use super::{Case, Outcome, Summary};

/// The results of a run as they are written; docs/json.md describes them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub(crate) under_test: Identity,
    /// The run. Reports of earlier versions of the suite do not have it.
    #[serde(default)]
    pub run: RunReport,
    /// The number of cases of each result.
    pub summary: Summary,
    /// The results by section of the protocol document.
    #[serde(default)]
    pub(crate) sections: Vec<SectionReport>,
    /// The results by the pair of places, of cases that were played on other hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairReport>,
    /// The results in the order in which the cases were started.
    pub cases: Vec<CaseReport>,
}

/// The circumstances of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RunReport {
    /// The start time, in the format of RFC 3339.
    pub started: String,
    /// The duration in seconds.
    pub seconds: f64,
    /// The name of the suite's host.
    pub host: String,
    /// The command line, for a shell.
    pub command: String,
    /// The working directory, which the paths of the command are relative to.
    #[serde(serialize_with = "as_text")]
    pub directory: PathBuf,
    /// The versions of the participating software, by name.
    pub versions: BTreeMap<String, String>,
}

/// The result of a case as one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// [`Outcome::Passed`].
    Passed,
    /// [`Outcome::Unsupported`].
    Unsupported,
    /// [`Outcome::CodecOnly`].
    CodecOnly,
    /// [`Outcome::NotUnderTest`].
    Skipped,
    /// [`Outcome::Expected`].
    Known,
    /// [`Outcome::Failed`].
    Failed,
}

/// The result of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseReport {
    pub(crate) trace: String,
    pub(crate) backend: String,
    /// The implementation under test, such as `core`.
    pub dut: String,
    /// The endpoint that the implementation under test replaced.
    pub role: String,
    /// The sections of the protocol document that it covers.
    #[serde(default)]
    pub sections: Vec<String>,
    #[serde(default)]
    pub(crate) subprotocols: Vec<String>,
    /// The shell command that repeats it.
    #[serde(default)]
    pub repeat: String,
    /// The host of each endpoint, if it was not the suite's host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<String, String>,
    pub(crate) result: Ending,
    /// The reason why nothing was tested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The key that failures with the same cause share; only for failed cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The reasons of a failure, and legal differences.
    pub(crate) findings: Vec<FindingReport>,
    /// The row of docs/deviations.md that explains why the case is known to fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviation: Option<u32>,
    /// The capture of a failed case.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub capture: Option<PathBuf>,
    /// Packets of the endpoint under test that were compared.
    pub packets_compared: usize,
    /// Packets that the scripted endpoints sent.
    pub packets_played: usize,
    /// The number of seeds under which the outcome was the same.
    pub seeds: usize,
    /// The number of runs in which a single event was changed.
    #[serde(default)]
    pub events: usize,
    /// The duration of the case.
    pub seconds: f64,
    /// The recorded packets and the actual ones.
    #[serde(default, skip_serializing_if = "Ladder::is_empty")]
    pub(crate) ladder: Ladder,
}

/// A finding.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FindingReport {
    /// Its severity: `error`, `warning` or `note`.
    pub(crate) severity: String,
    /// The statement, such as `v4/3.2/cts-window`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) statement: Option<String>,
    /// The number of the packet in the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) packet: Option<u64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) packet_type: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) field: String,
    /// The complete finding as text.
    pub(crate) text: String,
}

impl FindingReport {
    fn of(finding: &Finding) -> Self {
        FindingReport {
            severity: finding.severity.name().into(),
            statement: finding.statement().map(str::to_owned),
            packet: finding.packet,
            packet_type: finding.packet_type.clone(),
            field: finding.field.clone(),
            text: finding.to_string(),
        }
    }
}

/// Failures with the same cause.
#[derive(Clone, Debug)]
pub struct FailureGroup<C> {
    /// The first failure of the group.
    pub heading: String,
    /// The cases, each once.
    pub cases: Vec<C>,
}

impl<C> FailureGroup<C> {
    /// `and 2 like it`; empty if there is one case.
    pub fn like_it(&self) -> String {
        match self.cases.len() {
            ..2 => String::new(),
            count => format!(" and {} like it", count - 1),
        }
    }
}

/// Failed cases by their cause, the most frequent first. The cause of a case is its first finding,
/// because later findings often follow from it.
pub fn causes<C>(
    failed: impl IntoIterator<Item = C>,
    of: fn(&C) -> &CaseReport,
) -> Vec<FailureGroup<C>> {
    let mut causes: Vec<FailureGroup<C>> = Vec::new();
    for case in failed {
        let cause = of(&case).cause.as_deref();
        let known = causes
            .iter_mut()
            .find(|known| of(&known.cases[0]).cause.as_deref() == cause);
        match known {
            Some(known) => known.cases.push(case),
            None => causes.push(FailureGroup {
                heading: of(&case).heading().to_owned(),
                cases: vec![case],
            }),
        }
    }
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.cases.len()));
    causes
}

impl CaseReport {
    /// The key that identifies a case in different runs.
    pub fn identity(&self) -> impl PartialEq + use<'_> {
        (&self.trace, &self.backend, &self.role, &self.places)
    }

    /// Returns whether the case failed.
    pub fn has_failed(&self) -> bool {
        self.result == Ending::Failed
    }

    /// `TRACE (WHAT as ROLE)`, and the hosts of the endpoints if they were other hosts.
    pub fn name(&self) -> String {
        let places = self.places.iter();
        let at = places.map(|(endpoint, place)| format!(", {endpoint} at {place}"));
        format!(
            "{} ({} as {}{})",
            self.trace,
            self.dut,
            self.role,
            at.collect::<String>()
        )
    }

    /// The summary in one line: the first failure, or why the case was not played.
    pub fn heading(&self) -> &str {
        let finding = self.findings.first().map(|finding| finding.text.as_str());
        let text = self.reason.as_deref().or(finding).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // The program's output is in the following lines.
        line.strip_suffix("; its standard error ends with")
            .unwrap_or(line)
    }

    fn of(case: &Case, repeat: String) -> Self {
        let mut report = CaseReport {
            trace: case.trace.clone(),
            backend: case.backend.clone(),
            dut: case.dut.clone(),
            role: case.role.clone(),
            sections: case.sections.clone(),
            subprotocols: case.subprotocols.clone(),
            repeat,
            places: case.places.clone(),
            result: Ending::Passed,
            reason: None,
            cause: None,
            findings: Vec::new(),
            deviation: None,
            capture: None,
            packets_compared: 0,
            packets_played: 0,
            seeds: 0,
            events: 0,
            seconds: case.duration.as_secs_f64(),
            ladder: case.ladder.clone(),
        };
        let all = |findings: &[Finding]| findings.iter().map(FindingReport::of).collect();
        match &case.outcome {
            Outcome::Passed {
                compared,
                played,
                seeds,
                events,
                remarks,
            } => {
                report.findings = all(remarks);
                report.packets_compared = *compared;
                report.packets_played = *played;
                report.seeds = *seeds;
                report.events = *events;
            }
            Outcome::CodecOnly { reason, .. } => {
                report.result = Ending::CodecOnly;
                report.reason = Some(reason.clone());
            }
            Outcome::Unsupported { reason } => {
                report.result = Ending::Unsupported;
                report.reason = Some(reason.clone());
            }
            Outcome::NotUnderTest { reason } => {
                report.result = Ending::Skipped;
                report.reason = Some(reason.clone());
            }
            Outcome::Expected { row, findings } => {
                report.result = Ending::Known;
                report.deviation = Some(*row);
                report.findings = all(findings);
            }
            Outcome::Failed { findings, capture } => {
                report.result = Ending::Failed;
                let whole = |path| std::path::absolute(path).unwrap_or_default();
                report.capture = capture.as_ref().map(whole);
                report.cause = findings.first().map(Finding::cause);
                report.findings = all(findings);
            }
        }
        report
    }
}

/// Writes a path, if there is one, as text. Bytes that are not UTF-8 are replaced, because JSON has
/// no others.
fn as_text<'path, P, S: Serializer>(path: P, serializer: S) -> Result<S::Ok, S::Error>
where
    P: Into<Option<&'path PathBuf>>,
{
    path.into()
        .map(|path| path.to_string_lossy())
        .serialize(serializer)
}

/// The reason why a file is not a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, io::Error),
    /// The file is not JSON, or has other keys.
    #[error(
        "{0} is not a report of a run: {1}; `efa-conformance run --json FILE` writes such files"
    )]
    Foreign(PathBuf, serde_json::Error),
}

impl Report {
    /// The report of a run. `repeat` returns the command that repeats a case.
    pub fn of(
        under_test: Identity,
        run: RunReport,
        cases: &[Case],
        repeat: impl Fn(&Case) -> String,
    ) -> Self {
        let summary = Summary::of(cases);
        let pairs = pairs::of(cases);
        let cases = cases.iter().map(|case| CaseReport::of(case, repeat(case)));
        let cases: Vec<CaseReport> = cases.collect();
        Report {
            under_test,
            run,
            summary,
            sections: sections::of(&cases),
            pairs,
            cases,
        }
    }

    /// The failures of the run by their cause.
    pub fn causes(&self) -> Vec<FailureGroup<&CaseReport>> {
        let failed = self.cases.iter().filter(|case| case.has_failed());
        causes(failed, |case| case)
    }

    /// Reads a file of [`Report::write`].
    ///
    /// # Errors
    /// The file cannot be read, or is not a report.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let bytes = fs::read(path).map_err(|error| ReportError::Read(path.into(), error))?;
        serde_json::from_slice(&bytes).map_err(|error| ReportError::Foreign(path.into(), error))
    }

    /// Writes the report. Passed cases have no ladder, because theirs equals the recording's.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut report = self.clone();
        for case in &mut report.cases {
            if !matches!(case.result, Ending::Known | Ending::Failed) {
                case.ladder = Ladder::default();
            }
        }
        fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
    }
}
