//! The capture files into which a device records, as requested by other processes, including its
//! run.

use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::participants::is_alive;
use super::paths::{
    CAPTURE, RUN_CAPTURE, draft_path, file_names, file_owner, kind_of_file, recording_path,
};
use crate::process::warning::Warning;
use efa_capture::frame::Frame;
use efa_capture::{CaptureTap, Direction, InterfaceId, SharedFile};
use efa_lock_free::qpn::ParticipantId;

/// The interval at which the host's directory is searched for requested captures.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Any number of capture files.
#[derive(Debug, Default)]
pub(crate) struct CaptureFiles {
    files: Vec<(FileId, SharedFile)>,
}

impl CaptureFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Records into exactly these files, opening those that are new.
    pub(crate) fn follow(&mut self, RequestedCaptures(wanted): &RequestedCaptures) {
        let ended =
            |(id, _): &mut (FileId, SharedFile)| !wanted.iter().any(|(other, _)| other == id);
        for (_, file) in self.files.extract_if(.., ended) {
            close(file);
        }
        for (id, path) in wanted {
            if self.files.iter().any(|(known, _)| known == id) {
                continue;
            }
            match SharedFile::open(path) {
                Ok(file) => self.files.push((*id, file)),
                // It was removed already.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => Warning::Capture.warn_once(format_args!(
                    "cannot record into {}: {error}",
                    path.display()
                )),
            }
        }
    }

    /// Ends the device's part of all captures.
    pub(crate) fn close(self) {
        self.files.into_iter().for_each(|(_, file)| close(file));
    }
}

fn close(file: SharedFile) {
    if let Err(error) = file.close() {
        Warning::Capture.warn_once(format_args!(
            "a capture does not say how many frames it lacks: {error}"
        ));
    }
}

impl CaptureTap for CaptureFiles {
    fn frame(
        &mut self,
        interface: InterfaceId,
        time: Duration,
        direction: Direction,
        frame: &Frame<'_>,
    ) {
        for (_, file) in &mut self.files {
            file.frame(interface, time, direction, frame);
        }
    }

    fn raw(&mut self, interface: InterfaceId, time: Duration, direction: Direction, bytes: &[u8]) {
        for (_, file) in &mut self.files {
            file.raw(interface, time, direction, bytes);
        }
    }
}

/// A file, independent of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &Metadata) -> FileId {
        FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// The requested captures.
#[derive(Debug)]
pub(crate) struct RequestedCaptures(Vec<(FileId, PathBuf)>);

/// Searches for requested captures from time to time.
#[derive(Debug)]
pub(crate) struct CaptureRequests {
    host: PathBuf,
    /// The participant whose device looks.
    own: ParticipantId,
    /// The participant that is the device's run, if it has one.
    run: Option<ParticipantId>,
    last_poll: Option<Instant>,
    known: Vec<FileId>,
}

impl CaptureRequests {
    pub(crate) fn new(
        host: &Path,
        own: ParticipantId,
        run: Option<ParticipantId>,
    ) -> CaptureRequests {
        CaptureRequests {
            host: host.to_owned(),
            own,
            run,
            last_poll: None,
            known: Vec::new(),
        }
    }

    /// The requested captures, if they have changed since the last time.
    pub(crate) fn look(&mut self) -> Option<RequestedCaptures> {
        if self
            .last_poll
            .is_some_and(|last_poll| last_poll.elapsed() < POLL_INTERVAL)
        {
            return None;
        }
        self.last_poll = Some(Instant::now());
        let wanted: Vec<_> = requested_captures(&self.host, self.run)
            .into_iter()
            .filter_map(|(_, path)| Some((FileId::of(&std::fs::metadata(&path).ok()?), path)))
            .collect();
        let ids: Vec<_> = wanted.iter().map(|(id, _)| *id).collect();
        if ids == self.known {
            return None;
        }
        self.known = ids;
        Some(RequestedCaptures(wanted))
    }

    /// Confirms to the requesters that the device records for them.
    pub(crate) fn answer(&self, RequestedCaptures(files): &RequestedCaptures) {
        let inodes = files.iter().map(|(id, _)| id.inode);
        if let Err(error) = announce_recording(&self.host, self.own, inodes) {
            Warning::Capture.warn_once(format_args!(
                "cannot tell who records that the device does: {error}"
            ));
        }
    }
}

/// The recorder for a participant that requests a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureScope {
    /// All processes of the host.
    Host,
    /// The processes that the participant started: its run.
    Run,
}

impl CaptureScope {
    const fn kind(self) -> &'static str {
        match self {
            CaptureScope::Host => CAPTURE,
            CaptureScope::Run => RUN_CAPTURE,
        }
    }
}

/// The path of the capture that a participant requested.
pub(super) fn capture_path(host: &Path, id: ParticipantId, recorded: CaptureScope) -> PathBuf {
    host.join(format!("{}.{}", id.0, recorded.kind()))
}

/// The captures that live participants of a host request, by participant: of all processes, and of
/// the processes that the participant `run` started.
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

/// Announces that the device of the participant `id` records into the capture files with these
/// inodes.
fn announce_recording(
    host: &Path,
    id: ParticipantId,
    inodes: impl Iterator<Item = u64>,
) -> io::Result<()> {
    let text: String = inodes.map(|inode| format!("{inode}\n")).collect();
    let draft = draft_path(host, id);
    std::fs::write(&draft, text)?;
    std::fs::rename(&draft, recording_path(host, id))
}

/// Whether the device of the participant `id` has confirmed that it records into that file.
pub(super) fn is_recording_into(host: &Path, id: ParticipantId, inode: u64) -> bool {
    let text = std::fs::read_to_string(recording_path(host, id)).unwrap_or_default();
    text.lines().any(|line| line.parse() == Ok(inode))
}
