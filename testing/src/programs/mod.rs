//! Programs on emulated hosts: finding installed programs, and running them with a time limit and
//! without leaving any process behind.

mod dialogue;
pub mod exported;
mod fabric;
mod program;
mod seccomp;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use dialogue::{Dialogue, started_by};
pub use fabric::TestFabric;
pub use program::{Finished, NO_FOREIGN_HANDLER, Program, wait_for_listener};
pub use seccomp::{forbid, forbid_with};

/// The path of an installed program, or `None` after printing that the test is skipped.
pub fn installed(program: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file());
    if found.is_none() {
        crate::skip(format_args!(
            "{program} is not installed (Debian package {package})"
        ));
    }
    found
}

/// Ends the test after printing the reason, if a program is not installed.
#[macro_export]
macro_rules! needs {
    ($program:expr, $package:expr) => {
        if $crate::programs::installed($program, $package).is_none() {
            return;
        }
    };
}
pub use needs;

/// Runs a program until it exits.
#[track_caller]
pub fn run(command: Command) -> Finished {
    Program::start(command).wait()
}

/// Runs a program that must succeed; `what` is its name in the failure.
#[track_caller]
pub fn succeed(command: Command, what: &str) -> Finished {
    run(command).expect_success(what)
}

/// The words of a command line without quotes.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Files whose names contain `part`, for checks that nothing is left behind.
pub fn files_with(directory: &Path, part: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains(part))
        .collect()
}
