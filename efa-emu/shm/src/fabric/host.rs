//! A process's participation in a device of an emulated host.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use efa_core::address::{Gid, Qpn};

use super::capture_files::{CaptureScope, capture_path, is_recording_into, requested_captures};
use super::directory::Fabric;
use super::gids::{device_gid, preferred_numbers};
use super::known::{KnownDevice, KnownDevices};
use super::participants::{CleanupResult, is_alive, participants, remove_dead_of, wake};
use super::paths::{
    check_name, device_path, draft_path, is_directory, lock_path, private_directory, profile_path,
    recording_path, table_path,
};
use super::status::statistics_of;
use crate::error::{DirectoryContent, FabricError};
use crate::identity::device_name::DeviceName;
use crate::identity::qpn::{HostTable, TableOwner};
use crate::process::fork::HomeProcess;
use crate::process::lock::OwnLock;
use crate::transport::doorbell_page;
use crate::transport::segment::Address;
use efa_device_model::device::Statistics;
use efa_lock_free::qpn::{ParticipantId, QpnChoice};

/// This process's participation in a device of a host. The device exists as long as any process
/// participates in it; dropping this value ends the participation, as the end of the process does.
#[derive(Debug)]
pub struct Host {
    fabric: Fabric,
    directory: PathBuf,
    name: DeviceName,
    gid: Gid,
    table: Arc<HostTable>,
    id: ParticipantId,
    /// `None` once the participation has ended.
    lock: Option<OwnLock>,
    home: HomeProcess,
}

impl Host {
    /// Makes the caller a participant of the device with this name and GID if it exists; otherwise
    /// returns `None`. The registry is locked.
    pub(crate) fn join(
        fabric: &Fabric,
        name: &DeviceName,
        gid: Gid,
    ) -> Result<Option<Host>, FabricError> {
        let directory = fabric.host_directory(gid);
        if !is_directory(&directory) || remove_dead_of(&directory, gid)? == CleanupResult::Nothing {
            return Ok(None);
        }
        let found = KnownDevice::read(directory, gid)?;
        let joined = found.filter(|found| found.is(name) && !found.table.is_remote());
        joined
            .map(|found| Host::participate(found, fabric))
            .transpose()
    }

    /// Makes the caller a participant of a device. If the device does not exist, it is created and
    /// added to `known`, which contains all existing devices. The registry is locked, and dead
    /// participants were removed.
    pub(crate) fn enter(
        known: &mut KnownDevices,
        fabric: &Fabric,
        name: &DeviceName,
        gid: Option<Gid>,
        owner: TableOwner<'_>,
    ) -> Result<Host, FabricError> {
        let found = match known.named(name) {
            Some(found) if found.table.is_remote() || matches!(owner, TableOwner::Remote(_)) => {
                return Err(FabricError::OnTwoMachines {
                    device: name.to_string(),
                    machine: found.table.machine(),
                });
            }
            Some(found) if gid.is_some_and(|gid| gid != found.gid) => {
                return Err(FabricError::GidTaken {
                    gid: found.gid,
                    owner: found.name.to_string(),
                });
            }
            Some(existing) => existing.clone(),
            None => {
                let gid = match gid {
                    Some(gid) => match known.with_gid(gid) {
                        Some(owner) => {
                            let owner = owner.name.to_string();
                            return Err(FabricError::GidTaken { gid, owner });
                        }
                        None => gid,
                    },
                    None => preferred_numbers(fabric.name(), name.host())
                        .map(|number| device_gid(number, name.index()))
                        .find(|gid| known.with_gid(*gid).is_none())
                        .expect("there are more GIDs than hosts"),
                };
                let directory = fabric.host_directory(gid);
                private_directory(&directory, DirectoryContent::OneFabric)?;
                let draft = directory.join("table.draft");
                let table = HostTable::create(&draft, name, gid, owner)?;
                std::fs::rename(&draft, table_path(&directory))
                    .map_err(FabricError::io("rename", &draft))?;
                let made = KnownDevice {
                    name: name.clone(),
                    gid,
                    directory,
                    table: Arc::new(table),
                };
                known.insert(made.clone());
                made
            }
        };
        Host::participate(found, fabric)
    }

    /// Makes the caller a participant. The registry is locked.
    fn participate(device: KnownDevice, fabric: &Fabric) -> Result<Host, FabricError> {
        let id = device.table.next_participant();
        let lock = OwnLock::create(&lock_path(&device.directory, id))?;
        Ok(Host {
            fabric: fabric.clone(),
            directory: device.directory,
            name: device.name,
            gid: device.gid,
            table: device.table,
            id,
            lock: Some(lock),
            home: HomeProcess::current(),
        })
    }

