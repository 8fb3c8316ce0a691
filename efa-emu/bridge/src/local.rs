//! The devices of this machine, and its rules of faults, which the others are told of.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use efa_device_model::profile::Profile;
use efa_shm::remote::{Alarm, RemoteDevice};
use efa_shm::{DEFAULT_PROFILE, Fabric, FabricError, HostStatus};
use efa_wire::Status;
use efa_wire::address::Gid;

use crate::frames::{Device, Rule};

/// How often to look whether a host has come or gone.
const LOOK: Duration = Duration::from_millis(5);

/// How often to look at all hosts at most: some end without a trace in the directory's time, and
/// some tell more of themselves later.
const LOOK_AT_ALL: Duration = Duration::from_millis(500);

/// The part of the time that goes into such looks at most is one in so many.
const LOOKING: u32 = 200;

/// Changes within this time may have the same time in the file system.
const CLOCK_TICK: Duration = Duration::from_millis(20);

/// The devices of this machine.
pub(crate) struct Local {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    news: News,
    alarms: Vec<Alarm>,
}

/// The announcement to other machines.
#[derive(Clone, Default)]
pub(crate) struct News {
    /// A larger number, a newer list.
    pub(crate) number: u64,
    pub(crate) devices: Arc<Vec<Device>>,
    /// Their GIDs.
    pub(crate) gids: Arc<HashSet<Gid>>,
    pub(crate) faults: Arc<Vec<Rule>>,
    /// The generation of the rules.
    pub(crate) generation: u64,
}

impl Local {
    pub(crate) fn new() -> Local {
        Local {
            known: Mutex::default(),
        }
    }

    /// The latest announcement.
    pub(crate) fn news(&self) -> News {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.news.clone()
    }

    /// Rings when the list changes.
    pub(crate) fn tell(&self, alarm: Alarm) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.alarms.push(alarm);
    }

    /// Follows the fabric for ever. `complain` is told what is wrong, once; `mark_if_known` marks a
    /// device that all other machines know of, and returns the generation of the rules of which
    /// they know.
    pub(crate) fn follow(
        &self,
        fabric: &Fabric,
        complain: impl Fn(&str),
        mark_if_known: impl Fn(Gid) -> Option<u64>,
    ) -> ! {
        let mut marked: HashMap<Gid, u64> = HashMap::new();
        let mut seen = None;
        // When the next look at all hosts is due.
        let mut due = Instant::now();
        let mut trouble = String::new();
        loop {
            let changed = (fabric.changed(), fabric.fault_generation());
            let is_recent = |changed: std::time::SystemTime| {
                changed.elapsed().is_ok_and(|age| age < CLOCK_TICK)
            };
            if Some(changed) != seen || changed.0.is_some_and(is_recent) || due <= Instant::now() {
                seen = Some(changed);
                let began = Instant::now();
                let looked = list(fabric);
                due = Instant::now() + LOOK_AT_ALL.max(LOOKING * began.elapsed());
                match looked {
                    Ok(news) => {
                        trouble.clear();
                        self.update(news);
                    }
                    Err(error) if error.to_string() == trouble => {}
                    Err(error) => {
                        trouble = error.to_string();
                        complain(&trouble);
                    }
                }
            }
            let News {
                gids, generation, ..
            } = self.news();
            marked.retain(|gid, _| gids.contains(gid));
            for gid in gids.iter().copied() {
                if marked.get(&gid).is_none_or(|known| *known < generation)
                    && let Some(known) = mark_if_known(gid)
                {
                    marked.insert(gid, known);
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Replaces the announcement, and numbers it anew.
    pub(crate) fn update(&self, news: News) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = known.news.devices != news.devices || known.news.faults != news.faults;
        let number = known.news.number + u64::from(is_new);
        // Rules of other machines change it, too, which is no news.
        known.news = News { number, ..news };
        if is_new {
            known.alarms.iter().for_each(Alarm::ring);
        }
    }
}

fn list(fabric: &Fabric) -> Result<News, FabricError> {
    // Without a host there is no directory, and none need be made to see that.
    if fabric.changed().is_none() {
        return Ok(News::default());
    }
    let hosts = fabric.hosts_of_this_machine()?.into_iter();
    let devices = hosts.map(|host| Device::from(&describe(fabric, host)));
    let devices: Vec<Device> = devices.collect();
    let (generation, faults) = fabric.faults_of_this_machine()?;
    Ok(News {
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

/// The status of a request to an unused queue pair number, in this profile.
fn nobody(profile: Option<&str>) -> Status {
    // A profile of a file is known by its name only.
    let named = profile.and_then(|name| Profile::named(name).ok());
    let profile = named.or_else(|| Profile::named(DEFAULT_PROFILE).ok());
    profile.map_or(Status::RemoteBadDestQpn, |profile| {
        profile.statuses.unknown_queue_pair
    })
}
