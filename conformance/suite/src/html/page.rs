//! The page and its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use efa_core::rules::RULES;

use super::drawing;
use super::escape::escape;
use crate::json::{CaseReport, Ending, FindingReport, Report};
use crate::pairs::{self, Matrix};

const STYLE: &str = include_str!("style.css");

/// The class in the style, the sign in the matrix, and the word of an ending.
fn look(ending: Ending) -> (&'static str, char, &'static str) {
    match ending {
        Ending::Passed => ("passed", '✓', "passed"),
        Ending::CodecOnly => ("other", '○', "codec only"),
        Ending::Unsupported => ("other", '–', "unsupported"),
        Ending::Skipped => ("other", '·', "skipped"),
        Ending::Known => ("known", '!', "known"),
        Ending::Failed => ("failed", '✗', "failed"),
    }
}

/// A case of one of several reports.
#[derive(Clone, Copy)]
struct Case<'r> {
    /// The index of its report.
    report: usize,
    case: &'r CaseReport,
}

impl Case<'_> {
    /// The case's anchor for links.
    fn anchor(self) -> String {
        let Case { report, case } = self;
        let mut name = format!(
            "{report}-{}-{}-{}-{}",
            case.trace, case.dut, case.backend, case.role
        );
        for place in case.places.values() {
            name += &format!("-{place}");
        }
        let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        name.chars().map(safe).collect()
    }

    /// The case with its ladder.
    fn section(self, is_open: bool) -> String {
        let case = self.case;
        let (class, sign, word) = look(case.result);
        let open = if is_open { " open" } else { "" };
        // Differences of a passed case are legal, so nothing is marked.
        let marked: &[FindingReport] = match case.result {
            Ending::Failed | Ending::Known => &case.findings,
            _ => &[],
        };
        format!(
            "<details{open}><summary><span class=\"{class}\">{sign} {word}</span> {} on {}, {} as {}\
             </summary><div id=\"{}\">{}{}</div></details>\n",
            escape(&case.trace),
            escape(&case.backend),
            escape(&case.dut),
            escape(&whereabouts(case)),
            // A link to an anchor inside opens the element.
            self.anchor(),
            details(case),
            drawing::draw(&case.ladder, marked)
        )
    }
}

/// The endpoint whose place was taken, and where the endpoints were if that was on other hosts.
fn whereabouts(case: &CaseReport) -> String {
    let places = case.places.iter();
    places.fold(case.role.clone(), |text, (endpoint, place)| {
        format!("{text}, {endpoint} at {place}")
    })
}

/// The results by the pair of places, as a table; nothing if all cases were played on the suite's
/// host.
fn pairs(reports: &[Report]) -> String {
    let mut page = String::new();
    for report in reports.iter().filter(|report| !report.pairs.is_empty()) {
        let matrix = Matrix::of(&report.pairs);
        // Writing to a String cannot fail.
        let _ = write!(
            page,
            "<h2>Pairs of hosts: {}</h2>\n<table><thead><tr><th scope=\"col\"></th>",
            escape(&report.under_test.to_string())
        );
        for place in &matrix.places {
            let _ = write!(page, "<th scope=\"col\">{}</th>", escape(place));
        }
        page.push_str("</tr></thead><tbody>\n");
        for (row, cells) in matrix.rows() {
            let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escape(row));
            for cell in cells {
                let class = match cell {
                    None => "other",
                    Some(summary) if summary.failed > 0 => "failed",
                    Some(summary) if summary.passed > 0 => "passed",
                    Some(_) => "other",
                };
                let text = pairs::cell(cell);
                let _ = write!(page, "<td class=\"{class}\">{text}</td>");
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody></table>\n");
    }
    page
}

/// The details of a case.
fn details(case: &CaseReport) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match case.result {
        Ending::Passed if case.places.is_empty() => write!(
            text,
            "<p>{} packets compared, {} played{}.</p>",
            case.packets_compared,
            case.packets_played,
            match case.seeds {
                0 => String::new(),
                seeds => format!(", same outcome under {seeds} seeds"),
            }
        ),
        Ending::Passed if case.packets_compared > 0 => {
            write!(text, "<p>{} packets judged.</p>", case.packets_compared)
        }
        _ => Ok(()),
    };
    if let Some(reason) = &case.reason {
        let _ = write!(text, "<p>{}</p>", escape(reason));
    }
    if let Some(row) = case.deviation {
        let _ = write!(text, "<p>Row {row} of docs/deviations.md.</p>");
    }
    if !case.findings.is_empty() {
        text.push_str("<ul>");
        for finding in &case.findings {
            let said = escape(&finding.text);
            let _ = write!(text, "<li>{}: {said}</li>", escape(&finding.severity));
        }
        text.push_str("</ul>");
    }
    if matches!(case.result, Ending::Failed | Ending::Known) {
        text.push_str(&statements(&case.findings));
    }
    if let Some(capture) = &case.capture {
        let path = capture.display().to_string();
        let _ = write!(text, "<p>Captured in {}</p>", escape(&path));
    }
    text
}

