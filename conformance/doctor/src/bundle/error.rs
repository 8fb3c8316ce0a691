//! The reason why a file cannot be added to a bundle.

use std::path::{Path, PathBuf};

use efa_capture::ReadError;
use efa_device_model::profile::ProfileError;

/// A file cannot be added to a bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error(
        "{}: a bundle takes captures (.pcapng), reports of `run --json` (.json) and profiles of \
         `survey` (.toml)",
        .0.display()
    )]
    OtherKind(PathBuf),
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Capture(#[from] ReadError),
    #[error("{}: {source}", path.display())]
    Blocks { path: PathBuf, source: BlockError },
    #[error(transparent)]
    Report(#[from] efa_suite::json::ReportError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
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
    #[error("its numbers are not little-endian")]
    ByteOrder,
    #[error("a block has {0} bytes")]
    Length(usize),
    #[error("a packet goes beyond its block")]
    Packet,
    /// It has packets in blocks of a type in which they cannot be cut.
    #[error("it has packets in blocks of type {0}")]
    OtherPackets(u32),
    #[error("a block of type {0} is too short")]
    Short(u32),
}
