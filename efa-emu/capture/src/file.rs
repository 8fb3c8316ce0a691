//! Captures as files that one process writes: blocks that the disk does not take are cut off again
//! and counted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::block::{self, DROPPED_OFFSET, StatisticsKind};
use super::{Counts, FollowedFrame, Interface, InterfaceId};
use crate::file_size;

/// Bytes that are gathered before they are written.
const GATHERED: usize = 1 << 20;

/// An interface of the file.
#[derive(Debug)]
struct Declared {
    counts: Counts,
    /// Where the file has the count of frames that it lacks.
    dropped_at: u64,
}

/// Writes one pcapng section with any number of interfaces into a file. The file consists of whole
/// blocks after each [`FileWriter::flush`], and says of each interface how many frames it lacks:
/// that has its place from the beginning, so it works on a full disk.
#[derive(Debug)]
pub struct FileWriter {
    file: File,
    snaplen: u32,
    /// Length of the file, which is that of its whole blocks.
    length: u64,
    interfaces: Vec<Declared>,
    /// Frames that are not written yet.
    gathered: Vec<u8>,
    /// Why frames were dropped, the last time.
    error: Option<io::Error>,
}

impl FileWriter {
    /// Begins a capture of the first `snaplen` bytes of frames. The file is emptied.
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
    /// that of the capture's beginning. After an error the interface is not declared.
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
        self.interfaces.push(Declared { counts, dropped_at });
        Ok(id)
    }

    /// Adds a frame that a device's own capture has, as one of `interface`.
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

    /// Writes what is gathered, as much of it as there is room for, and drops the rest.
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

    /// Writes whole blocks behind the others, or nothing.
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

    /// Length of the file, with what is gathered, in bytes.
    pub fn length(&self) -> u64 {
        self.length + self.gathered.len() as u64
    }

    /// The interface's counts; zero for one that was not declared. What is gathered counts as
    /// recorded.
    pub fn counts(&self, interface: InterfaceId) -> Counts {
        let declared = self.interfaces.get(interface.0 as usize);
        declared.map(|declared| declared.counts).unwrap_or_default()
    }

    /// Why frames were dropped the last time, if the file was the reason.
    pub fn last_error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Writes what is left, and how many frames the capture lacks. Fails if that cannot be written.
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
