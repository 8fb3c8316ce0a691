//! One capture file, or a series of files of which only the last ones are kept.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use efa_capture::{FileWriter, FollowedFrame, Interface, InterfaceId};
use rustix::fs::{FlockOperation, flock};

use super::options::{Ring, UnlimitedFile};

/// The reason why a capture cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CaptureOutputError {
    /// The file cannot be created.
    #[error("cannot create the capture {}: {source}", path.display())]
    Create {
        /// The file of the capture.
        path: PathBuf,
        /// The reason of the system.
        source: io::Error,
    },
    /// The lock of this file is held by another process.
    #[error("another efa-emu is writing the capture {}: name another file", .0.display())]
    InUse(PathBuf),
    /// The file system permits no lock.
    #[error("cannot lock the capture {}: {source}", path.display())]
    Lock {
        /// The file of the capture.
        path: PathBuf,
        /// The reason of the system.
        source: io::Error,
    },
    /// What was recorded cannot be written to the file.
    #[error("cannot write the capture {}: {source}", path.display())]
    Write {
        /// The file of the capture.
        path: PathBuf,
        /// The reason of the system.
        source: io::Error,
    },
    /// The options limit a capture that is not written to a file.
    #[error(transparent)]
    Ring(#[from] UnlimitedFile),
    /// The pipe that a capture is written to.
    #[error(transparent)]
    Pipe(#[from] io::Error),
}

/// Totals of the finished files.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) frames: u64,
    pub(super) dropped: u64,
    pub(super) bytes: u64,
}

/// The files that a capture is written to.
pub(super) struct Files {
    path: PathBuf,
    snaplen: u32,
    ring: Option<Ring>,
    interfaces: Vec<Interface>,
    current: FileWriter,
    /// The number of frames in the current file.
    packets: u64,
    begun: Instant,
    number: u32,
    /// The files of the series, the oldest first.
    written: VecDeque<PathBuf>,
    ended: Totals,
    /// The error that prevented the next file.
    error: Option<io::Error>,
}

