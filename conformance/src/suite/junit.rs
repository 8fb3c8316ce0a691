//! JUnit XML, as CI systems read it.

use std::path::Path;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::{Outcome, Results};

/// Writes a report: one test suite for each backend. A case that was not played is `skipped`, not a pass.
pub fn write(results: &Results, path: &Path) -> std::io::Result<()> {
    let cases = &results.cases;
    let mut report = Report::new("efa-conformance");
    let mut backends: Vec<&str> = cases.iter().map(|case| case.backend.as_str()).collect();
    backends.sort_unstable();
    backends.dedup();
    for backend in backends {
        let mut suite = TestSuite::new(backend);
        for (key, value) in results.under_test.properties() {
            suite.add_property((format!("under-test.{key}"), value.to_owned()));
        }
        for case in cases.iter().filter(|case| case.backend == backend) {
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
            test.set_classname(format!("efa-conformance.{backend}"));
            test.set_time(case.duration);
            suite.add_test_case(test);
        }
        report.add_test_suite(suite);
    }
    let text = report.to_string().map_err(std::io::Error::other)?;
    std::fs::write(path, text)
}
