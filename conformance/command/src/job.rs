//! `job`: the processes of `run --jobs`.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use efa_suite::jobs;

use crate::outcome::{Outcome, complain};

/// The command by which `run --jobs` starts this program.
pub(crate) fn command() -> Command {
    // If the program's own file is unknown, starting the job fails with an error.
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
