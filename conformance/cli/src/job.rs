//! `job`: what `run --jobs` starts.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::{Outcome, complain};
use efa_conformance::suite::jobs;

/// How `run --jobs` starts this program.
pub(crate) fn command() -> Command {
    // A process without a file of its own cannot be started again, which says so.
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("efa-conformance"));
    let mut command = Command::new(own);
    command.arg("job");
    command
}

pub(crate) fn job() -> Outcome {
    match jobs::serve(io::stdin().lock(), io::stdout().lock()) {
        Ok(()) => Outcome::Passed,
        Err(error) => complain(
            format_args!("only `run --jobs` uses `job`: {error}"),
            Outcome::Unfit,
        ),
    }
}
