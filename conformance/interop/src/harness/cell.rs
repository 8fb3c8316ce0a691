//! One cell of the table, and its result.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::bench::Bench;
use super::hosts::Hosts;
use super::known::{self, KnownFault};
use super::lab::Lab;
use super::not_measured::{CellResult, NotMeasured};

type Run = Box<dyn Fn(&Bench) -> CellResult + Send + Sync>;

/// A test of one combination of software.
pub struct Cell {
    group: &'static str,
    name: String,
    limit: Duration,
    /// The reason why it only runs on emulated hosts, if so.
    emulated: Option<Cow<'static, str>>,
    run: Run,
}

impl Cell {
    /// A cell that calls `run`. Everything that `run` starts is killed after `limit`.
    pub fn new(
        group: &'static str,
        name: impl Into<String>,
        limit: Duration,
        run: impl Fn(&Bench) -> CellResult + Send + Sync + 'static,
    ) -> Self {
        Cell {
            group,
            name: name.into(),
            limit,
            emulated: None,
            run: Box::new(run),
        }
    }

    /// Marks a cell that tests nothing about real hosts, or cannot run there, with the reason.
    #[must_use]
    pub fn emulated_only(self, reason: impl Into<Cow<'static, str>>) -> Self {
        Cell {
            emulated: Some(reason.into()),
            ..self
        }
    }

    /// The group that it belongs to.
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// Its name within the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the cell in the environment of `lab`, with the network and directory of `bench`. Its
    /// time starts now.
    pub(crate) fn run_within(&self, bench: &Bench, lab: &Lab) -> CellResult {
        let deadline = Instant::now() + self.limit();
        self.measure(lab, || Ok(bench.within(lab, deadline)))
    }

    pub(crate) fn limit(&self) -> Duration {
        let known = known::fault(self.group, &self.name).ok().flatten();
        known.and_then(KnownFault::limit).unwrap_or(self.limit)
    }

    /// Runs the cell.
    pub fn run(&self, lab: &Lab) -> Row {
        let begin = Instant::now();
        let deadline = begin + self.limit();
        let result = self.measure(lab, || Bench::new(lab, self.group, &self.name, deadline));
        Row {
            group: self.group,
            name: self.name.clone(),
            places: lab.hosts().map(Hosts::names).unwrap_or_default(),
            outcome: match result {
                Ok(measured) => Outcome::Passed { measured },
                Err(NotMeasured::Known { reason, capture }) => {
                    Outcome::NotMeasured(NotMeasured::Known {
                        reason,
                        // Reports contain the path without its machine-specific part.
                        capture: match capture.strip_prefix(lab.file("")) {
                            Ok(inside) => inside.to_owned(),
                            Err(_) => capture,
                        },
                    })
                }
                Err(not_measured) => Outcome::NotMeasured(not_measured),
            },
            duration: begin.elapsed(),
        }
    }

    /// Runs the cell on a bench. A known fault of stock software must show.
    fn measure<'a>(
        &self,
        lab: &Lab,
        bench: impl FnOnce() -> Result<Bench<'a>, NotMeasured>,
    ) -> CellResult {
        if let (Some(_), Some(reason)) = (lab.hosts(), &self.emulated) {
            return Err(NotMeasured::Skipped(reason.clone().into_owned()));
        }
        let known = known::fault(self.group, &self.name)?;
        let bench = bench()?;
        let result = (self.run)(&bench);
        match known {
            Some(known) => known.judge(&bench, result),
            None => result,
        }
    }
}

/// The result of a cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It worked.
    Passed {
        /// The measurement.
        measured: String,
    },
    /// It failed, or was not run.
    NotMeasured(NotMeasured),
}

