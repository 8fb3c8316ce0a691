//! Missing parts of a host that keep a program from being started there.

use std::io;
use std::path::PathBuf;

use efa_commands::installation::MissingData;
use efa_commands::shell::SplitError;

/// Why a program was not started, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum LackError {
    /// There is no such program.
    #[error("{0} is not installed")]
    Program(String),
    /// There is no program that starts or records others.
    #[error("{name} is neither beside {} nor in PATH", own.display())]
    Recorder {
        /// The program.
        name: &'static str,
        /// This program's own file.
        own: PathBuf,
    },
    /// The command of a recorder cannot be divided into words.
    #[error(transparent)]
    Words(#[from] SplitError),
    /// The command of a recorder does not say where the capture goes.
    #[error(
        "no word has {{file}} for the capture's path; write for example `efa-tap run --pcap {{file}} --`"
    )]
    CaptureFile,
    /// There is no such plug-in of libfabric.
    #[error("the provider {0} is not installed beside efa-conformance")]
    Provider(String),
    /// A word stands for software without a name.
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
    /// This program's own file is not known.
    #[error("cannot find this program's own file: {0}")]
    OwnFile(io::Error),
    /// There is no directory for a capture.
    #[error("{0}")]
    Directory(String),
    /// A program cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A program cannot be waited for.
    #[error("cannot wait for {program}: {source}")]
    Wait {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
}
