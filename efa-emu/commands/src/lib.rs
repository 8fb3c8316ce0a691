//! The common parts of commands that start other programs: failures as one line, a directory for
//! each run, waiting for a program as a shell does, and finding the libraries to preload.
//!
//! ```
//! use efa_commands::shell::RemoteShell;
//!
//! let shell: RemoteShell = "ssh -p 2222".parse()?;
//! let command = shell.command("node1", &["echo".into(), "two words".into()]);
//! assert_eq!(command.get_program(), "ssh");
//! # Ok::<(), efa_commands::shell::RemoteShellError>(())
//! ```

pub mod child;
pub mod installation;
mod libraries;
pub mod namespaces;
pub mod output;
pub mod ports;
pub mod process_group;
mod run_directory;
pub mod shell;
pub mod sibling;
pub mod signals;

use std::io::{self, Write as _};
use std::process::ExitCode;

pub use libraries::{LibrariesError, directory_of};

pub use run_directory::{
    RunDirectory, RunDirectoryError, living_directories, living_directories_below, place_of_runs,
    shared_memory, temporary_directory, user_directory_below,
};

/// The reason why a command failed: one line with the object, its value and the remedy.
#[derive(Debug)]
pub struct Failure(pub String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.to_string())
    }
}

/// Exit status for wrong usage and environments that do not allow the command.
const USAGE: u8 = 2;

/// The exit status of the command `program`; the reason of a failure is printed to standard error.
/// A command whose [output](output::print()) is incomplete has failed.
pub fn end(program: &str, outcome: Result<ExitCode, Failure>) -> ExitCode {
    match outcome {
        Ok(ExitCode::SUCCESS) if output::is_incomplete() => ExitCode::from(USAGE),
        Ok(status) => status,
        Err(Failure(reason)) => {
            complain(program, &reason);
            ExitCode::from(USAGE)
        }
    }
}

/// Writes a line of `program` to standard error with one write, because other programs write there
/// at the same time.
pub fn complain(program: &str, reason: &str) {
    let _ = io::stderr().write_all(format!("{program}: {reason}\n").as_bytes());
}
