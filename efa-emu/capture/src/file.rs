//! Capture files with a single writer. Blocks that the disk has no room for are cut off again and
//! counted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::block::{self, DROPPED_OFFSET, StatisticsKind};
use super::{Counts, FollowedFrame, Interface, InterfaceId};
use crate::file_size;

/// The bytes that are buffered before they are written.
const GATHERED: usize = 1 << 20;

/// An interface of the file.
#[derive(Debug)]
struct FileInterface {
    counts: Counts,
    /// The offset of the count of missing frames in the file.
    dropped_at: u64,
}

/// Writes one pcapng section with any number of interfaces into a file. After each
/// [`FileWriter::flush`] the file consists of complete blocks. It contains the number of missing
/// frames of each interface; the space for that is written first, so that it can be updated on a
/// full disk.
#[derive(Debug)]
pub struct FileWriter {
    file: File,
    snaplen: u32,
    /// The length of the file, which ends with a complete block.
    length: u64,
    interfaces: Vec<FileInterface>,
    /// Frames that are not written yet.
    gathered: Vec<u8>,
    /// The error that dropped frames most recently.
    error: Option<io::Error>,
}

impl FileWriter {
    /// Begins a capture of the first `snaplen` bytes of each frame. The file is truncated.
    pub fn new(file: File, snaplen: u32) -> io::Result<FileWriter> {
        file.set_len(0)?;
        let mut start = Vec::new();
        block::append_section_header(block::APPLICATION, &[], &mut start);
        let mut writer = FileWriter {
            file,
            snaplen,
            length: 0,
            interfaces: Vec::new(),
            gathered: Vec::new(),
            error: None,
        };
        writer.append(&start)?;
        Ok(writer)
    }

    /// Declares a host's interface. Interfaces are numbered in the order of these calls. `time` is
    /// the time at which the capture began. After an error the interface is not declared.
    pub fn add_interface(
        &mut self,
        interface: &Interface,
        time: Duration,
    ) -> io::Result<InterfaceId> {
        self.flush();
        let id = InterfaceId(self.interfaces.len() as u32);
        let mut blocks = Vec::new();
        block::append_interface(interface, self.snaplen, &mut blocks);
        let dropped_at = self.length + blocks.len() as u64 + DROPPED_OFFSET;
        let (kind, counts) = (StatisticsKind::Dropped, Counts::default());
        block::append_statistics(id, time, kind, counts, &mut blocks);
        self.append(&blocks)?;
        self.interfaces.push(FileInterface { counts, dropped_at });
        Ok(id)
    }

    /// Adds a frame from a device's own capture as a frame of `interface`.
    ///
    /// # Panics
    /// If the interface was not declared with [`FileWriter::add_interface`].
    pub fn copy(&mut self, interface: InterfaceId, frame: &FollowedFrame) {
        let start = self.gathered.len();
        self.gathered.extend_from_slice(&frame.block);
        block::set_frame_interface(&mut self.gathered[start..], interface);
        self.interfaces[interface.0 as usize].counts.seen += 1;
        if self.gathered.len() >= GATHERED {
            self.flush();
        }
    }

    /// Counts frames of `interface` that the capture lacks.
    ///
    /// # Panics
    /// If the interface was not declared with [`FileWriter::add_interface`].
    pub fn add_dropped(&mut self, interface: InterfaceId, frames: u64) {
        let counts = &mut self.interfaces[interface.0 as usize].counts;
        counts.seen += frames;
        counts.dropped += frames;
    }

    /// Writes the buffered frames that fit, and drops the rest.
    pub fn flush(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        if self.append(&gathered).is_err() {
            let mut rest = &gathered[..];
            while let Some(block) = block::first_frame(rest) {
                rest = &rest[block.len()..];
                if let Err(error) = self.append(block) {
                    self.error = Some(error);
                    let dropped_by = block::frame_interface(block);
                    self.interfaces[dropped_by.0 as usize].counts.dropped += 1;
                }
            }
        }
        self.gathered = gathered;
        self.gathered.clear();
    }

    /// Appends all blocks, or none.
    fn append(&mut self, blocks: &[u8]) -> io::Result<()> {
        let end = self.length + blocks.len() as u64;
        let written =
            file_size::check(end).and_then(|()| self.file.write_all_at(blocks, self.length));
        match written {
            Ok(()) => self.length = end,
            // The bytes that reached the disk may end within a block.
            Err(_) => self.file.set_len(self.length)?,
        }
        written
    }

    /// The length of the file with the buffered frames, in bytes.
    pub fn length(&self) -> u64 {
        self.length + self.gathered.len() as u64
    }

    /// The interface's counts; zero for one that was not declared. Buffered frames count as
    /// recorded.
    pub fn counts(&self, interface: InterfaceId) -> Counts {
        let declared = self.interfaces.get(interface.0 as usize);
        declared.map(|declared| declared.counts).unwrap_or_default()
    }

    /// The error that dropped frames most recently, if writing the file failed.
    pub fn last_error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Writes the buffered frames and the number of missing ones. Fails if that cannot be written.
    pub fn finish(&mut self) -> io::Result<()> {
        self.flush();
        for interface in &self.interfaces {
            let dropped = interface.counts.dropped;
            if dropped > 0 {
                self.file
                    .write_all_at(&dropped.to_le_bytes(), interface.dropped_at)?;
            }
        }
        Ok(())
    }
}
