//! The devices of this machine, which the others are told of.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use efa_core::address::Gid;
use efa_core::nic::Status;
use efa_emu::profile::Profile;
use efa_emu::transport::remote::{Alarm, RemoteDevice};
use efa_emu::transport::{DEFAULT_PROFILE, Fabric, FabricError, HostStatus};

use crate::frames::Device;

/// How often to look whether a host has come or gone.
const LOOK: Duration = Duration::from_millis(5);

/// How often to look at all hosts: some end without a trace in the directory's time, and some tell more of
/// themselves later.
const LOOK_AT_ALL: Duration = Duration::from_millis(500);

/// Changes within this time may have the same time in the file system.
const CLOCK_TICK: Duration = Duration::from_millis(20);

/// The devices of this machine.
pub(crate) struct Local {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    number: u64,
    devices: Arc<Vec<Device>>,
    alarms: Vec<Alarm>,
}

impl Local {
    pub(crate) fn new() -> Local {
        Local {
            known: Mutex::default(),
        }
    }

    /// The list, and its number: a longer number, a newer list.
    pub(crate) fn devices(&self) -> (u64, Arc<Vec<Device>>) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (known.number, Arc::clone(&known.devices))
    }

    /// Rings when the list changes.
    pub(crate) fn tell(&self, alarm: Alarm) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.alarms.push(alarm);
    }

    /// Follows the fabric for ever. `complain` is told what is wrong, once; `mark_if_known`
    /// marks a device that all other machines know of.
    pub(crate) fn follow(
        &self,
        fabric: &Fabric,
        complain: impl Fn(&str),
        mark_if_known: impl Fn(Gid) -> bool,
    ) -> ! {
        let mut marked = HashSet::new();
        let mut seen = None;
        let mut looked: Option<Instant> = None;
        let mut trouble = String::new();
        loop {
            let changed = fabric.changed();
            let is_recent = |changed: std::time::SystemTime| {
                changed.elapsed().is_ok_and(|age| age < CLOCK_TICK)
            };
            if changed != seen
                || changed.is_some_and(is_recent)
                || looked.is_none_or(|looked| looked.elapsed() > LOOK_AT_ALL)
            {
                seen = changed;
                looked = Some(Instant::now());
                match list(fabric) {
                    Ok(devices) => {
                        trouble.clear();
                        self.update(devices);
                    }
                    Err(error) if error.to_string() == trouble => {}
                    Err(error) => {
                        trouble = error.to_string();
                        complain(&trouble);
                    }
                }
            }
            let (_, devices) = self.devices();
            marked.retain(|gid| devices.iter().any(|device| device.gid() == *gid));
            for gid in devices.iter().map(Device::gid) {
                if !marked.contains(&gid) && mark_if_known(gid) {
                    marked.insert(gid);
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    fn update(&self, devices: Vec<Device>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if *known.devices != devices {
            known.devices = Arc::new(devices);
            known.number += 1;
            known.alarms.iter().for_each(Alarm::ring);
        }
    }
}

fn list(fabric: &Fabric) -> Result<Vec<Device>, FabricError> {
    // Without a host there is no directory, and none need be made to see that.
    if fabric.changed().is_none() {
        return Ok(Vec::new());
    }
    let hosts = fabric.hosts()?;
    let here = hosts.into_iter().filter(|host| host.machine.is_none());
    Ok(here
        .map(|host| Device::from(&describe(fabric, host)))
        .collect())
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

/// What a device of this profile gets for a queue pair number that nobody has.
fn nobody(profile: Option<&str>) -> Status {
    // A profile of a file is known by its name only.
    let named = profile.and_then(|name| Profile::named(name).ok());
    let profile = named.or_else(|| Profile::named(DEFAULT_PROFILE).ok());
    profile.map_or(Status::RemoteBadDestQpn, |profile| {
        profile.statuses.unknown_queue_pair
    })
}
