//! Reading captures. The bytes are not trusted: nothing here panics, and memory is bounded by the
//! longest block that is allowed.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use byteorder_slice::{BigEndian, LittleEndian};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::{
    ENHANCED_PACKET_BLOCK, INTERFACE_DESCRIPTION_BLOCK, INTERFACE_STATISTIC_BLOCK,
    SECTION_HEADER_BLOCK,
};
use pcap_file::pcapng::{Block, RawBlock};
use pcap_file::{DataLink, PcapError};

use super::{Counts, Direction, InterfaceId, block};
use crate::frame::{self, Frame};

/// No block of a capture is longer than this, in bytes; Wireshark has the same limit.
const LONGEST_BLOCK: u32 = 16 << 20;
/// A capture with more interfaces than this is taken for damaged.
const MOST_INTERFACES: usize = 1 << 16;

/// Why a capture cannot be read on.
#[derive(Debug, thiserror::Error)]
#[error("{file}{}: {problem}", place(*.offset))]
pub struct ReadError {
    /// The capture's name.
    pub file: String,
    /// Where in the file the block begins that cannot be read.
    pub offset: u64,
    /// What is wrong there.
    pub problem: Problem,
}

/// Where in a file something is wrong; at its start that is left out.
fn place(offset: u64) -> String {
    match offset {
        0 => String::new(),
        _ => format!(", byte {offset}"),
    }
}

/// What is wrong with a capture.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is empty.
    #[error("the file is empty: not a capture")]
    Empty,
    /// The file is something else.
    #[error("not a pcapng capture: it begins with {start:02x?}{}", hint(.start))]
    NotPcapng {
        /// The first four bytes.
        start: [u8; 4],
    },
    /// A block is malformed.
    #[error("malformed block of type {code:#x}: {reason}")]
    Malformed {
        /// The block's type code.
        code: u32,
        /// What is malformed.
        reason: String,
    },
    /// A packet names an interface that was not declared.
    #[error("a packet names interface {id}, but only {declared} are declared")]
    Interface {
        /// The interface's number.
        id: u32,
        /// How many interfaces there are.
        declared: usize,
    },
    /// A packet is not Ethernet.
    #[error("interface {id} has link type {linktype}, only Ethernet (1) can be read")]
    LinkType {
        /// The interface's number.
        id: u32,
        /// The link type's number.
        linktype: u32,
    },
}

fn hint(start: &[u8; 4]) -> &'static str {
    match start {
        [0xd4, 0xc3, 0xb2, 0xa1]
        | [0xa1, 0xb2, 0xc3, 0xd4]
        | [0x4d, 0x3c, 0xb2, 0xa1]
        | [0xa1, 0xb2, 0x3c, 0x4d] => {
            ", which is the older pcap format; convert it with `editcap -F pcapng`"
        }
        [0x1f, 0x8b, ..] => ", which is gzip; unpack it with `gunzip`",
        [0x28, 0xb5, 0x2f, 0xfd] => ", which is zstd; unpack it with `unzstd`",
        _ => "",
    }
}

/// The capture ends inside a block: its writer was killed, or the file was cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncation {
    /// Where the incomplete block begins.
    pub offset: u64,
    /// How many of its bytes are there.
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
    /// `if_name`: the host's name in our captures.
    pub name: Option<String>,
    /// `if_hardware`: the device's profile in our captures.
    pub hardware: Option<String>,
    /// Frames of this interface read so far, and with them those that the capture's statistics
    /// blocks say are missing, added up; `None` if no block says anything.
    pub counts: Option<Counts>,
    frames: u64,
    linktype: u32,
    time: TimeUnit,
}

/// One frame of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedFrame<'a> {
    /// The frame's number in the capture, from 1 as in Wireshark.
    pub number: u64,
    /// Where the frame's block begins in the file.
    pub offset: u64,
    /// The interface that recorded it.
    pub interface: InterfaceId,
    /// Since the Unix epoch, or since the start of the simulation.
    pub time: Duration,
    /// Whether the interface's host sent or received it, if the capture says so.
    pub direction: Option<Direction>,
    /// `opt_comment`: comments on the frame by the capture's author.
    pub comments: Vec<Cow<'a, str>>,
    /// The bytes, Ethernet header first, up to the snap length.
    pub bytes: &'a [u8],
    /// How many bytes the frame had.
    pub original_len: usize,
    /// The bytes as a frame of the emulated wire, or why they are not one. If the snap length cut
    /// them, the frame's payload is shorter than its header says.
    pub frame: Result<Frame<'a>, frame::Error>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TimeUnit {
    /// Units per second.
    per_second: u64,
    /// Seconds to add.
    offset: u64,
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

/// A unit of which a second has more than 64 bits can count.
#[derive(Debug, thiserror::Error)]
#[error("if_tsresol {0:#x} is finer than 64 bits can count")]
struct ResolutionTooFine(u8);

