//! The counters in the sysfs tree, kept up to date while a program runs.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use efa_emu::sysfs::{self, CounterFiles};
use efa_emu::transport::Host;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::Failure;

/// Time between two updates while nobody opens the files, and for a while after somebody did.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_WITH_READERS: Duration = Duration::from_millis(20);
const READERS_STAY: Duration = Duration::from_secs(2);

/// The files and where their values come from.
pub(super) struct HwCounters<'a> {
    host: &'a Host,
    files: CounterFiles,
    /// Tells of files that are opened. `None` where the system has no more of these watches: then the
    /// longer pause is all there is.
    opened: Option<OwnedFd>,
    last_opened: Option<Instant>,
}

impl<'a> HwCounters<'a> {
    /// For the tree below `root` and the devices of `host`.
    pub(super) fn open(root: &Path, host: &'a Host) -> Result<HwCounters<'a>, Failure> {
        let files = CounterFiles::open(root)?;
        Ok(HwCounters {
            host,
            files,
            opened: watch(root),
            last_opened: None,
        })
    }

    /// Writes what has changed, and returns when to call this again.
    pub(super) fn update(&mut self) -> Duration {
        // A full disk is no reason to end the program, which may not even look here.
        let _ = self.files.write(&self.host.statistics());
        if self.opened.as_ref().is_some_and(has_events) {
            self.last_opened = Some(Instant::now());
        }
        match self.last_opened {
            Some(opened) if opened.elapsed() < READERS_STAY => PAUSE_WITH_READERS,
            _ => PAUSE,
        }
    }
}

fn watch(root: &Path) -> Option<OwnedFd> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    for directory in sysfs::counter_directories(root) {
        let directory = fs::canonicalize(directory).ok()?;
        inotify::add_watch(&watch, &directory, WatchFlags::OPEN).ok()?;
    }
    Some(watch)
}

/// Whether any file was opened since the last call.
fn has_events(watch: &OwnedFd) -> bool {
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(watch, &mut room);
    let mut any = false;
    while let Ok(event) = reader.next() {
        any |= event.events().contains(ReadFlags::OPEN);
    }
    any
}
