//! Captures in a file to which several processes append.
//!
//! Every process that has a device open writes the frames that it sees into the device's capture.
//! The recorder that requested the capture follows the file and copies from it. A process may be
//! killed at any instruction, even inside `write(2)`, and the disk may fill up, so a block can be
//! truncated; the next writer must not append its block to the fragment. Therefore each append
//! acquires an advisory lock, which the kernel releases when its holder exits, and first truncates
//! a fragment. A file always consists of complete blocks and at most one fragment at its end, which
//! [`super::Reader`] and Wireshark accept.
//!
//! Few programs close their devices before they exit, so the count of frames that could not be
//! recorded is not written at the end: it is in a statistics block at the start of the file, and a
//! writer that loses a frame adds to it there.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcapng::blocks::{
    INTERFACE_DESCRIPTION_BLOCK, INTERFACE_STATISTIC_BLOCK, SECTION_HEADER_BLOCK,
};
use rustix::fs::FlockOperation;

use super::block::{self, StatisticsKind};
use super::{CaptureTap, Counts, Direction, Interface, InterfaceId, WHOLE_FRAMES};
use crate::file_size;
use crate::frame::Frame;

/// The longest shared file: it is in memory, and a recorder begins another one long before this.
/// Frames beyond it are dropped.
const LONGEST: u64 = 256 << 20;

/// The number of attempts to acquire the lock before an append drops the frame. The lock is held
/// for a few microseconds, unless its holder was stopped.
const LOCK_ATTEMPTS: u32 = 400;
const LOCK_YIELDS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_micros(25);

/// Creates a device's capture file; truncates an existing one. Every writer records the first
/// `snaplen` bytes of each frame ([`WHOLE_FRAMES`]: all).
pub fn create_shared(path: &Path, interface: &Interface, snaplen: u32) -> io::Result<()> {
    let mut start = Vec::new();
    block::append_section_header(block::APPLICATION, &[], &mut start);
    block::append_interface(interface, snaplen, &mut start);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    block::append_statistics(
        InterfaceId::FIRST,
        now.unwrap_or(Duration::ZERO),
        StatisticsKind::Dropped,
        Counts::default(),
        &mut start,
    );
    File::create(path)?.write_all(&start)
}

/// A handle of a capture file that other processes and devices write too.
#[derive(Debug)]
pub struct SharedFile {
    file: File,
    path: PathBuf,
    snaplen: u32,
    /// An offset at which a block begins or the file ends; the blocks before it are complete.
    boundary: u64,
    /// The offset of the interface's count of dropped frames.
    dropped_at: u64,
    /// Dropped frames that the count does not include yet.
    uncounted: u64,
    /// The last attempt to acquire the lock failed. Its holder is probably stopped, so the next
    /// append does not wait.
    impatient: bool,
    counts: Counts,
    error: Option<io::Error>,
    frame: Vec<u8>,
    block: Vec<u8>,
}

