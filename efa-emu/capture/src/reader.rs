//! Reads captures. The bytes are not trusted: invalid input causes no panic, and memory is bounded
//! by the longest permitted block.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use super::blocks::{self, Body, ByteOrder, Classic, Packet, code};
use super::compressed::Decompressed;
use super::{Counts, Direction, Interface, InterfaceId, block};
use efa_wire::address::Gid;

use crate::frame::{self, Frame, link};

/// The longest permitted block of a capture in bytes; Wireshark has the same limit.
const LONGEST_BLOCK: u32 = 16 << 20;
/// A capture with more interfaces is rejected as damaged.
const MOST_INTERFACES: usize = 1 << 16;

/// The error that stopped reading a capture.
#[derive(Debug, thiserror::Error)]
#[error("{file}{}: {problem}", place(*.offset))]
pub struct ReadError {
    /// The capture's name.
    pub file: String,
    /// The offset in the file of the block that cannot be read.
    pub offset: u64,
    /// The error.
    pub problem: Problem,
}

/// The position of an error in a file, for messages; empty at the start of the file.
fn place(offset: u64) -> String {
    match offset {
        0 => String::new(),
        _ => format!(", byte {offset}"),
    }
}

/// An error in a capture.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is empty.
    #[error("the file is empty: not a capture")]
    Empty,
    /// The file is something else.
    #[error("not a capture: it begins with {start:02x?}")]
    NotCapture {
        /// The first four bytes.
        start: [u8; 4],
    },
    /// A block is malformed.
    #[error("malformed block of type {code:#x}: {reason}")]
    Malformed {
        /// The block's type code.
        code: u32,
        /// The reason.
        reason: String,
    },
    /// A packet names an interface that was not declared.
    #[error("a packet names interface {id}, but only {declared} are declared")]
    Interface {
        /// The interface's number.
        id: u32,
        /// The number of declared interfaces.
        declared: usize,
    },
}

/// The capture ends inside a block: its writer was killed, or the file was cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncation {
    /// The offset of the incomplete block.
    pub offset: u64,
    /// The number of its bytes that are present.
    pub have: u64,
}

impl fmt::Display for Truncation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the capture ends inside the block at byte {}: its last {} bytes were ignored",
            self.offset, self.have
        )
    }
}

/// An interface as a capture declares it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CapturedInterface {
    /// `if_name`: the host's name in captures of this project.
    pub name: Option<String>,
    /// `if_hardware`: the device's profile in captures of this project.
    pub hardware: Option<String>,
    /// `if_IPv6addr`: the device's GID in captures of this project.
    pub gid: Option<Gid>,
    /// The frames of this interface read so far, plus the missing ones that the capture's
    /// statistics blocks report; `None` if no block reports any.
    pub counts: Option<Counts>,
    frames: u64,
    linktype: u32,
    snaplen: u32,
    time: TimeUnit,
}

impl CapturedInterface {
    /// The device of the emulated host, if the interface is declared as in captures of this
    /// project: with names, with Ethernet, and with times in nanoseconds. The GID may be missing,
    /// because Wireshark's tools drop it.
    pub fn device(&self) -> Option<Interface> {
        let is_ours = self.linktype == link::ETHERNET && self.time == TimeUnit::NANOSECONDS;
        let (host, profile) = self.name.clone().zip(self.hardware.clone())?;
        is_ours.then(|| Interface::new(host, profile, self.gid.unwrap_or_default()))
    }
}

/// One frame of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedFrame<'a> {
    /// The frame's number in the capture, from 1 as in Wireshark.
    pub number: u64,
    /// The offset of the frame's block in the file.
    pub offset: u64,
    /// The interface that recorded it.
    pub interface: InterfaceId,
    /// The time since the Unix epoch, or since the start of the simulation.
    pub time: Duration,
    /// Whether the interface's host sent or received it, if the capture or its link layer contains
    /// this.
    pub direction: Option<Direction>,
    /// `opt_comment`: comments on the frame by the capture's author.
    pub comments: Vec<Cow<'a, str>>,
    /// The IPv6 packet, up to the snap length; all bytes, if there is none.
    pub bytes: &'a [u8],
    /// The frame's length when it was captured.
    pub original_len: usize,
    /// All captured bytes of the frame, including its link layer's header.
    pub link_bytes: &'a [u8],
    /// The bytes as a frame of the emulated wire, or the reason why they are not one. If the snap
    /// length truncated them, the frame's payload is shorter than the length in its header.
    pub frame: Result<Frame<'a>, frame::Error>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TimeUnit {
    /// Units per second.
    per_second: u64,
    /// Seconds to add.
    offset: i64,
}

