//! The page and its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf, absolute};

use askama::Template;
use efa_core::rules::{RULES, Rule};

use super::drawing::Drawing;
use crate::Summary;
use crate::changes::Changes;
use crate::json::{CaseReport, Ending, FailureGroup, FindingReport, Report, causes};
use crate::pairs::{self, Matrix};

/// The results in the order of the legend, with their meanings.
const LEGEND: [(Ending, &str); 6] = [
    (Ending::Passed, "every packet and completion was right"),
    (Ending::Failed, "a statement does not hold"),
    (Ending::Known, "fails by a known fault of this release"),
    (
        Ending::Unsupported,
        "the device or the program cannot do it",
    ),
    (
        Ending::CodecOnly,
        "the packets were only parsed and checked",
    ),
    (Ending::Skipped, "nothing can take this endpoint's place"),
];

/// The display of a result.
struct ResultStyle {
    class: &'static str,
    sign: char,
    word: &'static str,
}

impl ResultStyle {
    fn of(ending: &Ending) -> ResultStyle {
        let (class, sign, word) = match ending {
            Ending::Passed => ("passed", '✓', "passed"),
            Ending::CodecOnly => ("other", '○', "codec only"),
            Ending::Unsupported => ("other", '–', "unsupported"),
            Ending::Skipped => ("other", '·', "skipped"),
            Ending::Known => ("known", '!', "known"),
            Ending::Failed => ("failed", '✗', "failed"),
        };
        ResultStyle { class, sign, word }
    }
}

/// A case of one of several reports.
struct Case<'r> {
    /// The index of its report.
    report: usize,
    case: &'r CaseReport,
    look: ResultStyle,
    drawing: Option<Drawing<'r>>,
    /// The path of its capture, relative to the page.
    capture: Option<String>,
}

impl<'r> Case<'r> {
    fn of(report: usize, case: &'r CaseReport, directory: &Path) -> Self {
        // Differences of a passed case are permitted, so nothing is marked.
        let marked: &[FindingReport] = match case.result {
            Ending::Failed | Ending::Known => &case.findings,
            _ => &[],
        };
        let capture = case.capture.as_ref();
        Case {
            report,
            case,
            look: ResultStyle::of(&case.result),
            drawing: Drawing::of(&case.ladder, marked, &case.role),
            capture: capture.map(|capture| relative(capture, directory)),
        }
    }

    fn anchor(&self) -> String {
        let Case { report, case, .. } = self;
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

    /// The rules that were broken, each once.
    fn broken(&self) -> Vec<&'static Rule> {
        let mut seen = BTreeSet::new();
        let findings = self.case.findings.iter();
        findings
            .filter(|_| matches!(self.case.result, Ending::Failed | Ending::Known))
            .filter_map(|finding| finding.statement.as_deref())
            .filter(|statement| seen.insert(*statement))
            .filter_map(|statement| RULES.iter().find(|rule| rule.statement == statement))
            .collect()
    }
}

/// A link from a page in `directory` to a path, with special characters escaped.
fn relative(path: &Path, directory: &Path) -> String {
    let common = path.components().zip(directory.components());
    let common = common.take_while(|(one, other)| one == other).count();
    let up = directory.components().skip(common).map(|_| "..".to_owned());
    let down = path.components().skip(common);
    let down = down.map(|part| part.as_os_str().to_string_lossy().into_owned());
    let link = up.chain(down).collect::<Vec<_>>().join("/");
    let is_plain = |c: char| c.is_alphanumeric() || "-_.~/".contains(c);
    link.chars()
        .map(|c| match is_plain(c) {
            true => c.to_string(),
            false => {
                let bytes = c.encode_utf8(&mut [0; 4]).bytes().collect::<Vec<_>>();
                bytes.iter().map(|byte| format!("%{byte:02X}")).collect()
            }
        })
        .collect()
}

/// The parts of Markdown, and whether each is `code`.
fn parts(markdown: &str) -> impl Iterator<Item = (bool, &str)> {
    let parts = markdown.split('`').enumerate();
    parts.map(|(index, part)| (index % 2 == 1, part))
}

/// The class of a cell of pairs, and its text.
fn cell(summary: &Option<&Summary>) -> (&'static str, String) {
    let class = match summary {
        Some(summary) if summary.failed > 0 => "failed",
        Some(summary) if summary.passed > 0 => "passed",
        _ => "other",
    };
    (class, pairs::cell(*summary))
}

/// The page for several runs.
#[derive(Template)]
#[template(path = "page.html", whitespace = "minimize")]
struct Page<'r> {
    reports: &'r [Report],
    /// The differences, if there are two runs.
    changes: Option<Changes<'r>>,
    columns: Vec<(usize, &'r str)>,
    /// The cases of a trace, by column.
    rows: Vec<(&'r str, Vec<Vec<&'r Case<'r>>>)>,
    failed: Vec<FailureGroup<&'r Case<'r>>>,
    rest: Vec<&'r Case<'r>>,
}

impl<'r> Page<'r> {
    fn of(reports: &'r [Report], cases: &'r [Case<'r>]) -> Self {
        let mut columns: Vec<(usize, &str)> = Vec::new();
        let mut rows: BTreeMap<&str, Vec<&Case<'_>>> = BTreeMap::new();
        for case in cases {
            let column = (case.report, case.case.backend.as_str());
            if !columns.contains(&column) {
                columns.push(column);
            }
            rows.entry(&case.case.trace).or_default().push(case);
        }
        let by_column = |cases: Vec<&'r Case<'r>>| {
            let is_in = |case: &&Case<'_>, column: &(usize, &str)| {
                (case.report, case.case.backend.as_str()) == *column
            };
            let cells = columns.iter().map(|column| {
                let cases = cases.iter().filter(|case| is_in(case, column));
                cases.copied().collect()
            });
            cells.collect()
        };
        let rows = rows.into_iter();
        let rows = rows
            .map(|(trace, cases)| (trace, by_column(cases)))
            .collect();
        let (failed, rest): (Vec<&Case<'_>>, Vec<&Case<'_>>) =
            cases.iter().partition(|case| case.case.has_failed());
        Page {
            reports,
            changes: match reports {
                [before, after] => Some(Changes::between(before, after)),
                _ => None,
            },
            columns,
            rows,
            failed: causes(failed, |case| case.case),
            rest,
        }
    }
}

/// Writes the page for several runs to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write(reports: &[Report], path: &Path) -> io::Result<()> {
    let directory = absolute(path)?.parent().map(PathBuf::from);
    let directory = directory.unwrap_or_default();
    let cases: Vec<Case<'_>> = reports
        .iter()
        .enumerate()
        .flat_map(|(report, of)| of.cases.iter().map(move |case| (report, case)))
        .map(|(report, case)| Case::of(report, case, &directory))
        .collect();
    let page = Page::of(reports, &cases).render();
    std::fs::write(path, page.map_err(io::Error::other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_are_linked_from_the_page() {
        let link = |path: &str, page: &str| relative(Path::new(path), Path::new(page));
        assert_eq!(link("/r/kept/a.pcapng", "/r"), "kept/a.pcapng");
        assert_eq!(
            link("/tmp/a b#1.pcapng", "/r/x"),
            "../../tmp/a%20b%231.pcapng"
        );
    }
}
