//! How a command ends, and what it prints.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PathBufValueParser, TypedValueParser};
use efa_commands::output;

/// As which it writes to standard error.
pub(crate) const PROGRAM: &str = "efa-conformance";

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// Wrong usage or an unfit environment.
    Unfit,
}

impl Outcome {
    /// The outcome of two parts: a failure before all.
    pub(crate) fn and(self, other: Outcome) -> Outcome {
        match (self, other) {
            (Outcome::Failed, _) | (_, Outcome::Failed) => Outcome::Failed,
            (Outcome::Unfit, _) | (_, Outcome::Unfit) => Outcome::Unfit,
            _ => Outcome::Passed,
        }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Passed => ExitCode::SUCCESS,
            Outcome::Failed => ExitCode::from(1),
            Outcome::Unfit => ExitCode::from(2),
        }
    }
}

/// Prints an error.
pub(crate) fn complain(error: impl Display, outcome: Outcome) -> Outcome {
    efa_commands::complain(PROGRAM, &error.to_string());
    outcome
}

/// Reads the name of a file for a report.
pub(crate) fn report_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.as_os_str() == "-" {
        true => Err("a report goes into a file; the one of standard output is /dev/stdout"),
        false => Ok(path),
    })
}

/// Prints a line of results. A reader that has ended (`| head`) is not an error; another failure
/// makes the command one.
pub(crate) fn say(text: impl Display) {
    output::print(PROGRAM, &format!("{text}\n"));
}
