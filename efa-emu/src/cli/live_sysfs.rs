//! What changes in the sysfs tree while a program runs: counters, and the state of ports.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use efa_emu::sysfs::{self, CounterFiles, PortFiles, Rail};
use efa_emu::transport::{Host, PortState};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

/// Time between two updates while nobody reads the files, and for a while after somebody did.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_WITH_READERS: Duration = Duration::from_millis(20);
const READERS_STAY: Duration = Duration::from_secs(2);

/// The files of a host's devices and where their values come from.
pub(super) struct LiveSysfs<'a> {
    devices: Vec<LiveDevice<'a>>,
    /// Tells of files that are read. `None` where the system has no more of these watches: then the
    /// longer pause is all there is.
    accessed: Option<OwnedFd>,
    last_accessed: Option<Instant>,
}

struct LiveDevice<'a> {
    device: &'a Host,
    counters: CounterFiles,
    /// `None` if the fabric's rules cannot be read: then its links stay.
    state: Option<PortState>,
    port: PortFiles,
}

impl<'a> LiveSysfs<'a> {
    /// For the tree below `root` and the devices of a host.
    pub(super) fn open(root: &Path, devices: &'a [Host]) -> LiveSysfs<'a> {
        let rails: Vec<_> = Rail::all(devices.len() as u32).collect();
        let live = devices.iter().zip(&rails).map(|(device, rail)| LiveDevice {
            device,
            counters: CounterFiles::of(root, *rail),
            state: PortState::of(device).ok(),
            port: PortFiles::of(root, *rail),
        });
        LiveSysfs {
            devices: live.collect(),
            accessed: watch(root, &rails),
            last_accessed: None,
        }
    }

    /// Writes what has changed, and returns when to call this again.
    pub(super) fn update(&mut self) -> Duration {
        for live in &mut self.devices {
            // A full disk is no reason to end the program, which may not even look here.
            let _ = live.counters.write(&live.device.statistics());
            let is_down = live.state.as_mut().is_some_and(PortState::is_down);
            let _ = live.port.write(is_down);
        }
        if self.accessed.as_ref().is_some_and(has_events) {
            self.last_accessed = Some(Instant::now());
        }
        match self.last_accessed {
            Some(accessed) if accessed.elapsed() < READERS_STAY => PAUSE_WITH_READERS,
            _ => PAUSE,
        }
    }
}

fn watch(root: &Path, rails: &[Rail]) -> Option<OwnedFd> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let directories = rails
        .iter()
        .flat_map(|rail| sysfs::counter_directories(root, *rail));
    for directory in directories {
        let directory = fs::canonicalize(directory).ok()?;
        // This process opens and writes the files, and reads none.
        inotify::add_watch(&watch, &directory, WatchFlags::ACCESS).ok()?;
    }
    Some(watch)
}

/// Whether any file was read since the last call.
fn has_events(watch: &OwnedFd) -> bool {
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(watch, &mut room);
    let mut any = false;
    while let Ok(event) = reader.next() {
        any |= event.events().contains(ReadFlags::ACCESS);
    }
    any
}
