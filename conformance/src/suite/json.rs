//! The results as JSON, for programs.

use std::path::Path;

use serde::Serialize;

use super::{Outcome, Results, Summary};
use crate::compare::{Finding, Severity};
use crate::drive::Identity;

#[derive(Serialize)]
struct Report<'a> {
    under_test: &'a Identity,
    summary: Counts,
    cases: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Counts {
    passed: usize,
    unsupported: usize,
    codec_only: usize,
    skipped: usize,
    known: usize,
    failed: usize,
}

#[derive(Serialize)]
struct Entry<'a> {
    trace: &'a str,
    backend: &'a str,
    dut: &'a str,
    role: &'a str,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    findings: Vec<FindingEntry<'a>>,
    /// The row of docs/deviations.md that says why the case is known to fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    deviation: Option<u32>,
    /// What was on the wire of a failed case.
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<&'a Path>,
    packets_compared: usize,
    packets_played: usize,
    seeds: usize,
    seconds: f64,
}

#[derive(Serialize)]
struct FindingEntry<'a> {
    severity: &'static str,
    /// Such as `v4/3.2/table-3.6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    statement: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packet: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    packet_type: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    field: &'a str,
    text: String,
}

impl<'a> FindingEntry<'a> {
    fn of(finding: &'a Finding) -> Self {
        FindingEntry {
            severity: match finding.severity {
                Severity::Remark => "remark",
                Severity::Should => "should",
                Severity::Must => "must",
            },
            statement: finding.statement(),
            packet: finding.packet,
            packet_type: &finding.packet_type,
            field: &finding.field,
            text: finding.to_string(),
        }
    }
}

/// Writes results to `path`.
pub fn write(results: &Results, path: &Path) -> std::io::Result<()> {
    let cases = &results.cases;
    let summary = Summary::of(cases);
    let entries = cases.iter().map(|case| {
        let mut entry = Entry {
            trace: &case.trace,
            backend: &case.backend,
            dut: &case.dut,
            role: &case.role,
            result: "",
            reason: None,
            findings: Vec::new(),
            deviation: None,
            capture: None,
            packets_compared: 0,
            packets_played: 0,
            seeds: 0,
            seconds: case.duration.as_secs_f64(),
        };
        match &case.outcome {
            Outcome::Passed {
                compared,
                played,
                seeds,
                remarks,
            } => {
                entry.result = "passed";
                entry.findings = remarks.iter().map(FindingEntry::of).collect();
                entry.packets_compared = *compared;
                entry.packets_played = *played;
                entry.seeds = *seeds;
            }
            Outcome::CodecOnly { reason, .. } => {
                entry.result = "codec-only";
                entry.reason = Some(reason);
            }
            Outcome::Unsupported { reason } => {
                entry.result = "unsupported";
                entry.reason = Some(reason);
            }
            Outcome::NotUnderTest { reason } => {
                entry.result = "skipped";
                entry.reason = Some(reason);
            }
            Outcome::Expected { row, findings } => {
                entry.result = "known";
                entry.deviation = Some(*row);
                entry.findings = findings.iter().map(FindingEntry::of).collect();
            }
            Outcome::Failed { findings, capture } => {
                entry.result = "failed";
                entry.capture = capture.as_deref();
                entry.findings = findings.iter().map(FindingEntry::of).collect();
            }
        }
        entry
    });
    let report = Report {
        under_test: &results.under_test,
        summary: Counts {
            passed: summary.passed,
            unsupported: summary.unsupported,
            codec_only: summary.codec_only,
            skipped: summary.not_under_test,
            known: summary.known,
            failed: summary.failed,
        },
        cases: entries.collect(),
    };
    let text = serde_json::to_string_pretty(&report)?;
    std::fs::write(path, text + "\n")
}