/// Opens the output, and returns whether it is a file; otherwise it is a pipe. A file that another
/// process writes as a capture is refused.
pub(super) fn open(path: &Path) -> Result<(File, bool), CaptureOutputError> {
    let cannot_create = |source| CaptureOutputError::Create {
        path: path.to_owned(),
        source,
    };
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(cannot_create)?;
    let metadata = file.metadata().map_err(cannot_create)?;
    if !metadata.is_file() {
        return Ok((file, false));
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok((file, true)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(CaptureOutputError::InUse(path.to_owned())),
        Err(error) => Err(CaptureOutputError::Lock {
            path: path.to_owned(),
            source: error.into(),
        }),
    }
}

impl Files {
    /// Begins a capture in `file`, whose path is `path`.
    pub(super) fn single(
        path: &Path,
        file: File,
        snaplen: u32,
    ) -> Result<Files, CaptureOutputError> {
        let current =
            FileWriter::new(file, snaplen).map_err(|source| CaptureOutputError::Write {
                path: path.to_owned(),
                source,
            })?;
        Ok(Files {
            path: path.to_owned(),
            snaplen,
            ring: None,
            interfaces: Vec::new(),
            current,
            packets: 0,
            begun: Instant::now(),
            number: 1,
            written: VecDeque::new(),
            ended: Totals::default(),
            error: None,
        })
    }

    /// Begins a capture in the first file of a series named after `path`.
    pub(super) fn series(
        path: &Path,
        ring: Ring,
        snaplen: u32,
    ) -> Result<Files, CaptureOutputError> {
        let first = name_in_series(path, 1);
        let (file, _) = open(&first)?;
        let mut files = Files::single(path, file, snaplen)?;
        files.ring = Some(ring);
        files.written.push_back(first);
        Ok(files)
    }

    pub(super) fn add_interface(&mut self, interface: &Interface) -> io::Result<InterfaceId> {
        let id = self.current.add_interface(interface, now())?;
        self.interfaces.push(interface.clone());
        Ok(id)
    }

    pub(super) fn copy(&mut self, interface: InterfaceId, frame: &FollowedFrame) {
        if self.is_full() {
            self.begin_next();
        }
        self.current.copy(interface, frame);
        self.packets += 1;
    }

    pub(super) fn add_dropped(&mut self, interface: InterfaceId, frames: u64) {
        self.current.add_dropped(interface, frames);
    }

    pub(super) fn flush(&mut self) {
        self.current.flush();
        let is_over = |ring: Ring| {
            ring.duration
                .is_some_and(|time| self.begun.elapsed() >= time)
        };
        if self.ring.is_some_and(is_over) {
            self.begin_next();
        }
    }

    fn is_full(&self) -> bool {
        self.ring.is_some_and(|ring| {
            ring.packets.is_some_and(|packets| self.packets >= packets)
                || self.packets > 0
                    && ring
                        .file_size
                        .is_some_and(|size| self.current.length() >= size)
        })
    }

    /// Ends the current file and begins another. If that fails, the capture continues in the
    /// current one.
    fn begin_next(&mut self) {
        let Some(ring) = self.ring else { return };
        // Remove the oldest file first: the disk may be full.
        while ring
            .files
            .is_some_and(|files| self.written.len() as u32 >= files)
            && self.written.len() > 1
        {
            if let Some(oldest) = self.written.pop_front() {
                let _ = fs::remove_file(oldest);
            }
        }
        let path = name_in_series(&self.path, self.number + 1);
        let next = open(&path)
            .map_err(io::Error::other)
            .and_then(|(file, _)| FileWriter::new(file, self.snaplen))
            .and_then(|mut next| {
                for interface in &self.interfaces {
                    next.add_interface(interface, now())?;
                }
                Ok(next)
            });
        // The duration of the file starts now even if no next one could be begun.
        self.begun = Instant::now();
        self.packets = 0;
        match next {
            Ok(next) => {
                self.end_current();
                self.current = next;
                self.number += 1;
                self.written.push_back(path);
                if ring.files == Some(1)
                    && let Some(oldest) = self.written.pop_front()
                {
                    let _ = fs::remove_file(oldest);
                }
            }
            Err(error) => {
                let _ = fs::remove_file(path);
                self.error = Some(error);
            }
        }
    }

    fn end_current(&mut self) {
        if let Err(error) = self.current.finish() {
            self.error = Some(error);
        }
        for id in (0..self.interfaces.len() as u32).map(InterfaceId) {
            let counts = self.current.counts(id);
            self.ended.frames += counts.seen - counts.dropped;
            self.ended.dropped += counts.dropped;
        }
        self.ended.bytes += self.current.length();
    }

    /// Ends the capture. Returns the totals of all files, including removed ones, and why frames
    /// are missing, if the disk is the reason.
    pub(super) fn finish(mut self) -> (Totals, Option<String>) {
        self.end_current();
        let why = self.current.last_error().or(self.error.as_ref());
        (self.ended, why.map(io::Error::to_string))
    }
}

fn now() -> std::time::Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// The name of a file of a series in the form of dumpcap: number and local time precede the
/// extension.
fn name_in_series(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("_{number:05}_{}", local_time()));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

/// Year to second, in digits.
fn local_time() -> String {
    let now = now().as_secs() as libc::time_t;
    let mut time = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid; a zeroed structure is valid if the call does not fill it.
    let time = unsafe {
        libc::localtime_r(&raw const now, time.as_mut_ptr());
        time.assume_init()
    };
    format!(
        "{:04}{:02}{:02}{:02}{:02}{:02}",
        time.tm_year + 1900,
        time.tm_mon + 1,
        time.tm_mday,
        time.tm_hour,
        time.tm_min,
        time.tm_sec
    )
}
