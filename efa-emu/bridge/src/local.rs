//! The devices and fault rules of this machine, which are announced to the others.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use efa_device_model::profile::Profile;
use efa_shm::remote::{Alarm, RemoteDevice};
use efa_shm::{DEFAULT_PROFILE, Fabric, FabricError, HostStatus};
use efa_wire::Status;
use efa_wire::address::Gid;

use crate::frames::{Device, Rule};

/// Interval of checks whether a host was added or removed.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Longest interval between checks of all hosts: some end without a change of the directory's time,
/// and some publish more later.
const SCAN_INTERVAL: Duration = Duration::from_millis(500);

/// At most one in this many parts of the time is spent on these checks.
const SCAN_SHARE: u32 = 200;

/// Changes within this time may have the same time in the file system.
const CLOCK_TICK: Duration = Duration::from_millis(20);

/// The devices of this machine.
pub(crate) struct LocalDevices {
    known: Mutex<LocalState>,
}

#[derive(Default)]
struct LocalState {
    device_list: DeviceList,
    alarms: Vec<Alarm>,
}

/// The announcement to other machines.
#[derive(Clone, Default)]
pub(crate) struct DeviceList {
    /// A larger number means a newer list.
    pub(crate) number: u64,
    pub(crate) devices: Arc<Vec<Device>>,
    /// Their GIDs.
    pub(crate) gids: Arc<HashSet<Gid>>,
    pub(crate) faults: Arc<Vec<Rule>>,
    /// The generation of the rules.
    pub(crate) generation: u64,
}

impl LocalDevices {
    pub(crate) fn new() -> LocalDevices {
        LocalDevices {
            known: Mutex::default(),
        }
    }

    /// The latest announcement.
    pub(crate) fn device_list(&self) -> DeviceList {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.device_list.clone()
    }

    /// Rings the alarm when the list changes.
    pub(crate) fn add_alarm(&self, alarm: Alarm) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.alarms.push(alarm);
    }

    /// Follows the fabric forever. `complain` is called once for each problem. `mark_if_known`
    /// marks a device that was announced to all other machines, and returns the generation of the
    /// rules that were announced to them.
    pub(crate) fn follow(
        &self,
        fabric: &Fabric,
        complain: impl Fn(&str),
        mark_if_known: impl Fn(Gid) -> Option<u64>,
    ) -> ! {
        let mut marked: HashMap<Gid, u64> = HashMap::new();
        let mut seen = None;
        // The time of the next check of all hosts.
        let mut due = Instant::now();
        let mut last_error = String::new();
        loop {
            let changed = (fabric.changed(), fabric.fault_generation());
            let is_recent = |changed: std::time::SystemTime| {
                changed.elapsed().is_ok_and(|age| age < CLOCK_TICK)
            };
            if Some(changed) != seen || changed.0.is_some_and(is_recent) || due <= Instant::now() {
                seen = Some(changed);
                let began = Instant::now();
                let devices = list(fabric);
                due = Instant::now() + SCAN_INTERVAL.max(SCAN_SHARE * began.elapsed());
                match devices {
                    Ok(device_list) => {
                        last_error.clear();
                        self.update(device_list);
                    }
                    Err(error) if error.to_string() == last_error => {}
                    Err(error) => {
                        last_error = error.to_string();
                        complain(&last_error);
                    }
                }
            }
            let DeviceList {
                gids, generation, ..
            } = self.device_list();
            marked.retain(|gid, _| gids.contains(gid));
            for gid in gids.iter().copied() {
                if marked.get(&gid).is_none_or(|known| *known < generation)
                    && let Some(known) = mark_if_known(gid)
                {
                    marked.insert(gid, known);
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Replaces the announcement, and assigns it a new number.
    pub(crate) fn update(&self, device_list: DeviceList) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = known.device_list.devices != device_list.devices
            || known.device_list.faults != device_list.faults;
        let number = known.device_list.number + u64::from(is_new);
        // The generation also changes with the rules of other machines, which are not announced.
        known.device_list = DeviceList {
            number,
            ..device_list
        };
        if is_new {
            known.alarms.iter().for_each(Alarm::ring);
        }
    }
}

fn list(fabric: &Fabric) -> Result<DeviceList, FabricError> {
    // Without a host there is no directory, and this must not create one.
    if fabric.changed().is_none() {
        return Ok(DeviceList::default());
    }
    let hosts = fabric.hosts_of_this_machine()?.into_iter();
    let devices = hosts.map(|host| Device::from(&describe(fabric, host)));
    let devices: Vec<Device> = devices.collect();
    let (generation, faults) = fabric.faults_of_this_machine()?;
    Ok(DeviceList {
        number: 0,
        gids: Arc::new(devices.iter().map(Device::gid).collect()),
        devices: Arc::new(devices),
        faults: Arc::new(faults.into_iter().map(Rule::from).collect()),
        generation,
    })
}

fn describe(fabric: &Fabric, host: HostStatus) -> RemoteDevice {
    RemoteDevice {
        nobody: nobody(host.profile.as_deref()),
        network: fabric.network_of(host.gid).unwrap_or_default(),
        name: host.name,
        gid: host.gid,
        profile: host.profile,
    }
}

/// The status of a request to an unused queue pair number in this profile.
fn nobody(profile: Option<&str>) -> Status {
    // The fabric contains only the name of a profile from a file.
    let named = profile.and_then(|name| Profile::named(name).ok());
    let profile = named.or_else(|| Profile::named(DEFAULT_PROFILE).ok());
    profile.map_or(Status::RemoteBadDestQpn, |profile| {
        profile.statuses.unknown_queue_pair
    })
}
