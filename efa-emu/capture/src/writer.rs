//! Writes captures into any `std::io::Write`.

use std::io::{self, Write};
use std::time::Duration;

use super::block::{self, StatisticsKind};
use super::{
    CaptureTap, CapturedFrame, Counts, Direction, FollowedFrame, Interface, InterfaceId,
    WHOLE_FRAMES,
};
use crate::frame::Frame;

/// A frame that was read from a capture, to be written to another one.
#[derive(Clone, Debug)]
pub struct RecordedFrame {
    /// Since the Unix epoch, or since the start of the simulation.
    pub time: Duration,
    /// Whether the interface's host sent or received it, if known.
    pub direction: Option<Direction>,
    /// The captured bytes, from the Ethernet header on.
    pub bytes: Vec<u8>,
    /// The frame's length when it was captured.
    pub original_len: usize,
    /// Comments on it.
    pub comments: Vec<String>,
}

impl From<&CapturedFrame<'_>> for RecordedFrame {
    fn from(frame: &CapturedFrame<'_>) -> Self {
        let before = frame.link_bytes.len() - frame.bytes.len();
        RecordedFrame {
            time: frame.time,
            direction: frame.direction,
            bytes: frame.link_bytes.to_vec(),
            original_len: frame.original_len + before,
            comments: frame.comments.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Writes one pcapng section with any number of interfaces.
#[derive(Debug)]
pub struct Writer<W: Write> {
    sink: W,
    snaplen: u32,
    counts: Vec<Counts>,
    /// The sink's first error. No data is written after it, because a block may be truncated.
    error: Option<io::Error>,
    frame: Vec<u8>,
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a capture of complete frames.
    pub fn new(sink: W) -> io::Result<Self> {
        Self::with_snaplen(sink, WHOLE_FRAMES)
    }

    /// Begins a capture of the first `snaplen` bytes of each frame.
    pub fn with_snaplen(sink: W, snaplen: u32) -> io::Result<Self> {
        Self::begin(sink, block::APPLICATION, &[], snaplen)
    }

    /// Begins a capture of complete frames, with the name of a program and comments on the capture.
    pub fn with_comments(sink: W, program: &str, comments: &[String]) -> io::Result<Self> {
        Self::begin(sink, program, comments, WHOLE_FRAMES)
    }

    fn begin(mut sink: W, program: &str, comments: &[String], snaplen: u32) -> io::Result<Self> {
        let mut block = Vec::new();
        block::append_section_header(program, comments, &mut block);
        sink.write_all(&block)?;
        Ok(Writer {
            sink,
            snaplen,
            counts: Vec::new(),
            error: None,
            frame: Vec::new(),
            block,
        })
    }

    /// Declares a host's interface. Interfaces are numbered in the order of these calls.
    pub fn add_interface(&mut self, interface: &Interface) -> io::Result<InterfaceId> {
        self.block.clear();
        block::append_interface(interface, self.snaplen, &mut self.block);
        self.sink.write_all(&self.block)?;
        let id = InterfaceId(self.counts.len() as u32);
        self.counts.push(Counts::default());
        Ok(id)
    }

    /// The interface's counts so far; zero for one that was not declared.
    pub fn counts(&self, interface: InterfaceId) -> Counts {
        self.counts
            .get(interface.0 as usize)
            .copied()
            .unwrap_or_default()
    }

    /// Adds a frame from a host's own capture as a frame of `interface`.
    ///
    /// # Panics
    /// If the interface was not declared with [`Writer::add_interface`].
    pub fn copy(&mut self, interface: InterfaceId, frame: &FollowedFrame) -> io::Result<()> {
        self.block.clear();
        self.block.extend_from_slice(&frame.block);
        block::set_frame_interface(&mut self.block, interface);
        self.sink.write_all(&self.block)?;
        self.counts[interface.0 as usize].count(true);
        Ok(())
    }

    /// Adds a frame that was read, as a frame of `interface`.
    ///
    /// # Panics
    /// If the interface was not declared with [`Writer::add_interface`].
    pub fn add(&mut self, interface: InterfaceId, frame: &RecordedFrame) -> io::Result<()> {
        self.block.clear();
        block::append_packet(
            interface,
            frame.time,
            frame.direction,
            &frame.bytes,
            frame.original_len,
            &frame.comments,
            &mut self.block,
        );
        self.sink.write_all(&self.block)?;
        self.counts[interface.0 as usize].count(true);
        Ok(())
    }

    /// Counts frames of `interface` that the capture lacks.
    ///
    /// # Panics
    /// If the interface was not declared with [`Writer::add_interface`].
    pub fn add_dropped(&mut self, interface: InterfaceId, frames: u64) {
        let counts = &mut self.counts[interface.0 as usize];
        counts.seen += frames;
        counts.dropped += frames;
    }

    /// Flushes the sink.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    /// Ends the capture with each interface's counts, and returns the sink. Fails with the sink's
    /// first error, if there was one.
    pub fn finish(mut self, time: Duration) -> io::Result<W> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.block.clear();
        for (index, counts) in self.counts.iter().enumerate() {
            let interface = InterfaceId(index as u32);
            block::append_statistics(
                interface,
                time,
                StatisticsKind::All,
                *counts,
                &mut self.block,
            );
        }
        self.sink.write_all(&self.block)?;
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn record(
        &mut self,
        interface: InterfaceId,
        time: Duration,
        direction: Direction,
        frame: &Frame<'_>,
    ) -> bool {
        self.frame.clear();
        if frame.emit(&mut self.frame).is_err() {
            return false;
        }
        self.record_bytes(interface, time, direction)
    }

    /// Records the bytes in `frame`.
    fn record_bytes(
        &mut self,
        interface: InterfaceId,
        time: Duration,
        direction: Direction,
    ) -> bool {
        if self.error.is_some() {
            return false;
        }
        self.block.clear();
        block::append_frame(
            interface,
            time,
            direction,
            &self.frame,
            self.snaplen,
            &mut self.block,
        );
        match self.sink.write_all(&self.block) {
            Ok(()) => true,
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }
}

impl<W: Write> Writer<W> {
    fn check(&self, interface: InterfaceId) {
        assert!(
            (interface.0 as usize) < self.counts.len(),
            "interface {} of the capture was never declared",
            interface.0
        );
    }
}

impl<W: Write> CaptureTap for Writer<W> {
    /// # Panics
    /// If the interface was not declared with [`Writer::add_interface`].
    fn raw(&mut self, interface: InterfaceId, time: Duration, direction: Direction, bytes: &[u8]) {
        self.check(interface);
        self.frame.clear();
        self.frame.extend_from_slice(bytes);
        let recorded = self.record_bytes(interface, time, direction);
        self.counts[interface.0 as usize].count(recorded);
    }

    /// # Panics
    /// If the interface was not declared with [`Writer::add_interface`].
    fn frame(
        &mut self,
        interface: InterfaceId,
        time: Duration,
        direction: Direction,
        frame: &Frame<'_>,
    ) {
        self.check(interface);
        let recorded = self.record(interface, time, direction, frame);
        self.counts[interface.0 as usize].count(recorded);
    }
}