impl Outcome {
    /// The word for it in output and reports.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Passed { .. } => "PASS",
            Outcome::NotMeasured(NotMeasured::Failed(_)) => "FAIL",
            Outcome::NotMeasured(NotMeasured::Skipped(_)) => "SKIP",
            Outcome::NotMeasured(NotMeasured::Known { .. }) => "KNOWN",
        }
    }

    /// The measurement, or the reason why there is none.
    pub fn text(&self) -> &str {
        match self {
            Outcome::Passed { measured: text }
            | Outcome::NotMeasured(
                NotMeasured::Failed(text)
                | NotMeasured::Skipped(text)
                | NotMeasured::Known { reason: text, .. },
            ) => text,
        }
    }

    /// The capture that shows stock software's fault.
    pub fn capture(&self) -> Option<&Path> {
        match self {
            Outcome::NotMeasured(NotMeasured::Known { capture, .. }) => Some(capture),
            _ => None,
        }
    }
}

/// The result of a cell: a line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the group that it belongs to.
    pub group: &'static str,
    /// Its name, unique in the group.
    pub name: String,
    /// The hosts of the sides; empty if they were emulated.
    pub places: BTreeMap<String, String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The time that it took, with the start of its programs.
    pub duration: Duration,
}

impl Row {
    /// The prefix `a at node0, b at node1: `, empty if the hosts were emulated.
    pub(super) fn where_it_ran(&self) -> String {
        let places = self.places.iter();
        let places: Vec<String> = places
            .map(|(side, host)| format!("{side} at {host}"))
            .collect();
        match places.is_empty() {
            true => String::new(),
            false => places.join(", ") + ": ",
        }
    }

    /// Returns whether the cell failed for another reason than a known fault of stock software.
    pub fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::NotMeasured(NotMeasured::Failed(_)))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self.outcome.text().lines();
        write!(
            f,
            "{:<5}  {:<9}  {:<40}  {}{}",
            self.outcome.word(),
            self.group,
            self.name,
            self.where_it_ran(),
            lines.next().unwrap_or_default()
        )?;
        if let Some(capture) = self.outcome.capture() {
            write!(f, " [{}]", capture.display())?;
        }
        for line in lines {
            write!(f, "\n       {line}")?;
        }
        Ok(())
    }
}

/// Counts of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    pub(crate) passed: usize,
    /// Cells that fail because of stock software.
    pub known: usize,
    pub(crate) skipped: usize,
    /// Cells that were run and did not work.
    pub failed: usize,
}

impl Summary {
    /// Counts rows.
    pub fn of(rows: &[Row]) -> Self {
        let mut summary = Summary::default();
        for row in rows {
            let count = match &row.outcome {
                Outcome::Passed { .. } => &mut summary.passed,
                Outcome::NotMeasured(NotMeasured::Failed(_)) => &mut summary.failed,
                Outcome::NotMeasured(NotMeasured::Skipped(_)) => &mut summary.skipped,
                Outcome::NotMeasured(NotMeasured::Known { .. }) => &mut summary.known,
            };
            *count += 1;
        }
        summary
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} known, {} skipped, {} failed",
            self.passed, self.known, self.skipped, self.failed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(outcome: Outcome) -> Row {
        Row {
            group: "g",
            name: "n".into(),
            places: BTreeMap::new(),
            outcome,
            duration: Duration::ZERO,
        }
    }

    #[test]
    fn a_row_has_measurements_or_the_reason() {
        let rows = [
            row(Outcome::Passed {
                measured: "3 messages".into(),
            }),
            row(Outcome::NotMeasured(NotMeasured::Failed(
                "no\nbecause".into(),
            ))),
            row(Outcome::NotMeasured(NotMeasured::Skipped(
                "no network".into(),
            ))),
            row(Outcome::NotMeasured(NotMeasured::Known {
                reason: "stock drops it".into(),
                capture: "a.pcapng".into(),
            })),
        ];
        let lines = rows.each_ref().map(ToString::to_string);
        assert!(lines[0].starts_with("PASS "), "{}", lines[0]);
        assert!(lines[0].ends_with("  3 messages"), "{}", lines[0]);
        assert!(lines[1].ends_with("  no\n       because"), "{}", lines[1]);
        assert!(
            lines[3].ends_with("stock drops it [a.pcapng]"),
            "{}",
            lines[3]
        );
        assert_eq!(
            rows.each_ref().map(Row::failed),
            [false, true, false, false]
        );
        assert_eq!(
            Summary::of(&rows).to_string(),
            "1 passed, 1 known, 1 skipped, 1 failed"
        );
    }
}
