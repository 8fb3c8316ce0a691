//! Missing parts of a host that prevent a program from being started there.

use std::io;
use std::path::PathBuf;

use efa_commands::RunDirectoryError;
use efa_commands::installation::MissingData;
use efa_commands::shell::SplitError;

/// The reason why a program was not started, or not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RequirementError {
    /// The program that `PATH` does not have.
    #[error("{0} is not installed")]
    Program(String),
    /// The program that makes the captures was not found.
    #[error("{name} is neither beside {} nor in PATH", own.display())]
    Recorder {
        /// The name of its file.
        name: &'static str,
        /// This program's own file.
        own: PathBuf,
    },
    /// A command cannot be split into words.
    #[error(transparent)]
    Words(#[from] SplitError),
    /// The command that records has no place for the path of the capture.
    #[error(
        "no word has {{file}} for the capture's path; write for example `efa-tap run --pcap {{file}} --`"
    )]
    CaptureFile,
    /// The name of the plug-in of libfabric that was not found.
    #[error("the provider {0} is not installed beside efa-conformance")]
    Provider(String),
    /// The text that was given instead of a software and its release.
    #[error("`{0}` names no software")]
    Unnamed(String),
    /// Software of another release cannot be fetched.
    #[error("{command}: {reason}")]
    Software {
        /// The script that fetches it, and its name there.
        command: String,
        /// The last line that the script printed, or why it did not start.
        reason: String,
    },
    /// A data file of the installation is missing.
    #[error(transparent)]
    Data(#[from] MissingData),
    /// The path of this program cannot be determined.
    #[error("cannot find this program's own file: {0}")]
    OwnFile(io::Error),
    /// The directory of the run cannot be created.
    #[error(transparent)]
    Directory(#[from] RunDirectoryError),
    /// The program does not start.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program as it was named.
        program: String,
        /// The reason why it does not start.
        source: io::Error,
    },
    /// The end of the program cannot be waited for.
    #[error("cannot wait for {program}: {source}")]
    Wait {
        /// The program as it was named.
        program: String,
        /// The reason of the system.
        source: io::Error,
    },
}
