//! Programs that `efa-emu` starts for some of its commands. They are separate programs so that
//! `efa-emu` does not have their dependencies.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::Failure;

/// The words of the command line before the program's arguments, such as `efa-emu bridge`.
const OWN_WORDS: usize = 2;

/// A program that is installed with this one.
#[derive(Clone, Copy, Debug)]
pub struct SiblingProgram {
    pub program: &'static str,
    /// The package that builds it.
    pub package: &'static str,
    /// The folder of the package in the clone.
    pub folder: &'static str,
}

impl SiblingProgram {
    /// The path of the program.
    ///
    /// # Errors
    /// The path of this program cannot be determined.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        Ok(std::env::current_exe()?.with_file_name(self.program))
    }

    /// Replaces this process by the program, and passes the words after those of the command to it.
    ///
    /// # Errors
    /// It cannot be started; see [`SiblingProgram::missing`].
    pub fn execute(&self) -> Result<ExitCode, Failure> {
        let program = self.path()?;
        let arguments = std::env::args_os().skip(OWN_WORDS);
        let error = Command::new(&program).args(arguments).exec();
        Err(self.missing(&program, &error))
    }

    /// The error if it cannot be started.
    pub fn missing(&self, program: &Path, error: &std::io::Error) -> Failure {
        let SiblingProgram {
            package, folder, ..
        } = self;
        Failure(format!(
            "cannot run {}: {error}: install the whole package (docs/install.md), or build the program in the clone, with \
             `cargo install --path {folder}` where cargo has installed efa-emu, else with `cargo build --release -p {package}`",
            program.display()
        ))
    }
}