impl TimeUnit {
    /// Reads `if_tsresol`: a negative power of ten, or of two with the top bit set.
    fn set_resolution(&mut self, code: u8) -> Result<(), ResolutionTooFine> {
        let exponent = u32::from(code & 0x7f);
        let base: u64 = if code & 0x80 == 0 { 10 } else { 2 };
        self.per_second = base.checked_pow(exponent).ok_or(ResolutionTooFine(code))?;
        Ok(())
    }

    fn duration(self, units: u64) -> Duration {
        let seconds = (units / self.per_second).saturating_add(self.offset);
        let rest =
            u128::from(units % self.per_second) * 1_000_000_000 / u128::from(self.per_second);
        Duration::new(seconds, rest as u32)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            ByteOrder::Big => u32::from_be_bytes(bytes),
            ByteOrder::Little => u32::from_le_bytes(bytes),
        }
    }

    fn parse(self, bytes: &[u8]) -> Result<Block<'_>, PcapError> {
        let raw = match self {
            ByteOrder::Big => RawBlock::from_slice::<BigEndian>(bytes)?.1,
            ByteOrder::Little => RawBlock::from_slice::<LittleEndian>(bytes)?.1,
        };
        match self {
            ByteOrder::Big => raw.try_into_block::<BigEndian>(),
            ByteOrder::Little => raw.try_into_block::<LittleEndian>(),
        }
    }
}

/// Reads the frames of a pcapng capture in file order.
///
/// Blocks other than sections, interfaces, enhanced packets and statistics are skipped. Interfaces
/// of later sections are numbered on, so that an [`InterfaceId`] is unique in the file.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    file: String,
    offset: u64,
    order: ByteOrder,
    /// Index of the current section's first interface.
    section: usize,
    interfaces: Vec<CapturedInterface>,
    frames: u64,
    truncation: Option<Truncation>,
    buffer: Vec<u8>,
}

impl Reader<BufReader<File>> {
    /// Opens a capture file.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = path.display().to_string();
        match File::open(path) {
            Ok(source) => Self::new(BufReader::with_capacity(1 << 18, source), file),
            Err(error) => Err(ReadError {
                file,
                offset: 0,
                problem: error.into(),
            }),
        }
    }
}

impl<R: Read> Reader<R> {
    /// Reads a capture from `source`; errors call it `file`.
    pub fn new(source: R, file: impl Into<String>) -> Result<Self, ReadError> {
        let mut reader = Reader {
            source,
            file: file.into(),
            offset: 0,
            order: ByteOrder::Little,
            section: 0,
            interfaces: Vec::new(),
            frames: 0,
            truncation: None,
            buffer: Vec::new(),
        };
        let start = reader.fill(4)?;
        let begins = reader
            .buffer
            .get(..4)
            .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        match begins {
            Some(bytes) if bytes == SECTION_HEADER_BLOCK.to_be_bytes() => Ok(reader),
            _ if start == 0 => Err(reader.error(Problem::Empty)),
            _ => {
                let start =
                    core::array::from_fn(|i| reader.buffer.get(i).copied().unwrap_or_default());
                Err(reader.error(Problem::NotPcapng { start }))
            }
        }
    }

    /// The interfaces declared so far. Their counts are complete after the last frame.
    pub fn interfaces(&self) -> &[CapturedInterface] {
        &self.interfaces
    }

    /// After the last frame: whether the capture ended in the middle of a block.
    pub fn truncation(&self) -> Option<Truncation> {
        self.truncation
    }