impl SharedFile {
    /// Opens a capture that [`create_shared`] made.
    pub fn open(path: &Path) -> io::Result<SharedFile> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut capture = SharedFile {
            file,
            path: path.to_owned(),
            snaplen: WHOLE_FRAMES,
            boundary: 0,
            dropped_at: 0,
            uncounted: 0,
            impatient: false,
            counts: Counts::default(),
            error: None,
            frame: Vec::new(),
            block: Vec::new(),
        };
        capture.skip(SECTION_HEADER_BLOCK)?;
        let interface_at = capture.boundary;
        capture.skip(INTERFACE_DESCRIPTION_BLOCK)?;
        let mut start = [0; block::SNAPLEN_END];
        capture.file.read_exact_at(&mut start, interface_at)?;
        capture.snaplen = block::snaplen(&start);
        capture.dropped_at = capture.boundary + block::DROPPED_OFFSET;
        capture.skip(INTERFACE_STATISTIC_BLOCK)?;
        Ok(capture)
    }

    /// Moves the boundary past the next block, which must be of this type.
    fn skip(&mut self, expected: u32) -> io::Result<()> {
        let block = self.block_at(self.boundary, u64::MAX)?;
        let Some(block) = block.filter(|block| block.code == expected) else {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!(
                    "{} is not a capture made by efa-emu for this device",
                    self.path.display()
                ),
            ));
        };
        self.boundary += block.length;
        Ok(())
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The counts of this handle so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The error that dropped a frame most recently.
    pub fn last_error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Ends the recording and returns the counts of this handle. In case of an error the file's
    /// count of dropped frames is too low.
    pub fn close(mut self) -> io::Result<Counts> {
        if self.uncounted > 0 {
            self.locked(|_| Ok(()))?;
        }
        Ok(self.counts)
    }

    /// Calls `append` with the lock held, then adds dropped frames to the count in the file.
    fn locked(&mut self, work: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.lock().inspect_err(|_| self.uncounted += 1)?;
        let result = work(self);
        self.uncounted += u64::from(result.is_err());
        let counted = self.count_dropped();
        // An error here cannot be handled; the kernel unlocks the file when it is closed.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        result.and(counted)
    }

    /// Adds to the count in the file. Its space is already allocated, so this works on a full disk.
    fn count_dropped(&mut self) -> io::Result<()> {
        if self.uncounted == 0 {
            return Ok(());
        }
        let mut count = [0; 8];
        self.file.read_exact_at(&mut count, self.dropped_at)?;
        let count = u64::from_le_bytes(count).saturating_add(self.uncounted);
        self.file
            .write_all_at(&count.to_le_bytes(), self.dropped_at)?;
        self.uncounted = 0;
        Ok(())
    }

    fn append_locked(&mut self, block: &[u8]) -> io::Result<()> {
        let end = self.end_of_whole_blocks()?;
        let length = end.saturating_add(block.len() as u64);
        file_size::check(length)?;
        if length > LONGEST {
            return Err(io::Error::new(
                ErrorKind::FileTooLarge,
                "whoever records does not keep up",
            ));
        }
        let written = match self.file.write_at(block, end) {
            Ok(written) if written == block.len() => {
                self.boundary = end + written as u64;
                return Ok(());
            }
            Ok(_) => Err(io::Error::from(ErrorKind::StorageFull)),
            Err(error) => Err(error),
        };
        self.file.set_len(end)?;
        self.boundary = end;
        written
    }

    fn lock(&mut self) -> io::Result<()> {
        let attempts = if self.impatient { 1 } else { LOCK_ATTEMPTS };
        for attempt in 0..attempts {
            match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    self.impatient = false;
                    return Ok(());
                }
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if attempt < LOCK_YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(LOCK_PAUSE);
            }
        }
        self.impatient = true;
        Err(io::Error::new(
            ErrorKind::WouldBlock,
            "another process holds the capture file's lock: is it stopped?",
        ))
    }

    /// Returns the offset of the next block. Cuts off the fragment that a killed writer left.
    fn end_of_whole_blocks(&mut self) -> io::Result<u64> {
        let length = self.file.metadata()?.len();
        if self.boundary < length && self.ends_with_whole_block(length)? {
            self.boundary = length;
        }
        while self.boundary < length {
            match self.block_at(self.boundary, length)? {
                Some(block) => self.boundary += block.length,
                None => {
                    self.file.set_len(self.boundary)?;
                    return Ok(self.boundary);
                }
            }
        }
        // The file was truncated: continue at its end.
        self.boundary = length;
        Ok(length)
    }

    /// Avoids reading all blocks that others wrote: a block ends with its length too.
    fn ends_with_whole_block(&self, length: u64) -> io::Result<bool> {
        let mut last = [0; 4];
        self.file
            .read_exact_at(&mut last, length.saturating_sub(4))?;
        let last = u64::from(u32::from_le_bytes(last));
        let Some(start) = length
            .checked_sub(last)
            .filter(|start| *start >= self.boundary)
        else {
            return Ok(false);
        };
        let block = self.block_at(start, length)?;
        Ok(block.is_some_and(|block| block.length == last))
    }

    fn block_at(&self, at: u64, end: u64) -> io::Result<Option<BlockStart>> {
        let mut start = [0; 8];
        match self.file.read_exact_at(&mut start, at) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| start[at + i]));
        let length = u64::from(word(4));
        let whole = length >= 12 && length.is_multiple_of(4) && length <= end.saturating_sub(at);
        Ok(whole.then_some(BlockStart {
            code: word(0),
            length,
        }))
    }
}

struct BlockStart {
    code: u32,
    length: u64,
}

impl CaptureTap for SharedFile {
    /// The file has only one interface, independent of its number in other captures.
    fn frame(&mut self, _: InterfaceId, time: Duration, direction: Direction, frame: &Frame<'_>) {
        self.frame.clear();
        let emitted = frame.emit(&mut self.frame).map_err(io::Error::other);
        self.record(emitted, time, direction);
    }

    fn raw(&mut self, _: InterfaceId, time: Duration, direction: Direction, bytes: &[u8]) {
        self.frame.clear();
        self.frame.extend_from_slice(bytes);
        self.record(Ok(()), time, direction);
    }
}

impl SharedFile {
    /// Records the bytes in `frame`, unless making them failed.
    fn record(&mut self, emitted: io::Result<()>, time: Duration, direction: Direction) {
        let mut block = std::mem::take(&mut self.block);
        block.clear();
        let recorded = self.locked(|capture| {
            emitted?;
            block::append_frame(
                InterfaceId::FIRST,
                time,
                direction,
                &capture.frame,
                capture.snaplen,
                &mut block,
            );
            capture.append_locked(&block)
        });
        self.block = block;
        self.counts.count(recorded.is_ok());
        if let Err(error) = recorded {
            self.error = Some(error);
        }
    }
}
