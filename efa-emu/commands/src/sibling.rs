//! Programs that `efa-emu` starts for some of its commands. They are separate programs so that
//! `efa-emu` does not have their dependencies.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The words of the command line before the program's arguments, such as `efa-emu bridge`.
const OWN_WORDS: usize = 2;

/// The reason why a program that is installed with this one does not start.
#[derive(Debug, thiserror::Error)]
pub enum SiblingError {
    /// The program does not start.
    #[error(
        "cannot run {}: {source}: install the whole package (docs/install.md), or build the program in the clone, with \
         `cargo install --path {folder}` where cargo has installed efa-emu, else with `cargo build --release -p {package}`",
        path.display()
    )]
    Start {
        /// The path at which it was expected: beside this program.
        path: PathBuf,
        /// The package that builds it.
        package: &'static str,
        /// The folder of the package in the clone.
        folder: &'static str,
        /// The reason of the system.
        source: io::Error,
    },
    /// The path of this program cannot be determined.
    #[error(transparent)]
    OwnPath(#[from] io::Error),
}

/// A program that is installed with this one.
#[derive(Clone, Copy, Debug)]
pub struct SiblingProgram {
    /// The name of its file.
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
    pub fn path(&self) -> io::Result<PathBuf> {
        Ok(std::env::current_exe()?.with_file_name(self.program))
    }

    /// Replaces this process by the program, and passes the words after those of the command to it.
    ///
    /// # Errors
    /// It cannot be started; see [`SiblingProgram::missing`].
    pub fn execute(&self) -> Result<ExitCode, SiblingError> {
        let program = self.path()?;
        let arguments = std::env::args_os().skip(OWN_WORDS);
        let error = Command::new(&program).args(arguments).exec();
        Err(self.missing(program, error))
    }

    /// The error if it cannot be started.
    pub fn missing(&self, path: PathBuf, source: io::Error) -> SiblingError {
        SiblingError::Start {
            path,
            package: self.package,
            folder: self.folder,
            source,
        }
    }
}