    /// Makes the caller a participant of all devices of a host, in their order; see
    /// [`Fabric::enter_devices`]. The participations are added to `entered` one by one, even if
    /// this fails later; the caller must unlock the registry before it drops one. The registry is
    /// locked, and the files of dead processes are removed.
    pub(crate) fn enter_all(
        entered: &mut Vec<Host>,
        known: &mut KnownDevices,
        fabric: &Fabric,
        name: Option<&str>,
        devices: Option<u32>,
        queue_pairs: u32,
        profile: Option<&str>,
    ) -> Result<(), FabricError> {
        let host = match name {
            Some(name) => name.to_owned(),
            None => (1..)
                .map(|number| format!("host-{number}"))
                .find(|host| known.devices_of(host).is_none())
                .expect("there are more numbers than hosts"),
        };
        let devices = match (known.devices_of(&host), devices) {
            (Some(has), Some(wanted)) if has != wanted => {
                return Err(FabricError::OtherDevices { host, has, wanted });
            }
            (Some(has), _) => has,
            (None, wanted) => wanted.unwrap_or(1),
        };
        let names = (0..devices).map(|index| DeviceName::new(&host, index, devices));
        // The GIDs of a host differ in the index only.
        let number = preferred_numbers(fabric.name(), &host)
            .find(|number| {
                names.clone().all(|name| {
                    let owner = known.with_gid(device_gid(*number, name.index()));
                    owner.is_none_or(|owner| owner.is(&name))
                })
            })
            .expect("there are more GIDs than hosts");
        for name in names {
            let gid = known
                .named(&name)
                .map_or_else(|| device_gid(number, name.index()), |existing| existing.gid);
            let owner = TableOwner::Own(queue_pairs);
            let device = Host::enter(known, fabric, &name, Some(gid), owner)?;
            entered.push(device);
            let device = &entered[entered.len() - 1];
            profile.map_or(Ok(()), |profile| device.announce_profile(profile))?;
        }
        Ok(())
    }

    /// The device's name, which contains the host's name.
    pub fn name(&self) -> &DeviceName {
        &self.name
    }

    /// The device's GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The number of this participation in the device.
    pub fn participant(&self) -> u32 {
        self.id.0
    }

