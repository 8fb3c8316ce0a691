//! The results of a run as a tree: by section of the protocol document, then by subprotocol and by
//! statement.

use std::collections::BTreeSet;

use efa_core::rules::RULES;
use serde::{Deserialize, Serialize};

use super::json::{CaseReport, Ending};

/// The sections of the document that traces and statements cover, and the topics of the other
/// statements.
const SECTIONS: [(&str, &str); 17] = [
    ("1.3", "Packets"),
    ("1.4", "The raw address"),
    ("2.1", "Handshake: features and requests"),
    ("2.2", "Handshake: exchange of addresses"),
    ("3.1", "REQ packets"),
    ("3.2", "Messages"),
    ("3.3", "Writes, reads and atomics"),
    ("4.1", "RDMA read"),
    ("4.2", "Delivery complete"),
    ("4.3", "Constant headers, messages without header"),
    ("4.4", "Connection ids"),
    ("4.5", "Runting reads"),
    ("4.6", "RDMA write"),
    ("4.7", "Refused reads"),
    ("stock", "What stock libfabric needs beyond the document"),
    ("device", "The device"),
    ("ofi", "What applications see"),
];

/// The results of a part of the cases.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tally {
    /// The subprotocol, such as `eager message`, or the statement, such as `v4/3.2/cts-window`.
    pub name: String,
    /// Cases that passed; for a statement, those in which it was not broken.
    pub passed: usize,
    /// Cases that were played.
    pub total: usize,
}

/// The results of a section.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SectionReport {
    /// Its number in the document; `stock`, `device` or `ofi` for other statements.
    pub(crate) section: String,
    pub(crate) title: String,
    /// Passed cases that cover it.
    pub(crate) passed: usize,
    /// Played cases that cover it. All played cases cover the parts outside of the document.
    pub(crate) total: usize,
    pub(crate) subprotocols: Vec<Tally>,
    pub(crate) statements: Vec<Tally>,
}

/// The tree of some cases. Sections that no case covers are excluded.
pub(crate) fn of(cases: &[CaseReport]) -> Vec<SectionReport> {
    let was_played =
        |case: &&CaseReport| matches!(case.result, Ending::Passed | Ending::Failed | Ending::Known);
    let played: Vec<&CaseReport> = cases.iter().filter(was_played).collect();
    let sections = SECTIONS.iter().filter_map(|(section, title)| {
        let is_numbered = section.starts_with(|c: char| c.is_ascii_digit());
        let prefix = match is_numbered {
            true => format!("v4/{section}/"),
            false => format!("{section}/"),
        };
        let breaks = |case: &CaseReport, is_it: &dyn Fn(&str) -> bool| {
            let is_pass = case.result == Ending::Passed;
            let mut broken = case
                .findings
                .iter()
                .filter_map(|it| it.statement.as_deref());
            !is_pass && broken.any(is_it)
        };
        let is_about = |case: &&&CaseReport| {
            !is_numbered
                || case.sections.iter().any(|about| about == section)
                || breaks(case, &|statement| statement.starts_with(&prefix))
        };
        let cases: Vec<&CaseReport> = played.iter().filter(is_about).copied().collect();
        if cases.is_empty() {
            return None;
        }
        let tally =
            |name: &str, cases: &[&CaseReport], is_good: &dyn Fn(&CaseReport) -> bool| Tally {
                name: name.to_owned(),
                passed: cases.iter().filter(|case| is_good(case)).count(),
                total: cases.len(),
            };
        let has_passed = |case: &CaseReport| case.result == Ending::Passed;
        let names: BTreeSet<&String> = cases.iter().flat_map(|it| &it.subprotocols).collect();
        let subprotocols = names.into_iter().filter(|_| is_numbered).map(|name| {
            let of_it = cases.iter().filter(|it| it.subprotocols.contains(name));
            tally(name, &of_it.copied().collect::<Vec<_>>(), &has_passed)
        });
        let statements = RULES
            .iter()
            .filter(|rule| rule.is_run() && rule.statement.starts_with(&prefix))
            .map(|rule| rule.statement)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|name| {
                tally(name, &cases, &|case| {
                    !breaks(case, &|broken| broken == name)
                })
            });
        let all = tally(section, &cases, &has_passed);
        Some(SectionReport {
            section: all.name,
            title: (*title).to_owned(),
            passed: all.passed,
            total: all.total,
            subprotocols: subprotocols.collect(),
            statements: statements.collect(),
        })
    });
    sections.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_of_a_run_has_a_section() {
        for rule in RULES.iter().filter(|rule| rule.is_run()) {
            let mut parts = rule.statement.split('/');
            let section = match parts.next() {
                Some("v4") => parts.next(),
                other => other,
            };
            let known = SECTIONS.iter().any(|(number, _)| Some(*number) == section);
            assert!(known, "{}", rule.statement);
        }
    }
}
