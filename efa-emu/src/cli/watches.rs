//! What happens in directories while a program runs: counters that are read, and endpoints of libfabric's
//! `shm` provider that appear. One descriptor tells of both, because the system limits their number for each
//! user, and a job has many runs.

use std::collections::HashSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use efa_core::address::Gid;
use efa_emu::sysfs::{self, Rail};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::leftovers::{SHARED_MEMORY, queue_pair_of};

/// Events that have happened since the start.
pub(super) struct Watches {
    /// `None` where the system has no more of these descriptors: then nothing is ever seen.
    events: Option<OwnedFd>,
    /// The watch of [`SHARED_MEMORY`].
    shared_memory: Option<i32>,
    /// The GIDs of the host's devices.
    gids: Vec<Gid>,
    shm_endpoints: HashSet<String>,
}

impl Watches {
    /// Watches the tree of counters below `root`, and the shared memory of endpoints on devices with these
    /// GIDs.
    pub(super) fn open(root: &Path, gids: &[Gid]) -> Watches {
        let mut watches = Watches {
            events: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok(),
            shared_memory: None,
            gids: gids.to_vec(),
            shm_endpoints: HashSet::new(),
        };
        if let Some(events) = &watches.events {
            watches.shared_memory =
                inotify::add_watch(events, SHARED_MEMORY, WatchFlags::CREATE).ok();
            let rails = Rail::all(gids.len() as u32);
            for directory in rails.flat_map(|rail| sysfs::counter_directories(root, rail)) {
                // This process opens and writes the files, and reads none. What cannot be watched is
                // updated seldom.
                if let Ok(directory) = fs::canonicalize(directory) {
                    let _ = inotify::add_watch(events, &directory, WatchFlags::ACCESS);
                }
            }
        }
        watches
    }

    /// Takes what has happened since the last call, and returns whether any counter was read.
    pub(super) fn turn(&mut self) -> bool {
        let Some(events) = &self.events else {
            return false;
        };
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(events, &mut room);
        let mut any_read = false;
        while let Ok(event) = reader.next() {
            any_read |= event.events().contains(ReadFlags::ACCESS);
            if Some(event.wd()) != self.shared_memory {
                continue;
            }
            let name = event.file_name().map(|name| name.to_string_lossy());
            if let Some(name) = name
                && let Some((gid, _)) = queue_pair_of(name.as_ref().as_ref())
                && self.gids.contains(&gid)
            {
                self.shm_endpoints.insert(name.into_owned());
            }
        }
        any_read
    }

    /// How many endpoints of libfabric's `shm` provider on the host's devices have appeared so far.
    pub(super) fn shm_endpoints(&mut self) -> usize {
        self.turn();
        self.shm_endpoints.len()
    }
}

#[cfg(test)]
mod tests {
    use efa_core::address::Gid;
    use efa_emu::profile::Profile;

    use super::*;

    #[test]
    fn endpoints_of_the_host_are_counted_once() {
        let gid: Gid = "fe80::ef:a0ff:fe5e:7e57"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .into();
        let root = tempfile::tempdir().unwrap();
        sysfs::generate(root.path(), &Profile::all()[0], &[gid], &[]).unwrap();
        let mut watches = Watches::open(root.path(), &[gid]);
        assert_eq!(watches.shm_endpoints(), 0);
        let other = "fe80::ef:a0ff:fe5e:7e58_0002_1_0000";
        let names = [&format!("{gid}_0002_1_0000")[..], other];
        for _ in 0..2 {
            for name in names {
                let path = Path::new(SHARED_MEMORY).join(name);
                fs::write(&path, "").unwrap();
                fs::remove_file(&path).unwrap();
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
}
