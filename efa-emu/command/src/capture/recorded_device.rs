//! The frames of one device as they arrive: a series of files in memory, which processes that have
//! the device open write and the recording process follows.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use efa_capture::{FollowedFrame, Follower, Interface, InterfaceId};
use efa_shm::{CaptureScope, Host};

use efa_commands::Failure;
use efa_options::capture_output::Store;

/// The length after which another file is begun. The files of each recorded device are in memory.
const LONGEST_FILE: u64 = 4 << 20;

/// Maximum number of files to which stopped processes may still write. If there are more, the
/// oldest is abandoned.
const MOST_RETIRED: usize = 8;

/// The interval of checks whether files other than the current one are still written.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// With less free space than this, a file system is treated as full: a frame and its overhead do
/// not fit.
const NO_SPACE: u64 = 64 << 10;

/// A device that is recorded.
pub(super) struct RecordedDevice {
    recorded: CaptureScope,
    interface: Interface,
    id: InterfaceId,
    snaplen: u32,
    current: Follower,
    /// Files that processes may still write to, the oldest first. They are unlinked.
    retired: VecDeque<Follower>,
    /// The time at which those were last checked.
    last_poll: Instant,
    /// The number of frames that earlier files lack.
    dropped: u64,
    /// The number of frames that are known to be missing.
    missing: u64,
    frames: Vec<FollowedFrame>,
}

impl RecordedDevice {
    /// Requests the frames of a device, as frames of the interface `id`.
    pub(super) fn begin(
        host: &Host,
        recorded: CaptureScope,
        interface: Interface,
        id: InterfaceId,
        snaplen: u32,
    ) -> Result<RecordedDevice, Failure> {
        let file = host.request_capture(recorded, &interface, snaplen)?;
        Ok(RecordedDevice {
            recorded,
            interface,
            id,
            snaplen,
            current: Follower::open(&file)?,
            retired: VecDeque::new(),
            last_poll: Instant::now(),
            dropped: 0,
            missing: 0,
            frames: Vec::new(),
        })
    }

    /// Moves recorded frames into the store, and begins another file if this one has become long.
    pub(super) fn turn(&mut self, host: &Host, store: &mut Store) -> Result<(), Failure> {
        self.read(store)?;
        self.notice_dropped(store)?;
        if !self.retired.is_empty() && self.last_poll.elapsed() >= POLL_INTERVAL {
            self.last_poll = Instant::now();
            self.drop_retired(host, store)?;
        }
        if self.current.offset() >= LONGEST_FILE {
            let file = host.request_capture(self.recorded, &self.interface, self.snaplen)?;
            let previous = std::mem::replace(&mut self.current, Follower::open(&file)?);
            self.retired.push_back(previous);
        }
        Ok(())
    }

    fn read(&mut self, store: &mut Store) -> io::Result<()> {
        for follower in &mut self.retired {
            follower.read(&mut self.frames)?;
        }
        self.current.read(&mut self.frames)?;
        store.add(self.id, &mut self.frames);
        Ok(())
    }

