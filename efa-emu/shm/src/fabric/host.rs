//! Emulated hosts: who takes part in them, and the removal of what dead participants left.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use efa_core::address::{Gid, Qpn};

use super::directory::{Fabric, check_name, gid_from_name, private_directory};
use crate::error::{FabricError, Holds};
use crate::identity::config::NetworkOptions;
use crate::identity::device_name::DeviceName;
use crate::identity::qpn::{HostTable, ParticipantId, Purview, QpnChoice};
use crate::process::fork::HomeProcess;
use crate::process::lock::{Liveness, OwnLock};
use crate::transport::segment::{Address, Segment};
use crate::transport::switchboard;
use efa_device_model::device::Statistics;

/// This process's participation in a device of a host. The device exists as long as any process
/// takes part in it; dropping this value ends the participation, as the end of the process does.
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

/// A device of a live host, as `efa-emu ps` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostStatus {
    /// The device's name, which tells the host.
    pub name: DeviceName,
    /// The device's GID.
    pub gid: Gid,
    /// The name of the device's profile, as whoever made the host announced it
    /// ([`Fabric::enter_devices`]).
    pub profile: Option<String>,
    /// The live processes that take part in it, one entry per opened device and per `efa-emu run`.
    pub participants: Vec<ParticipantStatus>,
    /// What its devices have counted; see [`Host::statistics`].
    pub statistics: Statistics,
    /// The machine that the device is on, if it is another one. Its participant here is the process
    /// that stands for it.
    pub machine: Option<String>,
}

/// One participation of a process in a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParticipantStatus {
    /// The process, in the pid namespace of the caller; 0 if it has no number there.
    pub pid: i32,
    /// Whether the process opened the device.
    pub has_device: bool,
    /// Its queue pairs.
    pub queue_pairs: Vec<Qpn>,
}

/// All live hosts of the fabric `name`, ordered by their names.
pub fn list_hosts(name: &str) -> Result<Vec<HostStatus>, FabricError> {
    Fabric::open(name)?.hosts()
}

/// Where a participant's lock is.
pub(crate) fn lock_path(host: &Path, id: ParticipantId) -> PathBuf {
    host.join(format!("{}.lock", id.0))
}

/// Where a participant's shared segment is, if it opened a device.
pub(crate) fn device_path(host: &Path, id: ParticipantId) -> PathBuf {
    host.join(format!("{}.device", id.0))
}

/// Who is to record for a participant that asks for a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recorded {
    /// All processes of the host.
    Host,
    /// Those that the participant started: it is their run.
    Run,
}

impl Recorded {
    const fn kind(self) -> &'static str {
        match self {
            Recorded::Host => CAPTURE,
            Recorded::Run => RUN_CAPTURE,
        }
    }
}

/// The kinds of files into which devices record.
const CAPTURE: &str = "capture";
const RUN_CAPTURE: &str = "run-capture";

/// Where the capture is that a participant asked for.
fn capture_path(host: &Path, id: ParticipantId, recorded: Recorded) -> PathBuf {
    host.join(format!("{}.{}", id.0, recorded.kind()))
}

/// The captures that live participants of a host ask for, by participant: those of all processes,
/// and those of the processes that the participant `run` started.
pub(crate) fn requested_captures(
    host: &Path,
    run: Option<ParticipantId>,
) -> Vec<(ParticipantId, PathBuf)> {
    file_names(host)
        .unwrap_or_default()
        .iter()
        .filter_map(|name| Some((file_owner(name)?, kind_of_file(name)?, host.join(name))))
        .filter(|(id, kind, _)| *kind == CAPTURE || *kind == RUN_CAPTURE && Some(*id) == run)
        .filter(|(id, ..)| is_alive(host, *id))
        .map(|(id, _, path)| (id, path))
        .collect()
}

/// Where a participant's device says into which captures it records.
fn recording_path(host: &Path, id: ParticipantId) -> PathBuf {
    host.join(format!("{}.recording", id.0))
}

/// Where a participant prepares files that others then find whole.
fn draft_path(host: &Path, id: ParticipantId) -> PathBuf {
    host.join(format!("{}.draft", id.0))
}

