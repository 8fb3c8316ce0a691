//! The participants of a fabric's devices, and the removal of files of dead ones.

#[cfg(test)]
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use efa_core::address::Gid;

use super::paths::{
    device_path, directories, file_names, file_owner, is_directory, lock_path, table_path,
};
use crate::error::FabricError;
use crate::identity::config::NetworkOptions;
use crate::identity::qpn::HostTable;
use crate::process::lock::Liveness;
use crate::transport::segment::{Address, Segment};
use efa_lock_free::qpn::ParticipantId;

#[cfg(test)]
thread_local! {
    /// Number of devices that were scanned for files of dead processes.
    pub(super) static LOOKS: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn is_alive(host: &Path, id: ParticipantId) -> bool {
    match Liveness::open(&lock_path(host, id)) {
        Ok(Some(liveness)) => liveness.process().is_some(),
        Ok(None) => false,
        // For example, this process has no free descriptors. A live owner must not lose its number
        // because of this.
        Err(_) => true,
    }
}

/// The live participants of a host and their processes.
pub(super) fn participants(host: &Path) -> Result<BTreeMap<ParticipantId, i32>, FabricError> {
    participants_of(host, &file_names(host)?)
}

/// As [`participants`], when the names of the files are known.
pub(super) fn participants_of(
    host: &Path,
    names: &[String],
) -> Result<BTreeMap<ParticipantId, i32>, FabricError> {
    let mut alive = BTreeMap::new();
    for name in names {
        let Some(id) = file_owner(name).filter(|_| name.ends_with(".lock")) else {
            continue;
        };
        let path = host.join(name);
        let liveness = Liveness::open(&path).map_err(FabricError::io("open", &path))?;
        if let Some(pid) = liveness.and_then(|liveness| liveness.process()) {
            alive.insert(id, pid);
        }
    }
    Ok(alive)
}

/// The live participants of all hosts. The registry is locked, and dead participants were removed.
pub(crate) fn live_participants(hosts: &Path) -> Result<Vec<(Gid, ParticipantId)>, FabricError> {
    let mut all = Vec::new();
    for (gid, directory) in directories(hosts)? {
        all.extend(participants(&directory)?.into_keys().map(|id| (gid, id)));
    }
    Ok(all)
}

/// Wakes the device of a participant, if it has one.
pub(super) fn wake(host: &Path, address: Address) {
    // It may have ended by now, or be incomplete; then it reads the file itself.
    if let Ok(Some(segment)) = Segment::open(&device_path(host, address.id), address) {
        segment.wake();
    }
}

/// Wakes all processes that have opened a device, so that they check for requests of others.
pub(crate) fn wake_all(host: &Path, gid: Gid) -> Result<(), FabricError> {
    for id in participants(host)?.into_keys() {
        wake(host, Address { gid, id });
    }
    Ok(())
}

/// The network options of a host's device, as declared by the first process that opened the
/// device.
pub(crate) fn network_of(host: &Path, gid: Gid) -> Option<NetworkOptions> {
    participants(host).ok()?.into_keys().find_map(|id| {
        let segment = Segment::open(&device_path(host, id), Address { gid, id }).ok()??;
        segment.network().ok()
    })
}

/// Removes the files of dead participants, and hosts without live ones. The registry is locked.
pub(crate) fn remove_dead(hosts: &Path) -> Result<(), FabricError> {
    for (gid, directory) in directories(hosts)? {
        remove_dead_of(&directory, gid)?;
    }
    Ok(())
}

/// The state of a device after its dead participants were removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CleanupResult {
    /// It has live participants.
    Device,
    /// It had no live participants and was removed as well.
    Nothing,
}

/// As [`remove_dead`], for one device.
///
/// A directory inside a host's directory does not belong to the fabric. It remains, and so does the
/// directory around it; a host that is created again uses the existing directory.
pub(crate) fn remove_dead_of(directory: &Path, gid: Gid) -> Result<CleanupResult, FabricError> {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
    let names = file_names(directory)?;
    let alive = participants_of(directory, &names)?;
    let is_of_the_dead = |name: &String| match file_owner(name) {
        Some(owner) => !alive.contains_key(&owner),
        None => alive.is_empty(),
    };
    // This is by far the most common case. A table is cleared before the files that reveal the dead
    // participants are removed.
    if !alive.is_empty() && !names.iter().any(is_of_the_dead) {
        return Ok(CleanupResult::Device);
    }
    // An unreadable table does not prevent the removal of a dead host. The table of a live host is
    // reported to the next process that enters the host.
    let table = HostTable::open(&table_path(directory), gid).ok().flatten();
    if let Some(table) = &table {
        if alive.is_empty() {
            table.retire();
        }
        table
            .numbers()
            .release_all(|owner| !alive.contains_key(&owner));
    }
    for name in names.iter().filter(|name| is_of_the_dead(name)) {
        let path = directory.join(name);
        if is_directory(&path) {
            continue;
        }
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            // A participant that leaves in order removes its files without the registry.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(FabricError::io("remove", &path)(error)),
        }
    }
    if !alive.is_empty() {
        return Ok(CleanupResult::Device);
    }
    match std::fs::remove_dir(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        Err(error) => return Err(FabricError::io("remove", directory)(error)),
    }
    Ok(CleanupResult::Nothing)
}