    /// Reads files without writers a last time and drops them, and drops the oldest if there are
    /// too many. Makes devices that still write to old files check to which file they record.
    fn drop_retired(&mut self, host: &Host, store: &mut Store) -> Result<(), Failure> {
        let (written, ended): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.retired)
            .into_iter()
            .partition(Follower::may_have_writers);
        self.retired = ended;
        self.read(store)?;
        for follower in std::mem::replace(&mut self.retired, written) {
            self.dropped += follower.dropped()?;
        }
        for follower in &self.retired {
            host.wake_devices_recording_into(follower.inode()?)?;
        }
        let given_up = self.retired.len().saturating_sub(MOST_RETIRED);
        for follower in self.retired.drain(..given_up) {
            self.dropped += follower.dropped()?;
        }
        Ok(())
    }

    /// The number of frames that are missing so far.
    fn all_dropped(&self) -> io::Result<u64> {
        let files = self.retired.iter().chain([&self.current]);
        files
            .map(Follower::dropped)
            .try_fold(self.dropped, |sum, dropped| Ok(sum + dropped?))
    }

    /// Determines why frames are missing as soon as they are: the cause may no longer be visible
    /// later.
    fn notice_dropped(&mut self, store: &mut Store) -> io::Result<()> {
        let missing = self.all_dropped()?;
        if missing > self.missing {
            self.missing = missing;
            let is_full = self.current.free_space()? < NO_SPACE;
            store.explain_dropped(|| match is_full {
                true => "no space is left below the fabric's directory, where devices put frames until they are written".into(),
                false => "they came faster than they could be written, or a process was stopped while it recorded one".into(),
            });
        }
        Ok(())
    }

    /// Reads the rest.
    pub(super) fn finish(mut self, store: &mut Store) -> io::Result<()> {
        self.read(store)?;
        self.notice_dropped(store)?;
        store.add_dropped(self.id, self.all_dropped()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use efa_capture::frame::{Frame, FrameKind, Repr};
    use efa_capture::{CaptureTap, Direction, SharedFile, WHOLE_FRAMES};
    use efa_device_model::profile::Profile;
    use efa_options::capture_output::CaptureOptions;
    use efa_shm::Fabric;
    use efa_wire::address::{Gid, Qpn};

    use super::*;

    const PAYLOAD: usize = 8100;

    /// A recording of a device whose only writer is the test.
    struct Rig {
        host: Host,
        recorded_device: RecordedDevice,
        store: Store,
        written: u64,
        /// The file that the host's device records to.
        file: std::path::PathBuf,
        _directory: tempfile::TempDir,
    }

    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        capture: CaptureOptions,
    }

    impl Rig {
        fn new(name: &str) -> Rig {
            let fabric = Fabric::open(&format!("spool-{name}-{}", std::process::id())).unwrap();
            let profile = Profile::by_name(Profile::DEFAULT).unwrap();
            let host = fabric.enter_devices(None, None, profile).unwrap().remove(0);
            let directory = tempfile::tempdir().unwrap();
            let options: Options =
                clap::Parser::parse_from(["test", "-b", "filesize:100", "-b", "files:2"]);
            let mut store =
                Store::create(&directory.path().join("x.pcapng"), &options.capture).unwrap();
            let interface = Interface::new("a", Profile::DEFAULT, host.gid());
            let id = store.declare(&interface).unwrap();
            let file = host
                .request_capture(CaptureScope::Run, &interface, WHOLE_FRAMES)
                .unwrap();
            let recorded_device =
                RecordedDevice::begin(&host, CaptureScope::Run, interface, id, WHOLE_FRAMES)
                    .unwrap();
            Rig {
                host,
                recorded_device,
                store,
                written: 0,
                file,
                _directory: directory,
            }
        }

        fn writer(&self) -> SharedFile {
            SharedFile::open(Path::new(&self.file)).unwrap()
        }

        /// Fills a file.
        fn fill(&mut self, writer: &mut SharedFile) {
            let payload = [7; PAYLOAD];
            let frame = Frame {
                source: Gid([1; 16]),
                destination: Gid([2; 16]),
                header: Repr {
                    source_qpn: Qpn(1),
                    destination_qpn: Qpn(2),
                    ..Repr::new(FrameKind::Send, PAYLOAD)
                },
                payload: &payload,
            };
            for _ in 0..=LONGEST_FILE / PAYLOAD as u64 {
                writer.frame(
                    InterfaceId::FIRST,
                    Duration::from_secs(1),
                    Direction::Outbound,
                    &frame,
                );
                self.written += 1;
            }
        }

        fn turn(&mut self) {
            // Simulates that the last check was long ago.
            self.recorded_device.last_poll -= POLL_INTERVAL;
            self.recorded_device
                .turn(&self.host, &mut self.store)
                .unwrap();
        }

        fn end(mut self) -> efa_options::capture_output::RecordingTotals {
            self.recorded_device.finish(&mut self.store).unwrap();
            let written = self.store.finish().unwrap();
            assert_eq!(written.frames + written.dropped, self.written);
            written
        }
    }

    /// The files stay short, even during a long recording.
    #[test]
    fn files_without_a_writer_are_closed() {
        let mut rig = Rig::new("given-up");
        for _ in 0..3 * MOST_RETIRED {
            let mut writer = rig.writer();
            rig.fill(&mut writer);
            rig.turn();
            assert_eq!(rig.recorded_device.retired.len(), 1, "the writer has it");
            rig.turn();
            assert_eq!(rig.recorded_device.retired.len(), 1);
            drop(writer);
            rig.turn();
            assert_eq!(rig.recorded_device.retired.len(), 0);
        }
        assert_eq!(rig.end().dropped, 0);
    }

    #[test]
    fn files_of_stopped_processes_are_kept_awhile() {
        let mut rig = Rig::new("stopped");
        let mut stopped = rig.writer();
        rig.fill(&mut stopped);
        for _ in 0..2 * MOST_RETIRED {
            rig.turn();
            let mut writer = rig.writer();
            rig.fill(&mut writer);
        }
        rig.turn();
        rig.turn();
        assert_eq!(rig.recorded_device.retired.len(), 1);
        // The stopped writer continues.
        rig.fill(&mut stopped);
        rig.turn();
        let mut all_stopped = vec![stopped];
        for _ in 0..2 * MOST_RETIRED {
            let mut writer = rig.writer();
            rig.fill(&mut writer);
            all_stopped.push(writer);
            rig.turn();
            rig.turn();
            assert!(rig.recorded_device.retired.len() <= MOST_RETIRED);
        }
        assert_eq!(rig.end().dropped, 0);
    }
}
