//! The results of a run, counted and by cause.

use std::fmt;

use efa_play::drive::Identity;
use serde::{Deserialize, Serialize};

use crate::{Case, Outcome};

/// The results of a run, for reports.
#[derive(Clone, Debug)]
pub struct Results {
    /// What was under test.
    pub under_test: Identity,
    /// The cases.
    pub cases: Vec<Case>,
}

/// Failures of the same cause.
#[derive(Clone, Debug)]
pub struct Cause<'a> {
    /// The common cause.
    pub text: String,
    /// The cases, each once.
    pub cases: Vec<&'a Case>,
}

/// The failures of a run by their cause, the most frequent first. The cause of a case is its first
/// finding, because the others often follow from it.
pub fn causes(cases: &[Case]) -> Vec<Cause<'_>> {
    let mut causes: Vec<Cause<'_>> = Vec::new();
    for case in cases {
        let Outcome::Failed { findings, .. } = &case.outcome else {
            continue;
        };
        let Some(first) = findings.first() else {
            continue;
        };
        let text = first.cause();
        match causes.iter_mut().find(|cause| cause.text == text) {
            Some(cause) => cause.cases.push(case),
            None => causes.push(Cause {
                text,
                cases: vec![case],
            }),
        }
    }
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.cases.len()));
    causes
}

/// Counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Cases in which everything went as recorded.
    pub passed: usize,
    /// Cases whose packets were only parsed and checked.
    pub codec_only: usize,
    /// Endpoints in whose place nothing was tested.
    #[serde(rename = "skipped")]
    pub not_under_test: usize,
    /// Cases about something that the endpoint under test or its device lacks.
    pub unsupported: usize,
    /// Cases that the release under test is known to fail.
    pub known: usize,
    /// Cases that failed.
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
            Outcome::Expected { .. } => self.known += 1,
            Outcome::Failed { .. } => self.failed += 1,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} codec only, {} skipped, {} unsupported, {} known, {} failed",
            self.passed,
            self.codec_only,
            self.not_under_test,
            self.unsupported,
            self.known,
            self.failed
        )
    }
}
