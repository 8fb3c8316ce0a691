//! Replaces the module of this name in `efa-shm`.

use std::io;
use std::path::{Path, PathBuf};

/// The errors of the table.
#[derive(Debug)]
pub(crate) enum FabricError {
    Damaged {
        path: PathBuf,
        what: &'static str,
    },
    Io(io::Error),
    QpnsExhausted {
        limit: u32,
    },
    UnknownLayout {
        path: PathBuf,
        found: String,
        expected: String,
    },
}

impl FabricError {
    pub(crate) fn io(_: &'static str, _: &Path) -> impl FnOnce(io::Error) -> FabricError {
        FabricError::Io
    }
}
