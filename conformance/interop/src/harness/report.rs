//! The table as JUnit XML and JSON.

use std::path::Path;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use serde_json::json;

use super::cell::{Outcome, Row, Summary};
use super::unmet::Unmet;

/// Writes JUnit XML: one test suite for each group. A known fault of stock software is `skipped`,
/// not a pass.
pub fn junit(rows: &[Row], path: &Path) -> std::io::Result<()> {
    let mut report = Report::new("efa-conformance interop");
    for group in rows.chunk_by(|a, b| a.group == b.group && a.places == b.places) {
        let name = format!("{}{}", group[0].where_it_ran(), group[0].group);
        let mut suite = TestSuite::new(name);
        for row in group {
            let text = row.outcome.text();
            let first = text.lines().next().unwrap_or_default().to_owned();
            let mut status = match &row.outcome {
                Outcome::Passed { .. } => TestCaseStatus::success(),
                Outcome::Unmet(Unmet::Failed(_)) => {
                    TestCaseStatus::non_success(NonSuccessKind::Failure)
                }
                Outcome::Unmet(Unmet::Skipped(_) | Unmet::Known { .. }) => {
                    TestCaseStatus::skipped()
                }
            };
            if matches!(row.outcome, Outcome::Unmet(_)) {
                status.set_message(first);
                status.set_description(text);
            }
            let mut test = TestCase::new(&row.name, status);
            test.set_classname(format!("efa-conformance.interop.{}", row.group));
            test.set_time(row.duration);
            if matches!(row.outcome, Outcome::Passed { .. }) {
                test.set_system_out(text);
            }
            suite.add_test_case(test);
        }
        report.add_test_suite(suite);
    }
    let text = report.to_string().map_err(std::io::Error::other)?;
    std::fs::write(path, text)
}

/// Writes JSON.
pub fn json(rows: &[Row], path: &Path) -> std::io::Result<()> {
    let summary = Summary::of(rows);
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "group": row.group,
                "cell": row.name,
                "places": row.places,
                "result": row.outcome.word().to_lowercase(),
                "text": row.outcome.text(),
                "capture": row.outcome.capture(),
                "seconds": row.duration.as_secs_f64(),
            })
        })
        .collect();
    let report = json!({
        "summary": {
            "passed": summary.passed,
            "known": summary.known,
            "skipped": summary.skipped,
            "failed": summary.failed,
        },
        "cells": cells,
    });
    let text = serde_json::to_string_pretty(&report)?;
    std::fs::write(path, text + "\n")
}
