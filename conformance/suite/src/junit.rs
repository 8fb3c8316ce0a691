//! JUnit XML, as CI systems read it.

use std::path::Path;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::{Case, Outcome, Results};

/// The name of the test suite that a case belongs to.
fn suite_of(case: &Case) -> String {
    match case.places.is_empty() {
        true => case.backend.clone(),
        false => format!("{}: {}", case.backend, case.whereabouts()),
    }
}

/// Writes a report: one test suite for each backend, and for each pair of places on other hosts. A
/// case that was not played is `skipped`, not a pass.
pub fn write(results: &Results, path: &Path) -> std::io::Result<()> {
    let cases = &results.cases;
    let mut report = Report::new("efa-conformance");
    let mut suites: Vec<String> = cases.iter().map(suite_of).collect();
    suites.sort_unstable();
    suites.dedup();
    for name in suites {
        let mut suite = TestSuite::new(&name);
        for (key, value) in results.under_test.properties() {
            suite.add_property((format!("under-test.{key}"), value.to_owned()));
        }
        for case in cases.iter().filter(|case| suite_of(case) == name) {
            let status = match &case.outcome {
                Outcome::Passed { .. } => TestCaseStatus::success(),
                Outcome::CodecOnly { reason, .. } => {
                    let mut status = TestCaseStatus::skipped();
                    status.set_message(format!("codec only: {reason}"));
                    status
                }
                Outcome::Unsupported { reason } => {
                    let mut status = TestCaseStatus::skipped();
                    status.set_message(format!("unsupported: {reason}"));
                    status
                }
                Outcome::NotUnderTest { reason } => {
                    let mut status = TestCaseStatus::skipped();
                    status.set_message(reason.clone());
                    status
                }
                Outcome::Expected { row, findings } => {
                    let mut status = TestCaseStatus::skipped();
                    let what = findings.first().map(ToString::to_string);
                    status.set_message(format!(
                        "known, row {row} of docs/deviations.md: {}",
                        what.unwrap_or_default()
                    ));
                    status
                }
                Outcome::Failed { findings, capture } => {
                    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                    let mut texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
                    status.set_message(texts.first().cloned().unwrap_or_default());
                    status.set_type(findings.first().map_or_else(String::new, |finding| {
                        finding.statement().unwrap_or("unfit").to_owned()
                    }));
                    texts.extend(
                        capture
                            .iter()
                            .map(|path| format!("captured in {}", path.display())),
                    );
                    status.set_description(texts.join("\n"));
                    status
                }
            };
            let name = format!("{} ({} as {})", case.trace, case.dut, case.role);
            let mut test = TestCase::new(name, status);
            test.set_classname(format!("efa-conformance.{}", case.backend));
            test.set_time(case.duration);
            suite.add_test_case(test);
        }
        report.add_test_suite(suite);
    }
    let text = report.to_string().map_err(std::io::Error::other)?;
    std::fs::write(path, text)
}
