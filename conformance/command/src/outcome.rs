//! The outcome of a command, and its messages.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PathBufValueParser, TypedValueParser};
use efa_commands::output;

/// The name of the program in messages.
pub(crate) const PROGRAM: &str = "efa-conformance";

/// The outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// Wrong usage or an unfit environment.
    Unfit,
}

impl Outcome {
    /// The combined outcome of two parts: a failure takes precedence.
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

/// Parses the name of a report's file.
pub(crate) fn report_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.as_os_str() == "-" {
        true => Err("a report goes into a file; the one of standard output is /dev/stdout"),
        false => Ok(path),
    })
}

/// Prints a line of results. If the reader has exited (`| head`), that is not an error; any other
/// failure makes the command fail.
pub(crate) fn say(text: impl Display) {
    output::print(PROGRAM, &format!("{text}\n"));
}
