//! `efa-emu bridge`: a program of its own, so that nobody else depends on what carries bytes
//! between machines.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use efa_commands::Failure;

/// The program's name.
const PROGRAM: &str = "efa-emu-bridge";

/// The words of the command line in front of the program's own: `efa-emu bridge`.
const OWN_WORDS: usize = 2;

/// Becomes the program.
///
/// # Errors
/// It cannot be started; see [`missing`].
pub fn execute() -> Result<ExitCode, Failure> {
    let program = program()?;
    let arguments = std::env::args_os().skip(OWN_WORDS);
    let error = Command::new(&program).args(arguments).exec();
    Err(missing(&program, &error))
}

/// Where the program is: beside this one.
///
/// # Errors
/// This program's own path cannot be had.
pub fn program() -> Result<PathBuf, Failure> {
    Ok(std::env::current_exe()?.with_file_name(PROGRAM))
}

/// Why it cannot be started.
pub fn missing(program: &Path, error: &std::io::Error) -> Failure {
    Failure(format!(
        "cannot run {}: {error}: install the whole package (docs/install.md), or build the program in the clone, with \
         `cargo install --path efa-emu/bridge` where cargo has installed efa-emu, else with `cargo build --release -p {PROGRAM}`",
        program.display()
    ))
}