    /// The fabric that the host is on.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    pub(crate) fn address(&self) -> Address {
        Address {
            gid: self.gid,
            id: self.id,
        }
    }

    /// Announces the profile of the host's devices to the other participants. The first
    /// announcement is kept.
    pub(crate) fn announce_profile(&self, profile: &str) -> Result<(), FabricError> {
        check_name("profile", profile)?;
        let draft = draft_path(&self.directory, self.id);
        std::fs::write(&draft, profile).map_err(FabricError::io("write", &draft))?;
        // Unlike a renaming, a link replaces nothing.
        let linked = std::fs::hard_link(&draft, profile_path(&self.directory));
        std::fs::remove_file(&draft).map_err(FabricError::io("remove", &draft))?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(FabricError::io("link", &draft)(error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the host's devices record their frames, until this participation ends or
    /// [`Host::request_capture`] is called again, which begins a new file. Active devices detect
    /// the request within about a tenth of a second; [`Host::devices_not_recording`] lists the
    /// remaining ones and wakes them. Devices that are opened later record from their first frame
    /// on. The first `snaplen` bytes of each frame are recorded. Returns the capture file, which
    /// all devices write.
    pub fn request_capture(
        &self,
        recorded: CaptureScope,
        interface: &efa_capture::Interface,
        snaplen: u32,
    ) -> Result<PathBuf, FabricError> {
        let path = capture_path(&self.directory, self.id, recorded);
        let draft = draft_path(&self.directory, self.id);
        efa_capture::create_shared(&draft, interface, snaplen)
            .map_err(FabricError::io("create", &draft))?;
        std::fs::rename(&draft, &path).map_err(FabricError::io("rename", &draft))?;
        Ok(path)
    }

    /// The live processes with devices that do not record into the file of all processes
    /// ([`CaptureScope::Host`]) that this participation requested last, in the pid namespace of the
    /// caller. Such devices are woken: a device without work sleeps until it is woken.
    pub fn devices_not_recording(&self) -> Result<Vec<i32>, FabricError> {
        let path = capture_path(&self.directory, self.id, CaptureScope::Host);
        let metadata = std::fs::metadata(&path).map_err(FabricError::io("stat", &path))?;
        let mut missing = Vec::new();
        for (id, pid) in participants(&self.directory)? {
            let device = device_path(&self.directory, id);
            if !device.exists() || is_recording_into(&self.directory, id, metadata.ino()) {
                continue;
            }
            missing.push(pid);
            wake(&self.directory, Address { gid: self.gid, id });
        }
        Ok(missing)
    }

    /// Wakes the devices that record into the file with this inode, so that they check which file
    /// to record into: an idle device sleeps until it receives a frame.
    pub fn wake_devices_recording_into(&self, inode: u64) -> Result<(), FabricError> {
        for id in participants(&self.directory)?.into_keys() {
            if is_recording_into(&self.directory, id, inode) {
                wake(&self.directory, Address { gid: self.gid, id });
            }
        }
        Ok(())
    }

    /// The live processes that have requested a capture of the host.
    pub(crate) fn recording_processes(&self) -> Result<Vec<i32>, FabricError> {
        let alive = participants(&self.directory)?;
        let requested = requested_captures(&self.directory, None);
        let ids = requested.iter().map(|(id, _)| id);
        Ok(ids.filter_map(|id| alive.get(id).copied()).collect())
    }

    /// The published counts of the host's devices since its creation. Also requests newer counts
    /// from the devices, so with repeated calls the result lags by one call.
    pub fn statistics(&self) -> Statistics {
        statistics_of(&self.table)
    }

    pub(crate) fn table(&self) -> &Arc<HostTable> {
        &self.table
    }

    /// The directory of the files of the host's participants.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The path for this participant's shared segment.
    pub(crate) fn device_path(&self) -> PathBuf {
        device_path(&self.directory, self.id)
    }

    /// Acquires a queue pair number that no other live queue pair of the host has: the preferred
    /// one if that is free.
    pub(crate) fn take_qpn(
        &self,
        choice: &mut QpnChoice,
        preferred: Option<Qpn>,
    ) -> Result<Qpn, FabricError> {
        let mut known = BTreeMap::from([(self.id, true)]);
        self.table.take(self.id, choice, preferred, &mut |id| {
            *known
                .entry(id)
                .or_insert_with(|| is_alive(&self.directory, id))
        })
    }

    /// Releases a number; queue pairs of other participants are not affected.
    pub(crate) fn release_qpn(&self, qpn: Qpn) {
        self.table.numbers().release(self.id, qpn);
    }
}

impl Host {
    /// Ends participations in a fabric's devices, all together. Ended individually, each would scan
    /// the remaining files.
    pub fn leave_all(hosts: impl IntoIterator<Item = Host>) {
        let mut fabric = None;
        for mut host in hosts {
            if host.home.is_current() && host.lock.is_some() {
                host.vacate();
                fabric.get_or_insert_with(|| host.fabric.clone());
            }
        }
        if let Some(fabric) = fabric {
            fabric.sweep();
        }
    }

    /// Ends the participation without removing the host. The caller calls [`Fabric::sweep`] for
    /// this, once for many participations that end together.
    pub(crate) fn vacate(&mut self) {
        let Some(lock) = self.lock.take() else {
            return;
        };
        self.table.numbers().release_all(|owner| owner == self.id);
        let device = self.device_path();
        let _ = std::fs::remove_file(device.with_extension(doorbell_page::KIND));
        let _ = std::fs::remove_file(device);
        for recorded in [CaptureScope::Host, CaptureScope::Run] {
            let _ = std::fs::remove_file(capture_path(&self.directory, self.id, recorded));
        }
        let _ = std::fs::remove_file(recording_path(&self.directory, self.id));
        let _ = std::fs::remove_file(lock.path());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.home.is_current() || self.lock.is_none() {
            return;
        }
        self.vacate();
        self.fabric.sweep_after(self.gid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(root: &tempfile::TempDir) -> Fabric {
        Fabric::open_below(root.path(), "lab").unwrap()
    }

    /// Ends a participation like a killed process: its files remain.
    fn kill(mut host: Host) -> Gid {
        let lock = host.lock.take().unwrap();
        drop(lock);
        host.gid
    }

    #[test]
    fn the_dead_are_in_nobodys_way() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let enter = |name: &str, gid| fabric.enter_host(Some(name), gid, 64).unwrap();
        let _living = enter("living", None);
        let other = Some(Gid([9; 16]));

        // The name is known, by another GID.
        let gid = kill(enter("alpha", None));
        let alpha = enter("alpha", other);
        assert!(!fabric.host_directory(gid).exists());
        kill(alpha);
        // The GID is known, by another name.
        let beta = enter("beta", other);
        assert_eq!(fabric.hosts().unwrap().len(), 2);
        kill(beta);
        // Both are.
        let beta = enter("beta", other);
        assert_eq!(fabric.hosts().unwrap()[0].participants.len(), 1);

        // Only the last process that leaves a device scans other devices for dead processes.
        let dead = fabric.host_directory(kill(enter("gamma", None)));
        drop(enter("beta", other));
        assert!(dead.exists());
        drop(beta);
        assert!(!dead.exists());
        assert_eq!(fabric.hosts().unwrap().len(), 1);
    }

    #[test]
    fn a_host_keeps_its_first_profile() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let host = fabric.enter_host(Some("alpha"), None, 64).unwrap();
        let profile = || fabric.hosts().unwrap()[0].profile.clone();
        assert_eq!(profile(), None);
        host.announce_profile("efa2").unwrap();
        host.announce_profile("efa3").unwrap();
        assert_eq!(profile().as_deref(), Some("efa2"));
        assert!(host.announce_profile("no/name").is_err());
        std::fs::write(profile_path(host.directory()), [0xff; 9]).unwrap();
        assert_eq!(profile(), None);
        drop(host);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
