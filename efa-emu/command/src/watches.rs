//! What happens in directories while a program runs: counters that are read, and endpoints of libfabric's
//! `shm` provider that appear. One descriptor tells of both, because the system limits their number for each
//! user, and a job has many runs.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use efa_core::address::Gid;
use efa_device_model::sysfs::{self, Rail};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::leftovers::{SHARED_MEMORY, queue_pair_of};

/// How long a program runs before directories are watched. The system takes 15 ms to close a descriptor that watched
/// any, which would be most of the time of a short program. A program that ends sooner has hardly read counters, and of
/// endpoints those are counted that it leaves behind.
const BEGIN: Duration = Duration::from_millis(20);

/// What has happened in the directories since the start.
pub(super) struct Watches {
    begin: Instant,
    watching: Watching,
    /// Where counters are.
    counters: Vec<PathBuf>,
    /// The GIDs of the host's devices.
    gids: Vec<Gid>,
    /// Endpoints of libfabric's `shm` provider on the host's devices that were there at the start.
    old_endpoints: HashSet<String>,
    new_endpoints: HashSet<String>,
}

enum Watching {
    NotYet,
    Since {
        events: OwnedFd,
        /// The watch of [`SHARED_MEMORY`].
        shared_memory: Option<i32>,
    },
    /// The system has no more of these descriptors: nothing is seen any more.
    Never,
}

impl Watches {
    /// Watches the tree of counters below `root`, and the shared memory of endpoints on devices with these
    /// GIDs.
    pub(super) fn open(root: &Path, gids: &[Gid]) -> Watches {
        let rails = Rail::all(gids.len() as u32);
        let counters = rails.flat_map(|rail| sysfs::counter_directories(root, rail));
        let mut watches = Watches {
            begin: Instant::now(),
            watching: Watching::NotYet,
            counters: counters.collect(),
            gids: gids.to_vec(),
            old_endpoints: HashSet::new(),
            new_endpoints: HashSet::new(),
        };
        watches.old_endpoints = watches.present_endpoints();
        watches
    }

    /// Takes what has happened since the last call, and returns whether any counter was read. What was read before
    /// directories are watched is not known.
    pub(super) fn turn(&mut self) -> bool {
        if self.due() == Some(Duration::ZERO) {
            self.begin_to_watch();
        }
        let Watching::Since {
            events,
            shared_memory,
        } = &self.watching
        else {
            return false;
        };
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(events, &mut room);
        let mut any_read = false;
        while let Ok(event) = reader.next() {
            any_read |= event.events().contains(ReadFlags::ACCESS);
            if Some(event.wd()) != *shared_memory {
                continue;
            }
            let name = event.file_name().map(|name| name.to_string_lossy());
            if let Some(name) = name
                && is_endpoint(name.as_ref().as_ref(), &self.gids)
            {
                self.new_endpoints.insert(name.into_owned());
            }
        }
        any_read
    }

    /// When [`Watches::turn`] has to be called to begin to watch, if it does not yet.
    pub(super) fn due(&self) -> Option<Duration> {
        matches!(self.watching, Watching::NotYet)
            .then(|| BEGIN.saturating_sub(self.begin.elapsed()))
    }

    /// How many endpoints of libfabric's `shm` provider on the host's devices have appeared so far.
    pub(super) fn shm_endpoints(&mut self) -> usize {
        self.turn();
        if matches!(self.watching, Watching::NotYet) {
            self.look_for_endpoints();
        }
        self.new_endpoints.len()
    }

