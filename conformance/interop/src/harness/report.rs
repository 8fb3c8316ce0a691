//! The table as JUnit XML and JSON.

use std::path::Path;

use efa_suite::junit::{JUnit, Suite, Test, TestResult};
use serde_json::json;

use super::cell::{Outcome, Row, Summary};
use super::not_measured::NotMeasured;

/// Writes JUnit XML: one test suite for each group. A known fault of stock software is `skipped`,
/// not a pass.
pub fn junit(rows: &[Row], path: &Path) -> std::io::Result<()> {
    let groups = rows.chunk_by(|a, b| a.group == b.group && a.places == b.places);
    let suites = groups.map(|group| {
        let tests = group.iter().map(|row| {
            let text = row.outcome.text();
            let message = text.lines().next().unwrap_or_default().to_owned();
            let result = match &row.outcome {
                Outcome::Passed { .. } => TestResult::Passed,
                Outcome::NotMeasured(NotMeasured::Failed(_)) => TestResult::Failed {
                    message,
                    kind: "failed".into(),
                    text: text.to_owned(),
                },
                Outcome::NotMeasured(NotMeasured::Skipped(_) | NotMeasured::Known { .. }) => {
                    TestResult::Skipped(message)
                }
            };
            Test {
                name: row.name.clone(),
                class: format!("efa-conformance.interop.{}", row.group),
                seconds: row.duration.as_secs_f64(),
                output: match result {
                    TestResult::Failed { .. } => String::new(),
                    _ => text.to_owned(),
                },
                result,
            }
        });
        Suite {
            name: format!("{}{}", group[0].where_it_ran(), group[0].group),
            tests: tests.collect(),
        }
    });
    let file = JUnit {
        name: "efa-conformance interop".into(),
        timestamp: String::new(),
        host: String::new(),
        properties: Vec::new(),
        suites: suites.collect(),
    };
    file.write(path)
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
