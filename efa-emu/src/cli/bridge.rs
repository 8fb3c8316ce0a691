//! `efa-emu bridge`: a program of its own, so that nobody else depends on what carries bytes between machines.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use efa_emu::command::Failure;

/// The program's name.
const PROGRAM: &str = "efa-emu-bridge";

#[derive(Args)]
pub(super) struct BridgeArguments {
    /// The options and arguments of the program.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl BridgeArguments {
    /// Becomes the program.
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let program = program()?;
        let error = Command::new(&program).args(self.arguments).exec();
        Err(missing(&program, &error))
    }
}

/// Where the program is: beside this one.
pub(super) fn program() -> Result<PathBuf, Failure> {
    Ok(std::env::current_exe()?.with_file_name(PROGRAM))
}

/// Why it cannot be started.
pub(super) fn missing(program: &Path, error: &std::io::Error) -> Failure {
    Failure(format!(
        "cannot run {}: {error}: install the whole package (docs/install.md), or build it with \
         `cargo build --release -p {PROGRAM}`",
        program.display()
    ))
}