/// Says that the device of the participant `id` records into the capture files with these inodes.
pub(crate) fn announce_recording(
    host: &Path,
    id: ParticipantId,
    inodes: impl Iterator<Item = u64>,
) -> io::Result<()> {
    let text: String = inodes.map(|inode| format!("{inode}\n")).collect();
    let draft = draft_path(host, id);
    std::fs::write(&draft, text)?;
    std::fs::rename(&draft, recording_path(host, id))
}

/// Whether the device of the participant `id` has said that it records into that file.
fn is_recording_into(host: &Path, id: ParticipantId, inode: u64) -> bool {
    let text = std::fs::read_to_string(recording_path(host, id)).unwrap_or_default();
    text.lines().any(|line| line.parse() == Ok(inode))
}

/// Where the name of a host's profile is.
fn profile_path(host: &Path) -> PathBuf {
    host.join("profile")
}

/// Reads the name of a host's profile; a file that holds no such name counts as none.
fn profile_of(host: &Path) -> Option<String> {
    let name = std::fs::read_to_string(profile_path(host)).ok()?;
    check_name("profile", &name).ok().map(|()| name)
}

/// Reads the statistics in a host's table, and asks the host's devices for more.
fn statistics_of(table: &HostTable) -> Statistics {
    let statistics = Statistics::from_values(&table.statistics());
    table.ask_for_statistics();
    statistics
}

/// Wakes the device of a participant, if it has one.
fn wake(host: &Path, address: Address) {
    // It may be gone by now, or not be complete yet; then it looks by itself.
    if let Ok(Some(segment)) = Segment::open(&device_path(host, address.id), address) {
        segment.wake();
    }
}

/// What the network does to what a host's device sends, as the first process has declared it that
/// has opened the device.
pub(crate) fn network_of(host: &Path, gid: Gid) -> Option<NetworkOptions> {
    participants(host).ok()?.into_keys().find_map(|id| {
        let segment = Segment::open(&device_path(host, id), Address { gid, id }).ok()??;
        segment.network().ok()
    })
}

/// Has all processes that have opened a device look at what others want of it.
pub(crate) fn wake_all(host: &Path, gid: Gid) -> Result<(), FabricError> {
    for id in participants(host)?.into_keys() {
        wake(host, Address { gid, id });
    }
    Ok(())
}

/// Where a host's table is.
pub(crate) fn table_path(host: &Path) -> PathBuf {
    host.join("table")
}

impl Host {
    /// Makes the caller a participant of the device with this name and GID if it is there; else
    /// returns `None`. The registry is locked.
    pub(crate) fn join(
        fabric: &Fabric,
        name: &DeviceName,
        gid: Gid,
    ) -> Result<Option<Host>, FabricError> {
        let directory = fabric.host_directory(gid);
        if !is_directory(&directory) || remove_dead_of(&directory, gid)? == Remains::Nothing {
            return Ok(None);
        }
        let found = KnownDevice::read(directory, gid)?;
        let joined = found.filter(|found| found.is(name) && !found.table.is_remote());
        joined.map(|found| found.participate(fabric)).transpose()
    }

    /// Makes the caller a participant of a device, which is made if it is not there, and is known
    /// then. `known` is all that is there. The registry is locked, and the dead are removed.
    pub(crate) fn enter(
        known: &mut Known,
        fabric: &Fabric,
        name: &DeviceName,
        gid: Option<Gid>,
        purview: Purview<'_>,
    ) -> Result<Host, FabricError> {
        let found = match known.named(name) {
            Some(found) if found.table.is_remote() || matches!(purview, Purview::Remote(_)) => {
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
                    None => preferred_numbers(name.host())
                        .map(|number| device_gid(number, name.index()))
                        .find(|gid| known.with_gid(*gid).is_none())
                        .expect("there are more GIDs than hosts"),
                };
                let directory = fabric.host_directory(gid);
                private_directory(&directory, Holds::OneFabric)?;
                let draft = directory.join("table.draft");
                let table = HostTable::create(&draft, name, gid, purview)?;
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
        found.participate(fabric)
    }

    /// Makes the caller a participant of all devices of a host, in their order; see
    /// [`Fabric::enter_devices`]. They are put into `entered` one by one, also if this fails in the
    /// end: whoever drops one has to have unlocked the registry. The registry is locked, and the
    /// dead are removed.
    pub(crate) fn enter_all(
        entered: &mut Vec<Host>,
        known: &mut Known,
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
        let number = preferred_numbers(&host)
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
            let purview = Purview::Own(queue_pairs);
            let device = Host::enter(known, fabric, &name, Some(gid), purview)?;
            entered.push(device);
            let device = &entered[entered.len() - 1];
            profile.map_or(Ok(()), |profile| device.announce_profile(profile))?;
        }
        Ok(())
    }

