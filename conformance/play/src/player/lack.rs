//! Missing parts of a host that prevent a program from being started there.

use std::io;
use std::path::PathBuf;

use efa_commands::installation::MissingData;
use efa_commands::shell::SplitError;

/// The reason why a program was not started, or not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum LackError {
    /// The program is not installed.
    #[error("{0} is not installed")]
    Program(String),
    /// The program that starts or records others is missing.
    #[error("{name} is neither beside {} nor in PATH", own.display())]
    Recorder {
        /// The program.
        name: &'static str,
        /// This program's own file.
        own: PathBuf,
    },
    /// The command of a recorder cannot be split into words.
    #[error(transparent)]
    Words(#[from] SplitError),
    /// The command of a recorder lacks the placeholder for the capture.
    #[error(
        "no word has {{file}} for the capture's path; write for example `efa-tap run --pcap {{file}} --`"
    )]
    CaptureFile,
    /// The libfabric plug-in is missing.
    #[error("the provider {0} is not installed beside efa-conformance")]
    Provider(String),
    /// The name of software in a placeholder is empty.
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
    /// A file that belongs to the suite is missing.
    #[error(transparent)]
    Data(#[from] MissingData),
    /// The path of this program's own file is unknown.
    #[error("cannot find this program's own file: {0}")]
    OwnFile(io::Error),
    /// No directory for a capture could be created.
    #[error("{0}")]
    Directory(String),
    /// A program cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The error.
        source: io::Error,
    },
    /// A program cannot be waited for.
    #[error("cannot wait for {program}: {source}")]
    Wait {
        /// The program.
        program: String,
        /// The error.
        source: io::Error,
    },
}
