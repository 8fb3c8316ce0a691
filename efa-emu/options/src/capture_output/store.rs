//! The output of a recording: the frames that a filter accepts, in the order of time.
//!
//! The processes of a host record independently of each other, and a process may lose its processor
//! between reading the clock and writing the frame. Therefore frames are held for [`HELD`] and
//! written sorted. A frame that arrives later still keeps its time, and is counted. The monotonic
//! clock measures how long a frame was held, because the real-time clock may be set.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use efa_capture::frame::Frame;
use efa_capture::{FollowedFrame, Interface, InterfaceId, Writer};
use efa_shm::DeviceName;
use efa_wire::{Packet, PacketType};

use super::files::{self, CaptureOutputError, Files};
use super::filter::{Filter, FilteredFrame};
use super::options::CaptureOptions;

/// The time that a frame is held for older frames.
const HELD: Duration = Duration::from_millis(500);

/// If more bytes than this are held, the older half is written.
const MOST_HELD: usize = 64 << 20;

/// The bytes that a pipe's writer buffers until a flush: the declarations of some hundred hosts.
const BUFFERED: usize = 64 << 10;

enum Target {
    Pipe(Writer<BufWriter<File>>),
    Files(Files),
}

/// Totals of a recording.
#[derive(Clone, Debug, Default)]
pub struct RecordingTotals {
    /// Interfaces that the capture declares.
    pub hosts: usize,
    /// Frames in all files, or in the pipe.
    pub frames: u64,
    /// Bytes in all files, or in the pipe.
    pub bytes: u64,
    /// Frames that are missing.
    pub dropped: u64,
    /// The reason why frames are missing, if known.
    pub why_dropped: Option<String>,
    /// Frames that are written after younger ones.
    pub late: u64,
    /// Counts of sends: RDM packets, and others.
    pub sends: SendCounts,
}

/// Counts of the sends in a capture. After the first RDM packet the others are no longer counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendCounts {
    /// Whether there was an RDM packet.
    pub any_rdm: bool,
    /// Sends before it that are not RDM packets.
    pub others: u64,
    /// Packets of reliable connections before it.
    pub connected: u64,
}

impl SendCounts {
    fn look(&mut self, frame: &Frame<'_>) {
        if let Some(packet) = frame.rdm_packet() {
            self.any_rdm |= is_rdm(packet, frame.header.captured_len());
            self.others += u64::from(!self.any_rdm);
        }
    }
}

/// Whether the first bytes of a packet of `length` bytes are those of an RDM packet.
fn is_rdm(packet: &[u8], length: usize) -> bool {
    const VERSION: u8 = 4;
    PacketType::peek(packet).is_some()
        && packet.get(1) == Some(&VERSION)
        && (packet.len() < length || Packet::parse(packet).is_ok())
}

impl RecordingTotals {
    /// The reason why a capture has no RDM packets; `None` if it has some.
    pub fn nothing_to_judge(&self) -> Option<String> {
        if self.sends.any_rdm {
            return None;
        }
        Some(match (self.sends.others, self.sends.connected) {
            (0, 0) => "it has no RDM packets".to_owned(),
            (_, connected @ 1..) => format!(
                "it has no RDM packets; {connected} are of reliable connections, of which `efa-conformance check` judges \
                 messages with tags"
            ),
            (others, 0) => format!(
                "it has no RDM packets: none of its {others} sends is one; UCX and libfabric's efa-direct use the \
                 device without this protocol"
            ),
        })
    }
}

impl std::fmt::Display for RecordingTotals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RecordingTotals {
            hosts,
            frames,
            bytes,
            dropped,
            ..
        } = self;
        let devices = if *hosts == 1 { "host" } else { "hosts" };
        write!(
            f,
            "{frames} frames of {hosts} {devices}, {bytes} bytes, {dropped} dropped"
        )?;
        if let Some(why) = &self.why_dropped {
            write!(f, " ({why})")?;
        }
        if self.late > 0 {
            write!(f, "; {} came too late for the order of time", self.late)?;
        }
        Ok(())
    }
}

/// The output of a recording.
pub struct Store {
    target: Target,
    filter: Filter,
    /// The declared interfaces, in order. They stay declared after their hosts were removed, and
    /// are reused if the hosts return.
    interfaces: Vec<Interface>,
    /// Frames that are not written yet, and the number of their bytes.
    held: Vec<(InterfaceId, FollowedFrame)>,
    bytes_held: usize,
    /// The number of them that are sorted.
    sorted: usize,
    /// The times at which frames arrived, and the time of the youngest of them.
    arrivals: VecDeque<(Instant, Duration)>,
    /// Frames up to this time were held long enough.
    held_up_to: Duration,
    /// The time of the last frame that was written.
    latest: Duration,
    written: RecordingTotals,
}

impl Store {
    /// Writes to the file or pipe at `path`, or to a series of files.
    pub fn create(path: &Path, options: &CaptureOptions) -> Result<Store, CaptureOutputError> {
        let snaplen = options.snaplen();
        if let Some(ring) = options.ring()? {
            return Ok(Store::new(Target::Files(Files::series(
                path, ring, snaplen,
            )?)));
        }
        match files::open(path)? {
            (file, true) => Ok(Store::new(Target::Files(Files::single(
                path, file, snaplen,
            )?))),
            (pipe, false) => Ok(Store::pipe(pipe, snaplen)?),
        }
    }