    /// The device's name, which tells the host.
    pub fn name(&self) -> &DeviceName {
        &self.name
    }

    /// The device's GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The number of this participation among those of the device.
    pub fn participant(&self) -> u32 {
        self.id.0
    }

    /// The fabric that the host is on.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// This participation.
    pub(crate) fn address(&self) -> Address {
        Address {
            gid: self.gid,
            id: self.id,
        }
    }

    /// Tells the other participants of which profile the host's devices are. The first announcement
    /// stays.
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

    /// Asks the host's devices to record what they send and receive, until this participation ends
    /// or [`Host::request_capture`] is called again, which begins a new file. Those that work
    /// notice within about a tenth of a second; [`Host::devices_not_recording`] tells, and wakes
    /// the others. Devices that are opened later record from their first frame on. Of each frame
    /// the first `snaplen` bytes are recorded. Returns the capture file, which all of them write.
    pub fn request_capture(
        &self,
        recorded: Recorded,
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
    /// ([`Recorded::Host`]) that this participation asked for last, in the pid namespace of the
    /// caller. Such devices are woken: one without work sleeps until something comes.
    pub fn devices_not_recording(&self) -> Result<Vec<i32>, FabricError> {
        let path = capture_path(&self.directory, self.id, Recorded::Host);
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

    /// Wakes the devices that have said that they record into the file with this inode, so that
    /// they look which one they are to record into: a device without work sleeps until something
    /// comes.
    pub fn wake_devices_recording_into(&self, inode: u64) -> Result<(), FabricError> {
        for id in participants(&self.directory)?.into_keys() {
            if is_recording_into(&self.directory, id, inode) {
                wake(&self.directory, Address { gid: self.gid, id });
            }
        }
        Ok(())
    }

    /// The live processes that have asked for a capture of the host.
    pub(crate) fn recording_processes(&self) -> Result<Vec<i32>, FabricError> {
        let alive = participants(&self.directory)?;
        let requested = requested_captures(&self.directory, None);
        let ids = requested.iter().map(|(id, _)| id);
        Ok(ids.filter_map(|id| alive.get(id).copied()).collect())
    }

    /// What the devices of the host have counted since it was made, as far as they have said; asks
    /// them to say more. Who calls this again and again is late by one call.
    pub fn statistics(&self) -> Statistics {
        statistics_of(&self.table)
    }

    /// What the host's devices share.
    pub(crate) fn table(&self) -> &Arc<HostTable> {
        &self.table
    }

    /// Where the files of the host's participants are.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where this participant's shared segment belongs.
    pub(crate) fn device_path(&self) -> PathBuf {
        device_path(&self.directory, self.id)
    }

    /// Takes a queue pair number that no other live queue pair of the host has: the preferred one
    /// if that is free.
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

    /// Gives a number back; queue pairs of other participants are not touched.
    pub(crate) fn release_qpn(&self, qpn: Qpn) {
        self.table.release(self.id, qpn);
    }
}

impl Host {
    /// Ends participations in a fabric's devices, all at once: one by one, each would look through
    /// what is left.
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

    /// Ends the participation, and leaves it to [`Fabric::sweep`] to remove the host if this was
    /// the last one: once for many that leave together.
    pub(crate) fn vacate(&mut self) {
        let Some(lock) = self.lock.take() else {
            return;
        };
        self.table.release_all(|owner| owner == self.id);
        let device = self.device_path();
        let _ = std::fs::remove_file(device.with_extension(switchboard::KIND));
        let _ = std::fs::remove_file(device);
        for recorded in [Recorded::Host, Recorded::Run] {
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

pub(crate) fn is_alive(host: &Path, id: ParticipantId) -> bool {
    match Liveness::open(&lock_path(host, id)) {
        Ok(Some(liveness)) => liveness.process().is_some(),
        Ok(None) => false,
        // Out of descriptors, say: a live owner must not lose its number over that.
        Err(_) => true,
    }
}

/// A device that is there.
#[derive(Clone)]
pub(crate) struct KnownDevice {
    name: DeviceName,
    gid: Gid,
    directory: PathBuf,
    table: Arc<HostTable>,
}

impl KnownDevice {
    /// Reads what a device's directory tells; `None` if it has no table.
    fn read(directory: PathBuf, gid: Gid) -> Result<Option<KnownDevice>, FabricError> {
        let table = HostTable::open(&table_path(&directory), gid)?;
        Ok(table.map(|table| KnownDevice {
            name: table.name(),
            gid,
            directory,
            table: Arc::new(table),
        }))
    }

    fn is(&self, name: &DeviceName) -> bool {
        (self.name.host(), self.name.index()) == (name.host(), name.index())
    }

    /// Makes the caller a participant. The registry is locked.
    fn participate(self, fabric: &Fabric) -> Result<Host, FabricError> {
        let id = self.table.next_participant();
        let lock = OwnLock::create(&lock_path(&self.directory, id))?;
        Ok(Host {
            fabric: fabric.clone(),
            directory: self.directory,
            name: self.name,
            gid: self.gid,
            table: self.table,
            id,
            lock: Some(lock),
            home: HomeProcess::current(),
        })
    }
}

/// The devices that are there.
#[derive(Default)]
pub(crate) struct Known {
    /// By host and index.
    devices: BTreeMap<(String, u32), KnownDevice>,
    by_gid: HashMap<Gid, (String, u32)>,
}

impl Known {
    /// All devices of a fabric. The registry is locked.
    pub(crate) fn read(hosts: &Path) -> Result<Known, FabricError> {
        let mut known = Known::default();
        for (gid, directory) in directories(hosts)? {
            if let Some(device) = KnownDevice::read(directory, gid)? {
                known.insert(device);
            }
        }
        Ok(known)
    }

    fn insert(&mut self, device: KnownDevice) {
        let key = (device.name.host().to_owned(), device.name.index());
        self.by_gid.insert(device.gid, key.clone());
        self.devices.insert(key, device);
    }

    fn named(&self, name: &DeviceName) -> Option<&KnownDevice> {
        self.devices.get(&(name.host().to_owned(), name.index()))
    }

    fn with_gid(&self, gid: Gid) -> Option<&KnownDevice> {
        self.devices.get(self.by_gid.get(&gid)?)
    }

    /// How many devices a host was made with, if any of them is there.
    fn devices_of(&self, host: &str) -> Option<u32> {
        let mut from = self.devices.range((host.to_owned(), 0)..);
        let (_, device) = from.next().filter(|((of, _), _)| of == host)?;
        Some(device.name.devices())
    }
}

/// How many hosts have GIDs of their own.
const NUMBERS: u32 = 1 << 24;

/// Bytes of the GIDs of emulated devices: link-local EUI-64 addresses, as real ports have them, of
/// locally administered MAC addresses. That of device D of host number H is `02:ef:a0+D:HH:HH:HH`.
const GID_START: [u8; 10] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0xef];
const FIRST_DEVICE: u8 = 0xa0;
const EUI_64: [u8; 2] = [0xff, 0xfe];

/// The GID of a device, by the number of its host and its index there.
fn device_gid(number: u32, index: u32) -> Gid {
    debug_assert!(number < NUMBERS && index < DeviceName::MOST);
    let mut gid = [0; 16];
    gid[..10].copy_from_slice(&GID_START);
    gid[10] = FIRST_DEVICE + index as u8;
    gid[11..13].copy_from_slice(&EUI_64);
    gid[13..].copy_from_slice(&number.to_be_bytes()[1..]);
    Gid(gid)
}

/// Returns whether a GID is one of those that emulated devices get.
pub fn is_emulated(gid: Gid) -> bool {
    let Gid(bytes) = gid;
    let devices = FIRST_DEVICE..FIRST_DEVICE + DeviceName::MOST as u8;
    bytes[..10] == GID_START && devices.contains(&bytes[10]) && bytes[11..13] == EUI_64
}

/// Numbers for a host in the order in which they should be tried. `host-N` prefers the number N;
/// other names a number from 0x100000 on that depends on nothing but the name, so that a host that
/// comes back keeps its GIDs.
fn preferred_numbers(name: &str) -> impl Iterator<Item = u32> {
    let first = match name
        .strip_prefix("host-")
        .and_then(|n| n.parse::<u32>().ok())
    {
        Some(number) if number < 0x10_0000 => number,
        // FNV-1a, folded to 20 bits.
        _ => {
            let hash = name.bytes().fold(0x811c_9dc5u32, |hash, byte| {
                (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
            });
            0x10_0000 + ((hash >> 20) ^ hash) % (NUMBERS - 0x10_0000)
        }
    };
    (0..NUMBERS).map(move |step| (first + step) % NUMBERS)
}

/// The directories of the hosts, live or not.
fn directories(hosts: &Path) -> Result<Vec<(Gid, PathBuf)>, FabricError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(hosts).map_err(FabricError::io("list", hosts))? {
        let entry = entry.map_err(FabricError::io("list", hosts))?;
        if let Some(gid) = entry.file_name().to_str().and_then(gid_from_name) {
            found.push((gid, entry.path()));
        }
    }
    Ok(found)
}

/// The participant that a file of this name in a host's directory belongs to.
fn file_owner(name: &str) -> Option<ParticipantId> {
    let (id, _) = name.split_once('.')?;
    let id = id.parse().ok().filter(|id| *id != 0)?;
    let is_owned = matches!(
        kind_of_file(name)?,
        "lock" | "device" | switchboard::KIND | CAPTURE | RUN_CAPTURE | "recording" | "draft"
    );
    is_owned.then_some(ParticipantId(id))
}

/// What a file of this name in a host's directory is, if it belongs to a participant.
fn kind_of_file(name: &str) -> Option<&str> {
    name.split_once('.').map(|(_, kind)| kind)
}

/// The live participants of a host and the processes that they are.
fn participants(host: &Path) -> Result<BTreeMap<ParticipantId, i32>, FabricError> {
    participants_of(host, &file_names(host)?)
}

/// As [`participants`], when the names of the files are known.
fn participants_of(
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

/// The live participants of all hosts. The registry is locked, and the dead are removed.
pub(crate) fn live_participants(hosts: &Path) -> Result<Vec<(Gid, ParticipantId)>, FabricError> {
    let mut all = Vec::new();
    for (gid, directory) in directories(hosts)? {
        all.extend(participants(&directory)?.into_keys().map(|id| (gid, id)));
    }
    Ok(all)
}

fn file_names(directory: &Path) -> Result<Vec<String>, FabricError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(FabricError::io("list", directory))? {
        let entry = entry.map_err(FabricError::io("list", directory))?;
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

/// Removes the files of dead participants, and hosts without live ones. The registry is locked.
pub(crate) fn remove_dead(hosts: &Path) -> Result<(), FabricError> {
    for (gid, directory) in directories(hosts)? {
        remove_dead_of(&directory, gid)?;
    }
    Ok(())
}

/// What there is of a device when its dead participants are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remains {
    /// It has live ones.
    Device,
    /// It had no live ones and is gone, too.
    Nothing,
}

/// As [`remove_dead`], for one device.
///
/// A directory inside a host's directory is none of ours. It stays, and so does the directory
/// around it; a host that comes back uses that again.
pub(crate) fn remove_dead_of(directory: &Path, gid: Gid) -> Result<Remains, FabricError> {
    #[cfg(test)]
    tests::LOOKS.set(tests::LOOKS.get() + 1);
    let names = file_names(directory)?;
    let alive = participants_of(directory, &names)?;
    let is_of_the_dead = |name: &String| match file_owner(name) {
        Some(owner) => !alive.contains_key(&owner),
        None => alive.is_empty(),
    };
    // So it is with nearly all of them, nearly always. A table is cleared before the files go that
    // tell of the dead.
    if !alive.is_empty() && !names.iter().any(is_of_the_dead) {
        return Ok(Remains::Device);
    }
    // A table that cannot be read does not prevent the removal of a dead host. That of a live host
    // is reported to the next process that enters the host.
    let table = HostTable::open(&table_path(directory), gid).ok().flatten();
    if let Some(table) = &table {
        if alive.is_empty() {
            table.retire();
        }
        table.release_all(|owner| !alive.contains_key(&owner));
    }
    for name in names.iter().filter(|name| is_of_the_dead(name)) {
        let path = directory.join(name);
        if is_directory(&path) {
            continue;
        }
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            // An orderly leaver removes its own files without the registry.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(FabricError::io("remove", &path)(error)),
        }
    }
    if !alive.is_empty() {
        return Ok(Remains::Device);
    }
    match std::fs::remove_dir(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        Err(error) => return Err(FabricError::io("remove", directory)(error)),
    }
    Ok(Remains::Nothing)
}

/// Returns whether `path` itself, not what a link points to, is a directory.
fn is_directory(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Whose hosts are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Listed {
    All,
    /// Those that are not on another machine.
    OfThisMachine,
}

/// Describes live hosts. The registry is locked, and the dead are removed.
pub(crate) fn list(hosts: &Path, listed: Listed) -> Result<Vec<HostStatus>, FabricError> {
    let mut list = Vec::new();
    for (gid, directory) in directories(hosts)? {
        let Some(table) = HostTable::open(&table_path(&directory), gid)? else {
            continue;
        };
        if table.is_remote() && listed == Listed::OfThisMachine {
            continue;
        }
        let owned: Vec<_> = table.owned().collect();
        let participants = participants(&directory)?
            .into_iter()
            .map(|(id, pid)| ParticipantStatus {
                pid,
                has_device: device_path(&directory, id).exists(),
                queue_pairs: owned
                    .iter()
                    .filter(|_| !table.is_remote())
                    .filter(|(_, owner)| *owner == id)
                    .map(|(qpn, _)| *qpn)
                    .collect(),
            })
            .collect();
        list.push(HostStatus {
            name: table.name(),
            gid,
            profile: profile_of(&directory),
            participants,
            statistics: statistics_of(&table),
            machine: table.machine(),
        });
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;
    use crate::link::staged::PortRules;
    use efa_device_model::profile::Profile;
    use efa_device_model::qpn_policy::QpnPolicy;

    thread_local! {
        /// How many devices were looked at for what dead processes left.
        pub(super) static LOOKS: Cell<usize> = const { Cell::new(0) };
    }

    fn fabric(root: &tempfile::TempDir) -> Fabric {
        Fabric::open_below(root.path(), "lab").unwrap()
    }

    #[test]
    fn hosts_have_names_gids_and_an_end() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let first = fabric.enter_host(None, None, 64).unwrap();
        let second = fabric.enter_host(None, None, 64).unwrap();
        let joined = fabric.enter_host(Some("host-1"), None, 64).unwrap();
        let named = fabric.enter_host(Some("alpha"), None, 64).unwrap();
        assert_eq!(first.name(), "host-1");
        assert_eq!(second.name(), "host-2");
        assert_eq!(first.gid().to_string(), "fe80::ef:a0ff:fe00:1");
        assert_eq!(joined.gid(), first.gid());
        let alpha = named.gid();
        assert!(![first.gid(), second.gid()].contains(&alpha));

        let mut lowest = QpnChoice::new(QpnPolicy::Lowest, 0);
        assert_eq!(first.take_qpn(&mut lowest, None).unwrap(), Qpn(2));
        assert_eq!(joined.take_qpn(&mut lowest, None).unwrap(), Qpn(3));
        assert_eq!(second.take_qpn(&mut lowest, None).unwrap(), Qpn(2));
        let list = fabric.hosts().unwrap();
        let names: Vec<_> = list.iter().map(|host| host.name.to_string()).collect();
        assert_eq!(names, ["alpha", "host-1", "host-2"]);
        let me = std::process::id() as i32;
        let expected = |qpn| ParticipantStatus {
            pid: me,
            has_device: false,
            queue_pairs: vec![Qpn(qpn)],
        };
        assert_eq!(list[1].participants, [expected(2), expected(3)]);

        drop(first);
        assert_eq!(
            joined.take_qpn(&mut lowest, None).unwrap(),
            Qpn(2),
            "its numbers went with it"
        );
        drop(named);
        assert_eq!(
            fabric.enter_host(Some("alpha"), None, 64).unwrap().gid(),
            alpha
        );
        drop((second, joined));
        assert_eq!(
            std::fs::read_dir(root.path()).unwrap().count(),
            0,
            "nothing is left"
        );
    }

    #[test]
    fn a_host_has_its_profile_before_being_visible() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let profile = &Profile::all()[0];
        let enter = |hosts: &Path| {
            let (mut entered, mut known) = (Vec::new(), Known::read(hosts)?);
            let name = Some(profile.name);
            Host::enter_all(&mut entered, &mut known, &fabric, None, Some(2), 64, name)?;
            Ok((entered, list(hosts, Listed::All)?))
        };
        // The registry is not read while it is locked.
        let (_entered, seen) = fabric.with_registry(enter).unwrap();
        let profiles: Vec<_> = seen.iter().map(|host| host.profile.as_deref()).collect();
        assert_eq!(profiles, [Some(profile.name); 2]);
    }

    /// How many devices were looked at for the dead while `work` ran.
    fn looks(work: impl FnOnce()) -> usize {
        let before = LOOKS.get();
        work();
        LOOKS.get() - before
    }

    fn names(hosts: usize) -> Vec<String> {
        (0..hosts).map(|number| format!("node{number}")).collect()
    }

    /// Else a cluster of many hosts would take the time of the square of their number to begin and
    /// to end, and so would a job there.
    #[test]
    fn joining_and_leaving_scan_no_other_hosts() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let profile = &Profile::all()[0];
        for hosts in [3, 30] {
            let mut entered = Vec::new();
            let looked = looks(|| {
                entered = fabric.enter_hosts(&names(hosts), Some(4), profile).unwrap();
            });
            assert_eq!(looked, 0, "there were no devices before");
            let devices = || entered.iter().flatten();
            let looked = looks(|| {
                let patience = Duration::from_secs(60);
                let missing = fabric.wait_for_recorders(devices(), patience).unwrap();
                assert!(missing.is_none());
                let missing = fabric.wait_for_bridges(devices(), patience).unwrap();
                assert!(missing.is_none());
                PortRules::of(&fabric).unwrap();
            });
            assert_eq!(looked, 0);
            let device = &entered[1][2];
            let mut program = None;
            let looked = looks(|| {
                let opened = Fabric::open_below(root.path(), "lab").unwrap();
                let entered = opened.enter_device(device.name(), Some(device.gid()), 64);
                program = Some(entered.unwrap());
            });
            assert_eq!(looked, 1, "its own");
            assert_eq!(looks(|| drop(program)), 1, "its own");
            let devices = devices().count();
            let looked = looks(|| Host::leave_all(entered.into_iter().flatten()));
            assert_eq!(looked, devices, "each once");
            assert!(!fabric.directory().exists());
        }
    }

    /// Ends a participation as a kill does: what was there stays.
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

        // Whoever leaves a device to others does not look at the dead elsewhere; the last one does.
        let dead = fabric.host_directory(kill(enter("gamma", None)));
        drop(enter("beta", other));
        assert!(dead.exists());
        drop(beta);
        assert!(!dead.exists());
        assert_eq!(fabric.hosts().unwrap().len(), 1);
    }

    #[test]
    fn who_cannot_enter_all_devices_enters_none() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let _living = fabric.enter_host(Some("living"), None, 64).unwrap();
        // Not ours, since others can write to it.
        let number = preferred_numbers("node1").next().unwrap();
        let in_the_way = fabric.host_directory(device_gid(number, 1));
        std::fs::create_dir_all(in_the_way.join("notes")).unwrap();
        std::fs::set_permissions(&in_the_way, std::fs::Permissions::from_mode(0o770)).unwrap();
        let profile = &Profile::all()[0];
        let error = fabric.enter_hosts(&names(3), Some(2), profile).unwrap_err();
        assert!(
            matches!(error, FabricError::WritableByOthers { .. }),
            "{error}"
        );
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

    #[test]
    fn a_gid_belongs_to_one_live_host() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let gid = Gid([9; 16]);
        let alpha = fabric.enter_host(Some("alpha"), Some(gid), 64).unwrap();
        let error = fabric.enter_host(Some("beta"), Some(gid), 64).unwrap_err();
        assert!(error.to_string().contains("\"alpha\""), "{error}");
        let error = fabric
            .enter_host(Some("alpha"), Some(Gid([8; 16])), 64)
            .unwrap_err();
        assert!(matches!(error, FabricError::GidTaken { .. }), "{error}");
        drop(alpha);
        fabric.enter_host(Some("beta"), Some(gid), 64).unwrap();
    }

    #[test]
    fn devices_of_a_host_share_names_and_gids() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let gids = |devices: &[Host]| -> Vec<_> {
            let gids = devices.iter().map(|device| device.gid().to_string());
            gids.collect()
        };
        let two = fabric
            .enter_devices(None, Some(2), &Profile::all()[0])
            .unwrap();
        assert_eq!(gids(&two), ["fe80::ef:a0ff:fe00:1", "fe80::ef:a1ff:fe00:1"]);
        // Whoever joins gets what there is, also if only a part of it is left.
        let joined = fabric
            .enter_devices(Some("host-1"), None, &Profile::all()[0])
            .unwrap();
        assert_eq!(gids(&joined), gids(&two));
        for wanted in [1, 3] {
            let refused = fabric.enter_devices(Some("host-1"), Some(wanted), &Profile::all()[0]);
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("host-1") && error.contains('2'), "{error}");
        }
        let [first, second] = <[Host; 2]>::try_from(two).unwrap();
        drop((first, joined));
        let names = || -> Vec<_> {
            let hosts = fabric.hosts().unwrap();
            hosts.iter().map(|host| host.name.to_string()).collect()
        };
        assert_eq!(names(), ["host-1:1"]);
        let again = fabric
            .enter_devices(Some("host-1"), None, &Profile::all()[0])
            .unwrap();
        assert_eq!(gids(&again)[1], second.gid().to_string());
        assert_eq!(names(), ["host-1:0", "host-1:1"]);