impl Default for TimeUnit {
    /// The format's default is microseconds.
    fn default() -> Self {
        TimeUnit {
            per_second: 1_000_000,
            offset: 0,
        }
    }
}

impl TimeUnit {
    const NANOSECONDS: TimeUnit = TimeUnit {
        per_second: 1_000_000_000,
        offset: 0,
    };

    /// Reads `if_tsresol`: a negative power of ten, or of two if the top bit is set. With units so
    /// small that a second needs more than 64 bits, all times may be zero.
    fn of(resolution: Option<u8>, offset: i64) -> TimeUnit {
        let code = resolution.unwrap_or(6);
        let base: u64 = if code & 0x80 == 0 { 10 } else { 2 };
        let per_second = base.checked_pow((code & 0x7f).into());
        TimeUnit {
            per_second: per_second.unwrap_or(u64::MAX),
            offset,
        }
    }

    /// Times before the epoch become the epoch.
    fn duration(self, units: u64) -> Duration {
        let seconds = (units / self.per_second).saturating_add_signed(self.offset);
        let rest =
            u128::from(units % self.per_second) * 1_000_000_000 / u128::from(self.per_second);
        Duration::new(seconds, rest as u32)
    }
}

/// Reads the frames of a capture in file order: pcapng or the classic format, uncompressed or
/// compressed with gzip, zstd or lz4.
///
/// Blocks other than sections, interfaces, packets and statistics are skipped. The interfaces of
/// later sections continue the numbers, so that an [`InterfaceId`] is unique in the file.
pub struct Reader<R: Read> {
    source: Decompressed<R>,
    /// The header, if the file has the classic format.
    classic: Option<Classic>,
    file: String,
    offset: u64,
    order: ByteOrder,
    /// The index of the current section's first interface.
    section: usize,
    interfaces: Vec<CapturedInterface>,
    frames: u64,
    skipped: u64,
    truncation: Option<Truncation>,
    buffer: Vec<u8>,
}

impl Reader<BufReader<File>> {
    /// Opens a capture file.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = path.display().to_string();
        match File::open(path) {
            Ok(source) => Self::new(BufReader::with_capacity(0, source), file),
            Err(error) => Err(ReadError {
                file,
                offset: 0,
                problem: error.into(),
            }),
        }
    }
}

impl<R: Read> Reader<R> {
    /// Reads a capture from `source`; error messages name it `file`.
    pub fn new(source: R, file: impl Into<String>) -> Result<Self, ReadError> {
        let file = file.into();
        let source = Decompressed::new(source).map_err(|error| ReadError {
            file: file.clone(),
            offset: 0,
            problem: error.into(),
        })?;
        let mut reader = Reader {
            source,
            classic: None,
            file,
            offset: 0,
            order: ByteOrder::Little,
            section: 0,
            interfaces: Vec::new(),
            frames: 0,
            skipped: 0,
            truncation: None,
            buffer: Vec::new(),
        };
        let start = reader.fill(4)?;
        let begins = reader
            .buffer
            .get(..4)
            .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        match begins {
            Some(bytes) if bytes == code::SECTION.to_be_bytes() => Ok(reader),
            _ if start == 0 => Err(reader.error(Problem::Empty)),
            Some(bytes) if Classic::recognise(bytes).is_some() => {
                reader.classic = Classic::recognise(bytes);
                reader.begin_classic()?;
                Ok(reader)
            }
            _ => {
                let start =
                    core::array::from_fn(|i| reader.buffer.get(i).copied().unwrap_or_default());
                Err(reader.error(Problem::NotCapture { start }))
            }
        }
    }

    /// Reads the header of a file in the classic format, which has one interface.
    fn begin_classic(&mut self) -> Result<(), ReadError> {
        let have = self.fill(Classic::HEADER)?;
        if have < Classic::HEADER {
            self.end(0, have);
        }
        let classic = self.classic;
        let linktype = classic.and_then(|classic| classic.linktype(&self.buffer));
        self.offset = have as u64;
        self.interfaces.push(CapturedInterface {
            linktype: linktype.unwrap_or_default(),
            time: TimeUnit {
                per_second: classic.map_or(1, |classic| classic.per_second),
                offset: 0,
            },
            ..CapturedInterface::default()
        });
        Ok(())
    }

    /// The interfaces declared so far. Their counts are complete after the last frame.
    pub fn interfaces(&self) -> &[CapturedInterface] {
        &self.interfaces
    }

