//! The results as one HTML page without anything else to load.

use std::fmt::Write as _;
use std::path::Path;

use super::{Case, Outcome, Results, Summary};
use crate::compare::Finding;

const STYLE: &str = "body{font:15px/1.4 system-ui,sans-serif;margin:2rem;max-width:75rem}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ccc;vertical-align:top}\
.passed{color:#17692a}.codec{color:#7a5b00}.failed{color:#a11}\
li{font-family:ui-monospace,monospace;font-size:13px}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn items(findings: &[Finding]) -> String {
    findings
        .iter()
        .map(|finding| format!("<li>{}</li>", escape(&finding.to_string())))
        .collect()
}

fn row(case: &Case) -> String {
    let (class, label, detail) = match &case.outcome {
        Outcome::Passed {
            compared,
            played,
            seeds,
            remarks,
        } => (
            "passed",
            "passed",
            format!(
                "{compared} packets compared, {played} played, {seeds} seeds<ul>{}</ul>",
                items(remarks)
            ),
        ),
        Outcome::CodecOnly { reason, packets } => (
            "codec",
            "codec only",
            format!("{}; {packets} packets", escape(reason)),
        ),
        Outcome::Unsupported { reason } => ("codec", "unsupported", escape(reason)),
        Outcome::NotUnderTest { reason } => ("codec", "skipped", escape(reason)),
        Outcome::Expected { row, findings } => (
            "codec",
            "known",
            format!(
                "row {row} of docs/deviations.md<ul>{}</ul>",
                items(findings)
            ),
        ),
        Outcome::Failed { findings, .. } => {
            ("failed", "failed", format!("<ul>{}</ul>", items(findings)))
        }
    };
    format!(
        "<tr><td>{}</td><td>{}</td><td>{} as {}</td><td class=\"{class}\">{label}</td>\
         <td>{detail}</td></tr>\n",
        escape(&case.trace),
        escape(&case.backend),
        escape(&case.dut),
        escape(&case.role)
    )
}

/// The page.
pub fn render(results: &Results) -> String {
    let cases = &results.cases;
    let mut page =
        String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let rows: Vec<String> = cases.iter().map(row).collect();
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "<title>EFA RDM conformance</title><style>{STYLE}</style></head><body>\n\
         <h1>EFA RDM conformance</h1>\n<p>Under test: {}</p>\n<p>{}</p>\n<table><thead><tr><th>Trace</th>\
         <th>Backend</th><th>Under test</th><th>Result</th><th>Details</th></tr></thead><tbody>\n\
         {}</tbody></table></body></html>\n",
        escape(&results.under_test.details()),
        Summary::of(cases),
        rows.concat()
    );
    page
}

/// Writes the page to `path`.
pub fn write(results: &Results, path: &Path) -> std::io::Result<()> {
    std::fs::write(path, render(results))
}
