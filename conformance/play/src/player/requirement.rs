//! Missing parts of a host that prevent a program from being started there.

use std::io;
use std::path::PathBuf;

use efa_commands::RunDirectoryError;
use efa_commands::installation::MissingData;
use efa_commands::shell::SplitError;

/// The reason why a program was not started, or not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RequirementError {
    #[error("{0} is not installed")]
    Program(String),
    #[error("{name} is neither beside {} nor in PATH", own.display())]
    Recorder {
        name: &'static str,
        /// This program's own file.
        own: PathBuf,
    },
    #[error(transparent)]
    Words(#[from] SplitError),
    #[error(
        "no word has {{file}} for the capture's path; write for example `efa-tap run --pcap {{file}} --`"
    )]
    CaptureFile,
    #[error("the provider {0} is not installed beside efa-conformance")]
    Provider(String),
    #[error("`{0}` names no software")]
    Unnamed(String),
    #[error("{command}: {reason}")]
    Software {
        /// The script that fetches it, and its name there.
        command: String,
        /// The last line that the script printed, or why it did not start.
        reason: String,
    },
    #[error(transparent)]
    Data(#[from] MissingData),
    #[error("cannot find this program's own file: {0}")]
    OwnFile(io::Error),
    #[error(transparent)]
    Directory(#[from] RunDirectoryError),
    #[error("cannot start {program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("cannot wait for {program}: {source}")]
    Wait { program: String, source: io::Error },
}