    /// The next frame, `None` at the end of the capture.
    pub fn next_frame(&mut self) -> Result<Option<CapturedFrame<'_>>, ReadError> {
        loop {
            let offset = self.offset;
            let Some(code) = self.next_block()? else {
                return Ok(None);
            };
            match code {
                SECTION_HEADER_BLOCK => self.section = self.interfaces.len(),
                INTERFACE_DESCRIPTION_BLOCK => self.declare_interface(offset)?,
                INTERFACE_STATISTIC_BLOCK => self.add_statistics(offset)?,
                ENHANCED_PACKET_BLOCK => return self.packet(offset).map(Some),
                _ => {}
            }
        }
    }

    /// Reads one whole block into the buffer; `None` at the end.
    fn next_block(&mut self) -> Result<Option<u32>, ReadError> {
        // The first four bytes of the file were read in order to recognise it.
        if self.offset > 0 {
            self.buffer.clear();
        }
        let offset = self.offset;
        let have = self.fill(12)?;
        if have < 12 {
            return Ok(self.end(offset, have));
        }
        let word = |at: usize| core::array::from_fn(|i| self.buffer[at + i]);
        if word(0) == SECTION_HEADER_BLOCK.to_be_bytes() {
            self.order = match word(8) {
                [0x1a, 0x2b, 0x3c, 0x4d] => ByteOrder::Big,
                [0x4d, 0x3c, 0x2b, 0x1a] => ByteOrder::Little,
                found => {
                    let reason = format!("byte-order magic is {found:02x?}");
                    return Err(self.malformed(offset, SECTION_HEADER_BLOCK, reason));
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

    /// Reads until the buffer holds `wanted` bytes or the source ends, and returns how many it has.
    /// The buffer grows with what is really there, not with what a length field claims.
    fn fill(&mut self, wanted: usize) -> Result<usize, ReadError> {
        let missing = wanted.saturating_sub(self.buffer.len()) as u64;
        let read = (&mut self.source)
            .take(missing)
            .read_to_end(&mut self.buffer);
        read.map_err(|error| self.error(error.into()))?;
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

    /// Parses the block in the buffer according to its code.
    fn parse<'a, T>(
        &'a self,
        offset: u64,
        code: u32,
        select: impl FnOnce(Block<'a>) -> Option<T>,
    ) -> Result<T, ReadError> {
        let block = self
            .order
            .parse(&self.buffer)
            .map_err(|error| self.malformed(offset, code, reason(&error)))?;
        select(block).ok_or_else(|| self.malformed(offset, code, "unexpected content".into()))
    }

    fn declare_interface(&mut self, offset: u64) -> Result<(), ReadError> {
        let code = INTERFACE_DESCRIPTION_BLOCK;
        let block = self.parse(offset, code, Block::into_interface_description)?;
        let interface =
            interface(&block).map_err(|error| self.malformed(offset, code, error.to_string()))?;
        if self.interfaces.len() >= MOST_INTERFACES {
            let reason = format!("it declares more than {MOST_INTERFACES} interfaces");
            return Err(self.malformed(offset, code, reason));
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn add_statistics(&mut self, offset: u64) -> Result<(), ReadError> {
        let code = INTERFACE_STATISTIC_BLOCK;
        let block = self.parse(offset, code, Block::into_interface_statistics)?;
        let (id, dropped) = (block.interface_id, block::dropped(&block));
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

    /// Counts the packet in the buffer at its interface, if it names one.
    fn count_packet(&mut self) {
        let id = self.buffer.get(8..12).and_then(|id| id.try_into().ok());
        let index = id.map(|id| self.section + self.order.u32(id) as usize);
        if let Some(interface) = index.and_then(|index| self.interfaces.get_mut(index)) {
            interface.frames += 1;
            if let Some(counts) = &mut interface.counts {
                counts.seen = counts.seen.saturating_add(1);
            }
        }
    }

    fn packet(&mut self, offset: u64) -> Result<CapturedFrame<'_>, ReadError> {
        self.frames += 1;
        self.count_packet();
        let this = &*self;
        let block = this.parse(offset, ENHANCED_PACKET_BLOCK, Block::into_enhanced_packet)?;
        let index = this.interface_index(offset, block.interface_id)?;
        let interface = &this.interfaces[index];
        if interface.linktype != u32::from(DataLink::ETHERNET) {
            let problem = Problem::LinkType {
                id: block.interface_id,
                linktype: interface.linktype,
            };
            return Err(ReadError {
                file: this.file.clone(),
                offset,
                problem,
            });
        }
        let Cow::Borrowed(bytes) = block.data else {
            return Err(this.malformed(offset, ENHANCED_PACKET_BLOCK, "no data".into()));
        };
        let mut flags = None;
        let mut comments = Vec::new();
        for option in block.options {
            match option {
                EnhancedPacketOption::Flags(word) => flags = Some(word),
                EnhancedPacketOption::Comment(text) => comments.push(text),
                _ => {}
            }
        }
        Ok(CapturedFrame {
            number: this.frames,
            offset,
            interface: InterfaceId(index as u32),
            // `pcap-file` hands out the raw units as if they were nanoseconds.
            time: interface.time.duration(block.timestamp.as_nanos() as u64),
            direction: flags.and_then(block::direction),
            comments,
            bytes,
            original_len: block.original_len as usize,
            frame: Frame::parse_cut(bytes, block.original_len as usize),
        })
    }
}

fn reason(error: &PcapError) -> String {
    match error {
        PcapError::IncompleteBuffer => "an option is cut off".into(),
        PcapError::Utf8Error(error) => format!("a text is not UTF-8: {error}"),
        error => error.to_string(),
    }
}

fn interface(
    block: &InterfaceDescriptionBlock<'_>,
) -> Result<CapturedInterface, ResolutionTooFine> {
    let mut interface = CapturedInterface {
        linktype: block.linktype.into(),
        ..CapturedInterface::default()
    };
    for option in &block.options {
        match option {
            InterfaceDescriptionOption::IfName(name) => interface.name = Some(name.to_string()),
            InterfaceDescriptionOption::IfHardware(hardware) => {
                interface.hardware = Some(hardware.to_string());
            }
            InterfaceDescriptionOption::IfTsResol(code) => interface.time.set_resolution(*code)?,
            InterfaceDescriptionOption::IfTsOffset(seconds) => interface.time.offset = *seconds,
            _ => {}
        }
    }
    Ok(interface)
}