        // A host whose name is free is not always one whose GIDs are.
        let squatted = device_gid(2, 1);
        let _squatter = fabric.enter_host(Some("x"), Some(squatted), 64).unwrap();
        let third = fabric
            .enter_devices(None, Some(32), &Profile::all()[0])
            .unwrap();
        assert_eq!(third[0].name(), "host-2:0");
        assert_eq!(third[0].gid(), device_gid(3, 0));
        assert_eq!(third[31].gid().to_string(), "fe80::ef:bfff:fe00:3");
        assert!(third.iter().all(|device| is_emulated(device.gid())));
        for other in [0x9f, 0xc0] {
            let Gid(mut gid) = third[0].gid();
            gid[10] = other;
            assert!(!is_emulated(Gid(gid)));
        }
    }

    #[test]
    fn colliding_names_get_different_gids() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let mut numbers = preferred_numbers("alpha");
        let wanted = device_gid(numbers.next().unwrap(), 0);
        let _squatter = fabric
            .enter_host(Some("squatter"), Some(wanted), 64)
            .unwrap();
        let alpha = fabric.enter_host(Some("alpha"), None, 64).unwrap();
        assert_eq!(alpha.gid(), device_gid(numbers.next().unwrap(), 0));
    }

    #[test]
    fn foreign_files_are_ignored_foreign_names_refused() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        for name in ["", ".", "..", "a/b", "a b", &"x".repeat(64), "ü"] {
            let error = fabric.enter_host(Some(name), None, 64).unwrap_err();
            assert!(
                matches!(error, FabricError::InvalidName { what: "host", .. }),
                "{error}"
            );
            assert!(
                fabric
                    .enter_devices(Some(name), None, &Profile::all()[0])
                    .is_err()
            );
            let error = Fabric::open_below(root.path(), name).unwrap_err();
            assert!(
                matches!(error, FabricError::InvalidName { what: "fabric", .. }),
                "{error}"
            );
        }
        // Folders, also with the names of our files, in a live host's directory and in a dead
        // one's.
        let strangers = ["notes", "7.lock", "8.device"];
        let alpha = fabric.enter_host(Some("alpha"), None, 64).unwrap();
        let directory = alpha.directory().to_owned();
        for stranger in strangers {
            std::fs::create_dir(directory.join(stranger)).unwrap();
        }
        let beta = fabric.enter_host(Some("beta"), None, 64).unwrap();
        assert_eq!(fabric.hosts().unwrap().len(), 2);
        drop(alpha);
        assert_eq!(
            fabric.hosts().unwrap().len(),
            1,
            "it has ended all the same"
        );
        let alpha = fabric.enter_host(Some("alpha"), None, 64).unwrap();
        assert_eq!(alpha.directory(), directory, "it comes back to its GID");
        assert_eq!(fabric.hosts().unwrap().len(), 2);
        drop((alpha, beta));
        let mut left = file_names(&directory).unwrap();
        left.sort();
        assert_eq!(left, ["7.lock", "8.device", "notes"], "nobody's but theirs");

        assert_eq!(file_owner("12.lock"), Some(ParticipantId(12)));
        for name in ["0.lock", "x.lock", "1.", "1", "table", "-1.device"] {
            assert_eq!(file_owner(name), None, "{name}");
        }
    }
}
