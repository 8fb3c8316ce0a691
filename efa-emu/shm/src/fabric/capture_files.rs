//! The capture files that a device records into: those that others ask for, its own run among them.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::host::{announce_recording, requested_captures};
use crate::identity::qpn::ParticipantId;
use crate::process::warning::Warning;
use efa_capture::frame::Frame;
use efa_capture::{CaptureTap, Direction, InterfaceId, SharedFile};

/// How often the host's directory is looked at for captures that are asked for.
const LOOK: Duration = Duration::from_millis(100);

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
    pub(crate) fn follow(&mut self, Requested(wanted): &Requested) {
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
                // It is gone already.
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
}

/// A file, whatever its name.
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

/// Captures that are asked for.
#[derive(Debug)]
pub(crate) struct Requested(Vec<(FileId, PathBuf)>);

/// Looks from time to time which captures are asked for.
#[derive(Debug)]
pub(crate) struct CaptureRequests {
    host: PathBuf,
    /// The participant whose device looks.
    own: ParticipantId,
    /// The participant that is the device's run, if it has one.
    run: Option<ParticipantId>,
    looked: Option<Instant>,
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
            looked: None,
            known: Vec::new(),
        }
    }

    /// The captures that are asked for, if they are others than the last time.
    pub(crate) fn look(&mut self) -> Option<Requested> {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return None;
        }
        self.looked = Some(Instant::now());
        let wanted: Vec<_> = requested_captures(&self.host, self.run)
            .into_iter()
            .filter_map(|(_, path)| Some((FileId::of(&std::fs::metadata(&path).ok()?), path)))
            .collect();
        let ids: Vec<_> = wanted.iter().map(|(id, _)| *id).collect();
        if ids == self.known {
            return None;
        }
        self.known = ids;
        Some(Requested(wanted))
    }

    /// Tells those who asked that the device records for them.
    pub(crate) fn answer(&self, Requested(files): &Requested) {
        let inodes = files.iter().map(|(id, _)| id.inode);
        if let Err(error) = announce_recording(&self.host, self.own, inodes) {
            Warning::Capture.warn_once(format_args!(
                "cannot tell who records that the device does: {error}"
            ));
        }
    }
}
