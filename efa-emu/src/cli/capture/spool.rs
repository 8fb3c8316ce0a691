//! What one device records, as it comes: a series of files in memory, which the processes that have the device
//! open write and the recording process follows.

use std::collections::VecDeque;
use std::io;

use efa_emu::capture::{FollowedFrame, Follower, Interface, InterfaceId};
use efa_emu::transport::{FabricError, Host, Recorded};

use efa_emu::capture_output::Store;
use efa_emu::command::Failure;

/// After this many bytes another file is begun.
const LONGEST_FILE: u64 = 16 << 20;

/// Files that processes which were stopped may still write into. If there are more, the oldest is given
/// up, since they lie in memory.
const MOST_RETIRED: usize = 8;

/// A device that is recorded.
pub(super) struct Spool {
    recorded: Recorded,
    interface: Interface,
    id: InterfaceId,
    snaplen: u32,
    current: Follower,
    /// Files that processes may still write into, the oldest first.
    retired: VecDeque<Follower>,
    /// Frames that the files before those lack.
    dropped: u64,
    frames: Vec<FollowedFrame>,
}

impl Spool {
    /// Asks for the frames of a device, which are to be those of the interface `id`.
    pub(super) fn begin(
        host: &Host,
        recorded: Recorded,
        interface: Interface,
        id: InterfaceId,
        snaplen: u32,
    ) -> Result<Spool, Failure> {
        let file = host.request_capture(recorded, &interface, snaplen)?;
        Ok(Spool {
            recorded,
            interface,
            id,
            snaplen,
            current: Follower::open(&file)?,
            retired: VecDeque::new(),
            dropped: 0,
            frames: Vec::new(),
        })
    }

    /// Moves what was recorded into the store, and begins another file if this one has become long.
    pub(super) fn turn(&mut self, host: &Host, store: &mut Store) -> Result<(), Failure> {
        self.read(store)?;
        self.drop_retired(host, store)?;
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

    /// Gives up files that nobody writes into any more, after a last look at them.
    fn drop_retired(&mut self, host: &Host, store: &mut Store) -> Result<(), Failure> {
        if self.retired.is_empty() {
            return Ok(());
        }
        let kept = if self.are_all_writers_on(host)? {
            self.read(store)?;
            0
        } else {
            MOST_RETIRED
        };
        let given_up = self.retired.len().saturating_sub(kept);
        for follower in self.retired.drain(..given_up) {
            self.dropped += follower.dropped()?;
        }
        Ok(())
    }

    /// Whether all processes are known to write into the current file.
    fn are_all_writers_on(&self, host: &Host) -> Result<bool, FabricError> {
        Ok(match self.recorded {
            Recorded::Host => host.devices_not_recording()?.is_empty(),
            // Which of the host's processes those of the run are is not known.
            Recorded::Run => false,
        })
    }

    /// Takes what is left.
    pub(super) fn finish(mut self, store: &mut Store) -> io::Result<()> {
        self.read(store)?;
        let mut dropped = self.dropped + self.current.dropped()?;
        for follower in &self.retired {
            dropped += follower.dropped()?;
        }
        store.add_dropped(self.id, dropped);
        Ok(())
    }
}