    /// Writes to an open pipe.
    pub fn pipe(pipe: File, snaplen: u32) -> io::Result<Store> {
        let sink = BufWriter::with_capacity(BUFFERED, pipe);
        Ok(Store::new(Target::Pipe(Writer::with_snaplen(
            sink, snaplen,
        )?)))
    }

    fn new(target: Target) -> Store {
        Store {
            target,
            filter: Filter::All,
            interfaces: Vec::new(),
            held: Vec::new(),
            bytes_held: 0,
            sorted: 0,
            arrivals: VecDeque::new(),
            held_up_to: Duration::ZERO,
            latest: Duration::ZERO,
            written: RecordingTotals::default(),
        }
    }

    /// From now on, writes the frames that this filter accepts.
    pub fn set_filter(&mut self, filter: Filter) {
        self.filter = filter;
    }

    /// The declared interfaces.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The interface's number. Declares it first if necessary.
    pub fn declare(&mut self, interface: &Interface) -> io::Result<InterfaceId> {
        let known = self.interfaces.iter().position(|known| known == interface);
        if let Some(index) = known {
            return Ok(InterfaceId(index as u32));
        }
        self.interfaces.push(interface.clone());
        match &mut self.target {
            Target::Pipe(writer) => writer.add_interface(interface),
            Target::Files(files) => files.add_interface(interface),
        }
    }

    /// Adds frames of an interface, in any order.
    pub fn add(&mut self, interface: InterfaceId, frames: &mut Vec<FollowedFrame>) {
        self.bytes_held += frames
            .iter()
            .map(FollowedFrame::recorded_len)
            .sum::<usize>();
        self.held
            .extend(frames.drain(..).map(|frame| (interface, frame)));
    }

    /// Counts frames of an interface that its devices could not record.
    pub fn add_dropped(&mut self, interface: InterfaceId, frames: u64) {
        match &mut self.target {
            Target::Pipe(writer) => {
                writer.add_dropped(interface, frames);
                self.written.dropped += frames;
            }
            Target::Files(files) => files.add_dropped(interface, frames),
        }
    }

    /// Records why devices could not record frames. The first reason is kept.
    pub fn explain_dropped(&mut self, why: impl FnOnce() -> String) {
        self.written.why_dropped.get_or_insert_with(why);
    }

    /// Writes the frames that are old enough, and flushes. Fails if writing to a pipe fails.
    pub fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let youngest = self.held[self.sorted..]
            .iter()
            .map(|(_, frame)| frame.time)
            .max();
        self.arrivals.extend(youngest.map(|time| (now, time)));
        while let Some((_, time)) = self.arrivals.pop_front_if(|(came, _)| now - *came >= HELD) {
            self.held_up_to = self.held_up_to.max(time);
        }
        self.held.sort_by_key(|(_, frame)| frame.time);
        let limit = self.held_up_to;
        let old = self.held.partition_point(|(_, frame)| frame.time <= limit);
        let count = match self.bytes_held > MOST_HELD {
            true => old.max(self.held.len() / 2),
            false => old,
        };
        self.write(count)
    }

    /// Writes the first `count` held frames, which are sorted.
    fn write(&mut self, count: usize) -> io::Result<()> {
        for (interface, frame) in self.held.drain(..count) {
            self.bytes_held -= frame.recorded_len();
            let host = &self.interfaces[interface.0 as usize].host;
            if !passes(&self.filter, host, &frame) {
                continue;
            }
            if !self.written.sends.any_rdm {
                match frame.parse() {
                    Some((_, frame)) => self.written.sends.look(&frame),
                    None => self.written.sends.connected += u64::from(frame.is_connected()),
                }
            }
            self.written.late += u64::from(frame.time < self.latest);
            self.latest = self.latest.max(frame.time);
            self.written.frames += 1;
            match &mut self.target {
                Target::Pipe(writer) => {
                    writer.copy(interface, &frame)?;
                    self.written.bytes += frame.recorded_len() as u64;
                }
                Target::Files(files) => files.copy(interface, &frame),
            }
        }
        self.sorted = self.held.len();
        self.flush()
    }

    /// Flushes the buffered bytes.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Pipe(writer) => writer.flush(),
            Target::Files(files) => {
                files.flush();
                Ok(())
            }
        }
    }

    /// Writes all held frames, and ends the capture.
    pub fn finish(mut self) -> io::Result<RecordingTotals> {
        self.held.sort_by_key(|(_, frame)| frame.time);
        self.write(self.held.len())?;
        let mut written = self.written;
        written.hosts = self.interfaces.len();
        match self.target {
            Target::Pipe(writer) => {
                writer.finish(now())?;
            }
            Target::Files(files) => {
                let (totals, why) = files.finish();
                written.frames = totals.frames;
                written.bytes = totals.bytes;
                written.dropped = totals.dropped;
                written.why_dropped = why.or(written.why_dropped);
            }
        }
        Ok(written)
    }
}

/// Whether the frame is to be written. Only the empty filter accepts frames of other protocols.
fn passes(filter: &Filter, host: &str, frame: &FollowedFrame) -> bool {
    if *filter == Filter::All {
        return true;
    }
    let Some((device, (direction, frame))) = DeviceName::parse(host).zip(frame.parse()) else {
        return false;
    };
    filter.accepts(&FilteredFrame {
        device: &device,
        direction,
        frame: &frame,
    })
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
