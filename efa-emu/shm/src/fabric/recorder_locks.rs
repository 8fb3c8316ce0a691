//! The locks of recorders and bridges.

use std::path::{Path, PathBuf};

use super::paths::private_directory;
use crate::error::{DirectoryContent, FabricError};
use crate::process::lock::{Liveness, OwnLock};

pub(super) fn recorders_directory(fabric: &Path) -> PathBuf {
    fabric.join("recorders")
}

pub(super) fn bridges_directory(fabric: &Path) -> PathBuf {
    fabric.join("bridges")
}

/// The files that processes lock in a directory.
pub(super) fn locks(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(directory);
    entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// Locks a file of a new number in `directory`. The registry is locked.
pub(super) fn lock_in(directory: &Path) -> Result<(u32, OwnLock), FabricError> {
    private_directory(directory, DirectoryContent::OneFabric)?;
    let (number, path) = (1_u32..)
        .map(|number| (number, directory.join(format!("{number}.lock"))))
        .find(|(_, path)| !path.exists())
        .expect("there are more numbers than processes");
    Ok((number, OwnLock::create(&path)?))
}

/// The live process that locked the file.
pub(super) fn process(lock: &Path) -> Option<i32> {
    match Liveness::open(lock) {
        Ok(liveness) => liveness?.process(),
        // For example, this process has no free descriptors; the recorder may still be alive.
        Err(_) => Some(0),
    }
}

/// Removes the files of dead recorders and bridges. The registry is locked.
pub(super) fn remove_dead(fabric: &Path) {
    for directory in [recorders_directory(fabric), bridges_directory(fabric)] {
        for lock in locks(&directory).filter(|lock| process(lock).is_none()) {
            let _ = std::fs::remove_file(lock);
        }
        // Fails as long as the directory contains locks.
        let _ = std::fs::remove_dir(directory);
    }
}

/// Whether there are recorders or bridges, after dead ones were removed.
pub(super) fn are_any(fabric: &Path) -> bool {
    recorders_directory(fabric).exists() || bridges_directory(fabric).exists()
}
