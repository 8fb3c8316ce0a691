//! The results as JSON, for other programs and for pages that show several runs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use efa_play::drive::Identity;
use efa_replay::compare::Finding;
use serde::{Deserialize, Serialize};

use super::ladder::Ladder;
use super::pairs::{self, PairReport};
use super::{Case, Outcome, Results, Summary};

/// The results of a run as they are written; docs/json.md describes them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What was under test.
    pub under_test: Identity,
    /// The number of cases by their result.
    pub summary: Summary,
    /// The results by the pair of places, of cases that were played on other hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairReport>,
    /// The result of each case.
    pub cases: Vec<CaseReport>,
}

/// How a case ended, in a word.
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
    /// The trace's name.
    pub trace: String,
    /// The backend's name.
    pub backend: String,
    /// What was under test, such as `core`.
    pub dut: String,
    /// The endpoint whose place the implementation under test took.
    pub role: String,
    /// Where each endpoint was played, if that was not on the suite's host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<String, String>,
    /// How it ended.
    pub result: Ending,
    /// Why nothing was tested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What failures of the same cause have in common; of failed cases only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The reasons of a failure, and legal differences.
    pub findings: Vec<FindingReport>,
    /// The row of docs/deviations.md that says why the case is known to fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviation: Option<u32>,
    /// The capture of a failed case.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    /// How long the case took.
    pub seconds: f64,
    /// The recorded packets beside the actual ones.
    #[serde(default, skip_serializing_if = "Ladder::is_empty")]
    pub ladder: Ladder,
}

/// A finding.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FindingReport {
    /// How much it weighs: `error`, `warning` or `note`.
    pub severity: String,
    /// Such as `v4/3.2/cts-window`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// The number of the packet in the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<u64>,
    /// The packet's type.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub packet_type: String,
    /// The field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// The whole finding as text.
    pub text: String,
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

impl CaseReport {
    fn of(case: &Case) -> Self {
        let mut report = CaseReport {
            trace: case.trace.clone(),
            backend: case.backend.clone(),
            dut: case.dut.clone(),
            role: case.role.clone(),
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
                report.capture.clone_from(capture);
                report.cause = findings.first().map(Finding::cause);
                report.findings = all(findings);
            }
        }
        report
    }
}

/// Why a file is not a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, io::Error),
    /// The file is not a report.
    #[error(
        "{0} is not a report of a run: {1}; `efa-conformance run --json FILE` writes such files"
    )]
    Foreign(PathBuf, serde_json::Error),
}

impl Report {
    /// The report of a run.
    pub fn of(results: &Results) -> Self {
        Report {
            under_test: results.under_test.clone(),
            summary: Summary::of(&results.cases),
            pairs: pairs::of(&results.cases),
            cases: results.cases.iter().map(CaseReport::of).collect(),
        }
    }

    /// Reads a file of [`Report::write`].
    ///
    /// # Errors
    /// The file cannot be read, or is not a report.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let bytes = fs::read(path).map_err(|error| ReportError::Read(path.into(), error))?;
        serde_json::from_slice(&bytes).map_err(|error| ReportError::Foreign(path.into(), error))
    }

    /// Writes the report. Passed cases have no ladder, since theirs is the recording's.
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
