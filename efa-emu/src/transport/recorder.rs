//! Processes that record all hosts of a fabric, also those that are yet to come.
//!
//! A recorder asks each host's devices to record ([`Host::request_capture`](super::Host)), but it
//! learns of a new host by looking. Its lock in the fabric's directory lets whoever makes a host wait
//! until that has happened ([`Host::wait_for_recorders`](super::Host)).

use std::path::{Path, PathBuf};

use super::error::{FabricError, Holds};
use super::fabric::{Fabric, private_directory};
use super::fork::HomeProcess;
use super::lock::{Liveness, OwnLock};

/// Tells new hosts of the fabric that this process is going to record them, as long as it lives.
#[derive(Debug)]
pub struct Recorder {
    fabric: Fabric,
    /// `None` only while dropping.
    lock: Option<OwnLock>,
    home: HomeProcess,
}

impl Fabric {
    /// Announces the caller as a recorder of all hosts.
    pub fn announce_recorder(&self) -> Result<Recorder, FabricError> {
        self.with_registry(|_| {
            let directory = recorders_directory(self.directory());
            private_directory(&directory, Holds::OneFabric)?;
            let path = (1_u32..)
                .map(|number| directory.join(format!("{number}.lock")))
                .find(|path| !path.exists())
                .expect("there are more numbers than recorders");
            Ok(Recorder {
                fabric: self.clone(),
                lock: Some(OwnLock::create(&path)?),
                home: HomeProcess::current(),
            })
        })
    }

    /// The live recorders, as processes in the pid namespace of the caller (0 if one has no number
    /// there).
    pub(super) fn recorders(&self) -> Result<Vec<i32>, FabricError> {
        let processes = |_: &Path| Ok(locks(self.directory()).filter_map(|lock| process(&lock)));
        Ok(self.with_registry(processes)?.collect())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.home.is_current() {
            return;
        }
        if let Some(lock) = self.lock.take() {
            let _ = std::fs::remove_file(lock.path());
        }
        // Removes the fabric if nobody else is in it. What fails here is done by the next change
        // of the registry.
        let _ = self.fabric.with_registry(|_| Ok(()));
    }
}

fn recorders_directory(fabric: &Path) -> PathBuf {
    fabric.join("recorders")
}

/// The files that recorders lock.
fn locks(fabric: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(recorders_directory(fabric));
    entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// The live process that locked the file.
fn process(lock: &Path) -> Option<i32> {
    match Liveness::open(lock) {
        Ok(liveness) => liveness?.process(),
        // Out of descriptors, say: that says nothing about the recorder.
        Err(_) => Some(0),
    }
}

/// Removes what dead recorders left. The registry is locked.
pub(super) fn remove_dead(fabric: &Path) {
    for lock in locks(fabric).filter(|lock| process(lock).is_none()) {
        let _ = std::fs::remove_file(lock);
    }
    // Fails as long as there are recorders.
    let _ = std::fs::remove_dir(recorders_directory(fabric));
}

/// Whether there are recorders, after the dead were removed.
pub(super) fn are_any(fabric: &Path) -> bool {
    recorders_directory(fabric).exists()
}
