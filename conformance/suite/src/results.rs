//! Counts of the results of a run.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Case, Outcome};

/// Counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Cases whose run agreed with the recording.
    pub passed: usize,
    /// Cases whose packets were only parsed and checked.
    pub codec_only: usize,
    /// Endpoints whose place was not tested.
    #[serde(rename = "skipped")]
    pub not_under_test: usize,
    /// Cases that need a feature which the endpoint under test or its device lacks.
    pub unsupported: usize,
    /// Cases that the release under test is known to fail.
    pub known: usize,
    /// Cases that found an error.
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