    fn begin_to_watch(&mut self) {
        let Ok(events) = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) else {
            self.watching = Watching::Never;
            return;
        };
        let shared_memory = inotify::add_watch(&events, SHARED_MEMORY, WatchFlags::CREATE).ok();
        for directory in &self.counters {
            // This process opens and writes the files, and reads none. What cannot be watched is updated seldom.
            if let Ok(directory) = fs::canonicalize(directory) {
                let _ = inotify::add_watch(&events, &directory, WatchFlags::ACCESS);
            }
        }
        self.watching = Watching::Since {
            events,
            shared_memory,
        };
        // Those that have appeared before.
        self.look_for_endpoints();
    }

    fn look_for_endpoints(&mut self) {
        let present = self.present_endpoints();
        let new = present.difference(&self.old_endpoints).cloned();
        self.new_endpoints.extend(new);
    }

    fn present_endpoints(&self) -> HashSet<String> {
        let files = fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
        files
            .map(|file| file.file_name())
            .filter(|name| is_endpoint(name, &self.gids))
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }
}

/// Returns whether a file in [`SHARED_MEMORY`] is an endpoint on a device with one of these GIDs.
fn is_endpoint(name: &OsStr, gids: &[Gid]) -> bool {
    queue_pair_of(name).is_some_and(|(gid, _)| gids.contains(&gid))
}

#[cfg(test)]
mod tests {
    use efa_core::address::Gid;
    use efa_device_model::profile::Profile;

    use super::*;

    fn gid(address: &str) -> Gid {
        address.parse::<std::net::Ipv6Addr>().unwrap().into()
    }

    /// A file of shared memory that is open: others that run at the same time remove those that nobody uses.
    fn appears(name: &str) -> tempfile::NamedTempFile {
        let path = Path::new(SHARED_MEMORY).join(name);
        let file = fs::File::create(&path).unwrap();
        let path = tempfile::TempPath::try_from_path(path).unwrap();
        tempfile::NamedTempFile::from_parts(file, path)
    }

    #[test]
    fn endpoints_of_the_host_are_counted_once() {
        let gid = gid("fe80::ef:a0ff:fe5e:7e57");
        let root = tempfile::tempdir().unwrap();
        sysfs::generate(root.path(), &Profile::all()[0], &[gid], &[]).unwrap();
        let mut watches = Watches::open(root.path(), &[gid]);
        assert_eq!(watches.shm_endpoints(), 0);
        watches.begin_to_watch();
        assert_eq!(watches.due(), None);
        let other = "fe80::ef:a0ff:fe5e:7e58_0002_1_0000";
        let names = [&format!("{gid}_0002_1_0000")[..], other];
        for _ in 0..2 {
            for name in names {
                drop(appears(name));
            }
        }
        assert_eq!(watches.shm_endpoints(), 1);
        assert!(!watches.turn());
        let counters = sysfs::counter_directories(root.path(), Rail::all(1).next().unwrap());
        let directory = counters.into_iter().next().unwrap();
        let file = fs::read_dir(directory).unwrap().next().unwrap().unwrap();
        fs::read(file.path()).unwrap();
        assert!(watches.turn());
    }

    #[test]
    fn endpoints_from_before_directories_are_watched_are_counted_too() {
        let gid = gid("fe80::ef:a0ff:fe5e:7e59");
        let root = tempfile::tempdir().unwrap();
        let _of_another_run = appears(&format!("{gid}_0001_1_0000"));
        let mut watches = Watches::open(root.path(), &[gid]);
        assert_eq!(watches.shm_endpoints(), 0);
        let early = appears(&format!("{gid}_0002_1_0000"));
        watches.begin_to_watch();
        drop(early);
        assert_eq!(watches.shm_endpoints(), 1);
        drop(appears(&format!("{gid}_0003_1_0000")));
        assert_eq!(watches.shm_endpoints(), 2);
    }

    #[test]
    fn endpoints_of_a_short_program_are_counted() {
        let gid = gid("fe80::ef:a0ff:fe5e:7e5a");
        let root = tempfile::tempdir().unwrap();
        let mut watches = Watches::open(root.path(), &[gid]);
        watches.begin += Duration::from_secs(3600);
        let _endpoint = appears(&format!("{gid}_0002_1_0000"));
        assert_eq!(watches.shm_endpoints(), 1);
        assert_eq!(watches.due(), Some(BEGIN));
    }
}