    /// After the last frame: whether the capture ended in the middle of a block.
    pub fn truncation(&self) -> Option<Truncation> {
        self.truncation
    }

    /// The number of blocks of types without known packets.
    pub fn skipped_blocks(&self) -> u64 {
        self.skipped
    }

    /// The next frame, `None` at the end of the capture.
    ///
    /// # Errors
    /// If the capture cannot be read on.
    pub fn next_frame(&mut self) -> Result<Option<CapturedFrame<'_>>, ReadError> {
        if let Some(classic) = self.classic {
            return self.next_record(classic);
        }
        loop {
            let offset = self.offset;
            let Some(code) = self.next_block()? else {
                return Ok(None);
            };
            match code {
                code::SECTION => self.section = self.interfaces.len(),
                code::INTERFACE => self.declare_interface(offset)?,
                code::STATISTICS => self.add_statistics(offset)?,
                code::PACKET | code::SIMPLE_PACKET | code::ENHANCED_PACKET => {
                    return self.packet(offset, code).map(Some);
                }
                _ if code::DESCRIPTIONS.contains(&code) => {}
                _ => {
                    self.skipped += 1;
                    self.frames += u64::from(code::NUMBERED.contains(&code));
                }
            }
        }
    }

    /// The next record of a file in the classic format.
    fn next_record(&mut self, classic: Classic) -> Result<Option<CapturedFrame<'_>>, ReadError> {
        self.buffer.clear();
        let offset = self.offset;
        let have = self.fill(classic.record)?;
        let header = (have == classic.record).then(|| classic.record(&self.buffer));
        let Some((time, length, original_len)) = header.flatten() else {
            self.end(offset, have);
            return Ok(None);
        };
        if length > LONGEST_BLOCK as usize {
            let reason = format!("its length {length} is more than {LONGEST_BLOCK}");
            return Err(self.malformed(offset, 0, reason));
        }
        let whole = classic.record + length;
        let have = self.fill(whole)?;
        if have < whole {
            self.end(offset, have);
            return Ok(None);
        }
        self.offset += whole as u64;
        self.frames += 1;
        let packet = Packet {
            interface: 0,
            time: Some(time),
            bytes: &self.buffer[classic.record..],
            original_len,
            flags: None,
            comments: Vec::new(),
        };
        Ok(Some(frame(
            self.frames,
            offset,
            0,
            &self.interfaces[0],
            packet,
        )))
    }

    /// Reads one complete block into the buffer; `None` at the end.
    fn next_block(&mut self) -> Result<Option<u32>, ReadError> {
        // The first four bytes of the file were already read to recognise the format.
        if self.offset > 0 {
            self.buffer.clear();
        }
        let offset = self.offset;
        let have = self.fill(12)?;
        if have < 12 {
            return Ok(self.end(offset, have));
        }
        let word = |at: usize| core::array::from_fn(|i| self.buffer[at + i]);
        if word(0) == code::SECTION.to_be_bytes() {
            self.order = match word(8) {
                [0x1a, 0x2b, 0x3c, 0x4d] => ByteOrder::Big,
                [0x4d, 0x3c, 0x2b, 0x1a] => ByteOrder::Little,
                found => {
                    let reason = format!("byte-order magic is {found:02x?}");
                    return Err(self.malformed(offset, code::SECTION, reason));
                }
            };
        }
        let code = self.order.u32(word(0));
        let length = self.order.u32(word(4));
        if !(12..=LONGEST_BLOCK).contains(&length) || !length.is_multiple_of(4) {
            let reason = format!(
                "its length {length} is not a multiple of 4 between 12 and {LONGEST_BLOCK}"
            );
            return Err(self.malformed(offset, code, reason));
        }
        let have = self.fill(length as usize)?;
        if have < length as usize {
            return Ok(self.end(offset, have));
        }
        self.offset += u64::from(length);
        Ok(Some(code))
    }

    fn end(&mut self, offset: u64, have: usize) -> Option<u32> {
        if have > 0 {
            self.truncation = Some(Truncation {
                offset,
                have: have as u64,
            });
        }
        None
    }

    /// Reads until the buffer contains `wanted` bytes or the source ends, and returns the number of
    /// bytes in the buffer. The buffer grows with the bytes that are read, not with the value of a
    /// length field.
    fn fill(&mut self, wanted: usize) -> Result<usize, ReadError> {
        while let missing = wanted.saturating_sub(self.buffer.len())
            && missing > 0
        {
            match self.source.buffered().fill_buf() {
                Ok([]) => break,
                Ok(bytes) => {
                    let taken = missing.min(bytes.len());
                    self.buffer.extend_from_slice(&bytes[..taken]);
                    self.source.buffered().consume(taken);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Truncated compressed data is treated as a truncated file.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(self.error(error.into())),
            }
        }
        Ok(self.buffer.len())
    }

    fn error(&self, problem: Problem) -> ReadError {
        ReadError {
            file: self.file.clone(),
            offset: self.offset,
            problem,
        }
    }

    fn malformed(&self, offset: u64, code: u32, reason: String) -> ReadError {
        let problem = Problem::Malformed { code, reason };
        ReadError {
            file: self.file.clone(),
            offset,
            problem,
        }
    }

    fn too_short(&self, offset: u64, code: u32) -> ReadError {
        self.malformed(offset, code, "it is too short for its fields".into())
    }

    fn declare_interface(&mut self, offset: u64) -> Result<(), ReadError> {
        let code = code::INTERFACE;
        let declared = blocks::Interface::read(body(self.order, &self.buffer));
        let declared = declared.ok_or_else(|| self.too_short(offset, code))?;
        let interface = CapturedInterface {
            name: declared.name.map(Cow::into_owned),
            hardware: declared.hardware.map(Cow::into_owned),
            gid: declared.address.map(Gid),
            linktype: declared.linktype,
            snaplen: declared.snaplen,
            time: TimeUnit::of(declared.resolution, declared.offset),
            ..CapturedInterface::default()
        };
        if self.interfaces.len() >= MOST_INTERFACES {
            let reason = format!("it declares more than {MOST_INTERFACES} interfaces");
            return Err(self.malformed(offset, code, reason));
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn add_statistics(&mut self, offset: u64) -> Result<(), ReadError> {
        let statistics = blocks::statistics(body(self.order, &self.buffer));
        let (id, dropped) = statistics.ok_or_else(|| self.too_short(offset, code::STATISTICS))?;
        let index = self.interface_index(offset, id)?;
        let interface = &mut self.interfaces[index];
        if let Some(dropped) = dropped {
            let counts = interface.counts.get_or_insert(Counts {
                seen: interface.frames,
                dropped: 0,
            });
            counts.seen = counts.seen.saturating_add(dropped);
            counts.dropped = counts.dropped.saturating_add(dropped);
        }
        Ok(())
    }

    fn interface_index(&self, offset: u64, id: u32) -> Result<usize, ReadError> {
        let declared = self.interfaces.len() - self.section;
        if (id as usize) < declared {
            return Ok(self.section + id as usize);
        }
        let problem = Problem::Interface { id, declared };
        Err(ReadError {
            file: self.file.clone(),
            offset,
            problem,
        })
    }

    fn packet(&mut self, offset: u64, code: u32) -> Result<CapturedFrame<'_>, ReadError> {
        let first = self.interfaces.get(self.section);
        let snaplen = first.map(|interface| interface.snaplen);
        let Some(packet) = Packet::read(code, body(self.order, &self.buffer), snaplen) else {
            return Err(self.too_short(offset, code));
        };
        let index = self.interface_index(offset, packet.interface)?;
        self.frames += 1;
        let interface = &mut self.interfaces[index];
        interface.frames += 1;
        if let Some(counts) = &mut interface.counts {
            counts.seen = counts.seen.saturating_add(1);
        }
        Ok(frame(self.frames, offset, index, interface, packet))
    }
}

/// A block without its type and lengths.
fn body(order: ByteOrder, block: &[u8]) -> Body<'_> {
    let end = block.len().saturating_sub(4);
    Body {
        order,
        bytes: block.get(8..end).unwrap_or_default(),
    }
}

/// The frame of a packet of an interface.
fn frame<'a>(
    number: u64,
    offset: u64,
    index: usize,
    interface: &CapturedInterface,
    packet: Packet<'a>,
) -> CapturedFrame<'a> {
    let found = link::ip_packet(interface.linktype, packet.bytes);
    let start = found.map_or(0, |(start, _)| start);
    let bytes = &packet.bytes[start..];
    let original_len = packet.original_len.saturating_sub(start);
    let of_link = found.ok().and_then(|(_, direction)| direction);
    CapturedFrame {
        number,
        offset,
        interface: InterfaceId(index as u32),
        time: interface.time.duration(packet.time.unwrap_or_default()),
        direction: packet.flags.and_then(block::direction).or(of_link),
        comments: packet.comments,
        bytes,
        original_len,
        link_bytes: packet.bytes,
        frame: found.and_then(|_| Frame::parse_packet(bytes, original_len)),
    }
}
