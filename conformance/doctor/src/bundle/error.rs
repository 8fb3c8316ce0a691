//! The reason why a file cannot be added to a bundle.

use std::path::{Path, PathBuf};

use efa_capture::ReadError;
use efa_device_model::profile::ProfileError;

/// A file cannot be added to a bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The extension of the file is none of those.
    #[error(
        "{}: a bundle takes captures (.pcapng), reports of `run --json` (.json) and profiles of \
         `survey` (.toml)",
        .0.display()
    )]
    OtherKind(PathBuf),
    /// A file cannot be read, or the bundle cannot be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason of the system.
        source: std::io::Error,
    },
    /// A file with the extension of captures is none.
    #[error(transparent)]
    Capture(#[from] ReadError),
    /// The packets of a capture cannot be cut to their headers.
    #[error("{}: {source}", path.display())]
    Blocks {
        /// The file.
        path: PathBuf,
        /// The reason, with which nothing of the capture is in the bundle.
        source: BlockError,
    },
    /// A file with the extension of reports is no report of a run.
    #[error(transparent)]
    Report(#[from] efa_suite::json::ReportError),
    /// A file with the extension of reports is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A file with the extension of profiles is none.
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
    /// The capture was made on a machine with the other order of bytes.
    #[error("its numbers are not little-endian")]
    ByteOrder,
    /// A block states a length below 12 bytes, or one that is no multiple of 4.
    #[error("a block has {0} bytes")]
    Length(usize),
    /// The stated length of a packet is greater than its block.
    #[error("a packet goes beyond its block")]
    Packet,
    /// It has packets in blocks of a type in which they cannot be cut.
    #[error("it has packets in blocks of type {0}")]
    OtherPackets(u32),
    /// The type of a block that ends before its fixed fields do.
    #[error("a block of type {0} is too short")]
    Short(u32),
}
