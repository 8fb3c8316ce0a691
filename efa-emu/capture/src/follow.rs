//! Reads a shared capture while devices write it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use pcap_file::pcapng::blocks::{ENHANCED_PACKET_BLOCK, INTERFACE_STATISTIC_BLOCK};

use super::block::{self, DROPPED_OFFSET};
use super::{Direction, InterfaceId};
use crate::frame::{self, Frame, link};

/// Maximum number of bytes of one read.
const CHUNK: usize = 1 << 20;

/// Frames are far shorter; a longer block is damaged.
const LONGEST_BLOCK: u32 = 1 << 20;

/// A frame of a shared capture, or of another source, as its complete block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FollowedFrame {
    /// The time since the Unix epoch.
    pub time: Duration,
    pub(super) block: Vec<u8>,
}

impl FollowedFrame {
    /// The first `snaplen` bytes of a frame at `time` since the Unix epoch, for frames that no
    /// shared capture recorded. Fails if the payload's length differs from the one in the header.
    pub fn new(
        time: Duration,
        direction: Direction,
        frame: &Frame<'_>,
        snaplen: u32,
    ) -> Result<FollowedFrame, frame::Error> {
        let mut bytes = Vec::new();
        frame.emit(&mut bytes)?;
        let mut block = Vec::new();
        block::append_frame(
            InterfaceId::FIRST,
            time,
            direction,
            &bytes,
            snaplen,
            &mut block,
        );
        Ok(FollowedFrame { time, block })
    }

    /// The frame and its direction; `None` if it is not a frame of the emulated wire.
    pub fn parse(&self) -> Option<(Direction, Frame<'_>)> {
        let (direction, bytes, length) = block::frame(&self.block)?;
        Some((direction, Frame::parse_cut(bytes, length).ok()?))
    }

    /// Whether it is a packet of a reliable connection.
    pub fn is_connected(&self) -> bool {
        let Some((_, bytes, length)) = block::frame(&self.block) else {
            return false;
        };
        let Ok((start, _)) = link::ip_packet(link::ETHERNET, bytes) else {
            return false;
        };
        bytes.get(start..).is_some_and(|packet| {
            frame::roce_packet(packet, length.saturating_sub(start)).is_some()
        })
    }

    /// The size of the frame in a capture, in bytes.
    pub fn recorded_len(&self) -> usize {
        self.block.len()
    }
}

/// Follows a capture that [`super::create_shared`] made.
#[derive(Debug)]
pub struct Follower {
    file: File,
    /// The offset up to which the file was read.
    offset: u64,
    /// The offset of the count of dropped frames.
    dropped_at: Option<u64>,
    buffer: Vec<u8>,
}

impl Follower {
    /// Opens a capture before its first frame.
    pub fn open(path: &Path) -> io::Result<Follower> {
        Ok(Follower {
            file: File::open(path)?,
            offset: 0,
            dropped_at: None,
            buffer: vec![0; CHUNK],
        })
    }

    /// The number of bytes read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The file's inode, by which devices identify the file that they record into.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.ino())
    }

    /// Returns whether a process may have the file open for writing. Call this only for files that
    /// were unlinked: otherwise a process that opens the file meanwhile would have to wait, and
    /// this process would get a signal.
    pub fn may_have_writers(&self) -> bool {
        let set_lease = |kind: libc::c_int| {
            // SAFETY: the descriptor is open, and the argument of this command is an integer.
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, kind) }
        };
        // The kernel grants the lease if the file is not open for writing. Some file systems grant
        // none.
        let is_granted = set_lease(libc::F_RDLCK) == 0;
        if is_granted {
            set_lease(libc::F_UNLCK);
        }
        !is_granted
    }

    /// The free bytes on the file's file system.
    pub fn free_space(&self) -> io::Result<u64> {
        let system = rustix::fs::fstatvfs(&self.file)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// The number of frames that the devices could not record.
    pub fn dropped(&self) -> io::Result<u64> {
        let Some(at) = self.dropped_at else {
            return Ok(0);
        };
        let mut count = [0; 8];
        self.file.read_exact_at(&mut count, at)?;
        Ok(u64::from_le_bytes(count))
    }

    /// Reads the frames that were added since the last call, and returns whether there were any. An
    /// incomplete block is left for the next call.
    pub fn read(&mut self, frames: &mut Vec<FollowedFrame>) -> io::Result<bool> {
        let before = frames.len();
        loop {
            let start = self.offset;
            let length = self.file.read_at(&mut self.buffer, start)?;
            let mut at = 0;
            while let Some((code, block)) = whole_block(&self.buffer[at..length])? {
                match code {
                    ENHANCED_PACKET_BLOCK => frames.extend(followed(block)),
                    INTERFACE_STATISTIC_BLOCK if self.dropped_at.is_none() => {
                        self.dropped_at = Some(start + at as u64 + DROPPED_OFFSET);
                    }
                    _ => {}
                }
                at += block.len();
            }
            self.offset += at as u64;
            if at == 0 || length < self.buffer.len() {
                return Ok(frames.len() > before);
            }
        }
    }
}

/// The block at the start of `bytes` with its type; `None` if it is incomplete.
fn whole_block(bytes: &[u8]) -> io::Result<Option<(u32, &[u8])>> {
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let (Some(code), Some(length)) = (word(0), word(4)) else {
        return Ok(None);
    };
    if !(12..=LONGEST_BLOCK).contains(&length) || !length.is_multiple_of(4) {
        let reason = format!("a block of the capture claims {length} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, reason));
    }
    Ok(bytes.get(..length as usize).map(|block| (code, block)))
}

/// The time follows type, length and interface, its upper half first.
fn followed(block: &[u8]) -> Option<FollowedFrame> {
    let word = |at: usize| Some(u32::from_le_bytes(block.get(at..at + 4)?.try_into().ok()?));
    let nanoseconds = u64::from(word(12)?) << 32 | u64::from(word(16)?);
    Some(FollowedFrame {
        time: Duration::from_nanos(nanoseconds),
        block: block.to_vec(),
    })
}
