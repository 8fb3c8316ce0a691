//! One trace with one endpoint under test, and its result.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use efa_replay::compare::Finding;
use serde::{Deserialize, Serialize};

use crate::ladder::Ladder;

/// The result of a case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The run agreed with the recording.
    Passed {
        /// Packets of the endpoint under test that were compared.
        compared: usize,
        /// Packets that the scripted endpoints sent.
        played: usize,
        /// The number of seeds under which the outcome was the same.
        seeds: usize,
        /// The number of successful runs with one event changed.
        events: usize,
        /// Legal differences from the recording.
        remarks: Vec<Finding>,
    },
    /// The endpoint under test or its device lacks a feature that the trace needs.
    Unsupported {
        /// The missing part.
        reason: String,
    },
    /// The trace cannot be played: its packets were only parsed, written again and checked against
    /// the rules.
    CodecOnly {
        /// Why it cannot be played.
        reason: String,
        /// The number of packets that were checked.
        packets: usize,
    },
    /// The scenario states that no other implementation can replace this endpoint.
    NotUnderTest {
        /// The reason that the scenario gives.
        reason: String,
    },
    /// The release under test is known to fail the case because of a fault of that release.
    Expected {
        /// The row of docs/deviations.md with the reason and the evidence.
        row: u32,
        /// What differs because of the fault.
        findings: Vec<Finding>,
    },
    /// A statement of the protocol or of the scenario does not hold.
    Failed {
        /// What does not hold, and the legal differences.
        findings: Vec<Finding>,
        /// The capture of the failed run, if one was written.
        capture: Option<PathBuf>,
    },
}

/// One trace, on one backend, with one endpoint under test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub(crate) trace: String,
    /// The file of the capture, or of the scenario if its packets are written by hand.
    pub path: PathBuf,
    /// The name of the backend, such as `emu`.
    pub backend: String,
    /// The implementation under test, such as `core`.
    pub dut: String,
    /// The endpoint that the implementation under test replaces; `all` if it replaces all of them,
    /// or if the trace was not played.
    pub role: String,
    /// The sections of the protocol document that the trace is about.
    pub sections: Vec<String>,
    /// The subprotocols of the document's table 1.1 that are recorded in the trace.
    pub subprotocols: Vec<String>,
    /// The host of each endpoint, if it was not this one.
    pub places: BTreeMap<String, String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The recorded messages and the actual ones; empty unless [`crate::Options::ladders`] requests
    /// them.
    pub(crate) ladder: Ladder,
    pub(crate) duration: Duration,
}

impl Case {
    /// Returns whether the case failed.
    pub fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed { .. })
    }

    /// `TRACE BACKEND ROLE`.
    pub fn name(&self) -> String {
        format!("{} {} {}", self.trace, self.backend, self.role)
    }

    /// The hosts of the endpoints, as in `a at node0, b at node1`; empty on this host.
    pub fn whereabouts(&self) -> String {
        let places = self.places.iter();
        let places: Vec<String> = places
            .map(|(endpoint, place)| format!("{endpoint} at {place}"))
            .collect();
        places.join(", ")
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = format!(
            "{:<32} {:<4} {} as {}",
            self.trace, self.backend, self.dut, self.role
        );
        if !self.places.is_empty() {
            name += &format!(", {}", self.whereabouts());
        }
        match &self.outcome {
            Outcome::Passed {
                compared,
                played,
                seeds,
                events,
                remarks,
            } => {
                match self.places.is_empty() {
                    true => write!(
                        f,
                        "PASS  {name}: {compared} packets compared, {played} played"
                    )?,
                    false if *compared == 0 => write!(f, "PASS  {name}")?,
                    false => write!(f, "PASS  {name}: {compared} packets judged")?,
                }
                if *seeds > 0 {
                    write!(f, ", same outcome under {seeds} seeds")?;
                }
                if *events > 0 {
                    write!(f, ", right with one event changed in {events} runs")?;
                }
                if !remarks.is_empty() {
                    write!(f, ", {} remarks", remarks.len())?;
                }
                Ok(())
            }
            Outcome::CodecOnly { reason, packets } => write!(
                f,
                "CODEC {name}: codec only: {reason}; {packets} packets parsed, written again and \
                 checked"
            ),
            Outcome::Unsupported { reason } => write!(f, "UNSUP {name}: unsupported: {reason}"),
            Outcome::NotUnderTest { reason } => write!(f, "SKIP  {name}: {reason}"),
            Outcome::Expected { row, findings } => {
                write!(f, "KNOWN {name}: row {row} of docs/deviations.md")?;
                match findings.first() {
                    Some(finding) => write!(f, ": {finding}"),
                    None => Ok(()),
                }
            }
            Outcome::Failed { findings, capture } => {
                write!(f, "FAIL  {name}")?;
                for finding in findings {
                    write!(f, "\n      {finding}")?;
                }
                if let Some(capture) = capture {
                    write!(f, "\n      captured in {}", capture.display())?;
                }
                Ok(())
            }
        }
    }
}

/// The results of a trace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TraceResult {
    /// One for each backend and endpoint.
    pub cases: Vec<Case>,
    /// Reasons why cases are missing, in the trace or in the environment.
    pub unfit: Vec<String>,
}

impl TraceResult {
    pub(crate) fn unfit(problem: String) -> TraceResult {
        TraceResult {
            cases: Vec::new(),
            unfit: vec![problem],
        }
    }
}

impl From<Case> for TraceResult {
    fn from(case: Case) -> TraceResult {
        TraceResult {
            cases: vec![case],
            unfit: Vec::new(),
        }
    }
}
