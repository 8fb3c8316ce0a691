//! The reason why a file cannot be added to a bundle.

use std::path::{Path, PathBuf};

use efa_capture::ReadError;
use efa_device_model::profile::ProfileError;

/// A file cannot be added to a bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A bundle does not accept files of this type.
    #[error(
        "{}: a bundle takes captures (.pcapng), reports of `run --json` (.json) and profiles of \
         `survey` (.toml)",
        .0.display()
    )]
    OtherKind(PathBuf),
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// It is not a capture.
    #[error(transparent)]
    Capture(#[from] ReadError),
    /// A capture was not written by this project.
    #[error("{}: {source}", path.display())]
    Blocks {
        /// The file.
        path: PathBuf,
        /// The error.
        source: BlockError,
    },
    /// It is not a report.
    #[error(transparent)]
    Report(#[from] efa_suite::json::ReportError),
    /// It is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It is not a profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

impl BundleError {
    /// Adds the path of a file to the reason why it cannot be read.
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        |source| BundleError::Io { path, source }
    }
}

/// An error in the blocks of a capture.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// It was written on a big-endian machine.
    #[error("its numbers are not little-endian")]
    ByteOrder,
    /// A block cannot have this number of bytes.
    #[error("a block has {0} bytes")]
    Length(usize),
    /// The length of a packet contradicts that of its block.
    #[error("a packet goes beyond its block")]
    Packet,
    /// It has packets in blocks of a type in which they cannot be cut.
    #[error("it has packets in blocks of type {0}")]
    OtherPackets(u32),
    /// A block lacks fields of its type.
    #[error("a block of type {0} is too short")]
    Short(u32),
}