/// Failed cases by their cause, the most frequent first.
fn causes<'r>(failed: Vec<&Case<'r>>) -> Vec<(&'r str, Vec<Case<'r>>)> {
    let mut causes: Vec<(&str, Vec<Case<'_>>)> = Vec::new();
    for case in failed {
        let cause = case.case.cause.as_deref().unwrap_or("unknown");
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, cases)) => cases.push(*case),
            None => causes.push((cause, vec![*case])),
        }
    }
    causes.sort_by_key(|(_, cases)| std::cmp::Reverse(cases.len()));
    causes
}

/// What the statements say that do not hold, each once.
fn statements(findings: &[FindingReport]) -> String {
    let mut broken: Vec<&str> = findings
        .iter()
        .filter_map(|finding| finding.statement.as_deref())
        .collect();
    let mut seen = BTreeSet::new();
    broken.retain(|statement| seen.insert(*statement));
    let rules = broken
        .into_iter()
        .filter_map(|statement| RULES.iter().find(|rule| rule.statement == statement));
    rules
        .map(|rule| {
            format!(
                "<p class=\"rule\"><code>{}</code> ({}): {}</p>",
                escape(rule.statement),
                with_code(rule.source),
                with_code(rule.meaning)
            )
        })
        .collect()
}

/// Markdown's `code` as HTML.
fn with_code(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in text.split('`').enumerate() {
        let part = escape(part);
        match index % 2 {
            0 => out += &part,
            _ => out += &format!("<code>{part}</code>"),
        }
    }
    out
}

/// A row for each trace, a column for each implementation and backend, a sign for each endpoint.
fn matrix(reports: &[Report], cases: &[Case<'_>]) -> String {
    let column = |case: &Case<'_>| (case.report, case.case.backend.clone());
    let mut columns: Vec<(usize, String)> = Vec::new();
    let mut rows: BTreeMap<&str, Vec<&Case<'_>>> = BTreeMap::new();
    for case in cases {
        if !columns.contains(&column(case)) {
            columns.push(column(case));
        }
        rows.entry(&case.case.trace).or_default().push(case);
    }
    let mut table = String::from("<table><thead><tr><th scope=\"col\">Trace</th>");
    for (report, backend) in &columns {
        let _ = write!(
            table,
            "<th scope=\"col\">{}<br>on {}</th>",
            escape(&reports[*report].under_test.to_string()),
            escape(backend)
        );
    }
    table.push_str("</tr></thead><tbody>\n");
    for (trace, cases) in rows {
        let _ = write!(table, "<tr><th scope=\"row\">{}</th>", escape(trace));
        for wanted in &columns {
            table.push_str("<td>");
            for case in cases.iter().filter(|case| column(case) == *wanted) {
                let (class, sign, word) = look(case.case.result);
                let role = escape(&whereabouts(case.case));
                let _ = write!(
                    table,
                    "<a class=\"{class}\" href=\"#{}\" title=\"in the place of {role}: {word}\">\
                     {sign} {role}</a> ",
                    case.anchor(),
                );
            }
            table.push_str("</td>");
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody></table>\n");
    table
}

/// The page for several runs.
pub fn render(reports: &[Report]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>EFA RDM conformance</title><style>{STYLE}</style></head><body>\n{}\
         <h1>EFA RDM conformance</h1>\n",
        drawing::ARROWHEAD
    );
    for report in reports {
        let _ = writeln!(
            page,
            "<p>Under test: {}<br>{}</p>",
            escape(&report.under_test.details()),
            report.summary
        );
    }
    page.push_str(&pairs(reports));
    let cases: Vec<Case<'_>> = reports
        .iter()
        .enumerate()
        .flat_map(|(report, of)| of.cases.iter().map(move |case| Case { report, case }))
        .collect();
    let is_failed = |case: &&Case<'_>| case.case.result == Ending::Failed;
    let (failed, rest): (Vec<&Case<'_>>, Vec<&Case<'_>>) = cases.iter().partition(is_failed);
    if !failed.is_empty() {
        page.push_str("<h2>Failed</h2>\n");
        page.extend(causes(failed).into_iter().map(|(cause, cases)| {
            let heading = format!("<h3>{} of: {}</h3>\n", cases.len(), escape(cause));
            // The others of its cause look alike.
            let sections = cases.iter().enumerate();
            heading
                + &sections
                    .map(|(nth, case)| case.section(nth == 0))
                    .collect::<String>()
        }));
    }
    page.push_str("<h2>Cases by implementation</h2>\n");
    page.push_str(&matrix(reports, &cases));
    page.push_str("<h2>The other cases</h2>\n");
    page.extend(rest.into_iter().map(|case| case.section(false)));
    page.push_str("</body></html>\n");
    page
}

/// Writes the page for several runs to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write(reports: &[Report], path: &Path) -> std::io::Result<()> {
    std::fs::write(path, render(reports))
}
