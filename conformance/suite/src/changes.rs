//! Differences between two runs.

use std::fmt;

use super::json::{CaseReport, Ending, Report};

/// The cases whose result differs. Cases with equal trace, backend, endpoint and places are
/// compared.
#[derive(Clone, Debug, Default)]
pub struct Changes<'r> {
    /// Cases that fail only in the second run.
    pub new_failures: Vec<&'r CaseReport>,
    /// Cases that failed in the first run and pass in the second.
    pub mended: Vec<&'r CaseReport>,
    /// Cases that failed in the first run and are missing, or were not played, in the second.
    pub not_played: Vec<&'r CaseReport>,
}

impl<'r> Changes<'r> {
    /// The differences of the second run.
    pub fn between(before: &'r Report, after: &'r Report) -> Self {
        let find = |report: &'r Report, case: &CaseReport| {
            let mut cases = report.cases.iter();
            cases.find(|other| other.identity() == case.identity())
        };
        let mut changes = Changes::default();
        for case in after.cases.iter().filter(|case| case.has_failed()) {
            if find(before, case).is_none_or(|before| !before.has_failed()) {
                changes.new_failures.push(case);
            }
        }
        for case in before.cases.iter().filter(|case| case.has_failed()) {
            match find(after, case) {
                Some(after) if after.has_failed() => {}
                Some(after) if after.result == Ending::Passed => changes.mended.push(after),
                _ => changes.not_played.push(case),
            }
        }
        changes
    }
}

impl fmt::Display for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} new failures, {} mended, {} failed before and were not played again",
            self.new_failures.len(),
            self.mended.len(),
            self.not_played.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Summary;
    use crate::json::{RunReport, causes};
    use crate::sections;

    fn case(trace: &str, result: &str, finding: &str) -> CaseReport {
        let json = json!({
            "trace": trace, "backend": "emu", "dut": "core", "role": "a", "result": result,
            "sections": ["3.2"], "subprotocols": ["Eager message"], "cause": finding,
            "findings": [{"severity": "error", "statement": finding, "text": format!("{finding} 7")}],
            "packets_compared": 1, "packets_played": 1, "seeds": 0, "seconds": 1.0,
        });
        serde_json::from_value(json).unwrap()
    }

    fn report(cases: &[(&str, &str)]) -> Report {
        let under_test = json!({"name": "core", "release": null, "path": null, "commit": null});
        let cases = cases.iter().map(|(name, result)| case(name, result, "x"));
        Report {
            under_test: serde_json::from_value(under_test).unwrap(),
            run: RunReport::default(),
            summary: Summary::default(),
            sections: Vec::new(),
            pairs: Vec::new(),
            cases: cases.collect(),
        }
    }

    #[test]
    fn new_and_mended_failures_are_distinguished() {
        let before = report(&[
            ("stays", "failed"),
            ("mended", "failed"),
            ("gone", "failed"),
            ("unplayed", "failed"),
            ("breaks", "passed"),
            ("fine", "passed"),
        ]);
        let after = report(&[
            ("stays", "failed"),
            ("mended", "passed"),
            ("unplayed", "unsupported"),
            ("breaks", "failed"),
            ("new", "failed"),
            ("fine", "passed"),
        ]);
        let changes = Changes::between(&before, &after);
        let names = |cases: &[&CaseReport]| cases.iter().map(|it| it.trace.clone()).collect();
        let [new, mended, not_played]: [Vec<String>; 3] = [
            names(&changes.new_failures),
            names(&changes.mended),
            names(&changes.not_played),
        ];
        assert_eq!(new, ["breaks", "new"]);
        assert_eq!(mended, ["mended"]);
        assert_eq!(not_played, ["gone", "unplayed"]);
    }

    #[test]
    fn headings_are_the_first_case_and_their_number() {
        let cases = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x")];
        let cases = cases.map(|(name, finding)| case(name, "failed", finding));
        let headings: Vec<String> = causes(&cases, |case| case)
            .iter()
            .map(|cause| cause.heading.clone() + &cause.like_it())
            .collect();
        assert_eq!(headings, ["x 7 and 2 like it", "y 7"]);
    }

    #[test]
    fn sections_count_cases_by_subprotocol_and_statement() {
        let cases = [
            case("a", "passed", "v4/3.2/cts-window"),
            case("b", "failed", "v4/3.2/cts-window"),
            case("c", "failed", "v4/4.1/eor-after-read"),
            case("d", "skipped", "v4/3.2/cts-window"),
        ];
        let sections = sections::of(&cases);
        let of = |section: &str| sections.iter().find(|it| it.section == section);
        let messages = of("3.2").unwrap();
        assert_eq!((messages.passed, messages.total), (1, 3));
        let eager = &messages.subprotocols[0];
        assert_eq!(
            (eager.name.as_str(), eager.passed, eager.total),
            ("Eager message", 1, 3)
        );
        let mut statements = messages.statements.iter();
        let window = statements
            .find(|it| it.name == "v4/3.2/cts-window")
            .unwrap();
        assert_eq!((window.passed, window.total), (2, 3));
        // The case broke a statement of a section that its trace does not cover.
        let reads = of("4.1").unwrap();
        assert_eq!((reads.passed, reads.total), (0, 1));
        assert_eq!(of("4.4"), None);
    }
}
