//! The pcapng blocks of captures of this project, as bytes.

use std::borrow::Cow;
use std::time::Duration;

use byteorder_slice::LittleEndian;
use pcap_file::pcapng::PcapNgBlock;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness};

use efa_wire::address::Gid;

use super::{Counts, Direction, Interface, InterfaceId};
use crate::frame;

/// `if_tsresol` of nanoseconds: 10^-9 s.
pub(super) const NANOSECONDS: u8 = 9;

/// `epb_flags`: bits 0-1 are the direction, bits 2-4 the reception type, 1 = unicast.
const UNICAST: u32 = 1 << 2;
const DIRECTION_MASK: u32 = 0b11;
const INBOUND: u32 = 0b01;
const OUTBOUND: u32 = 0b10;

/// The direction in an `epb_flags` word.
pub(super) fn direction(flags: u32) -> Option<Direction> {
    match flags & DIRECTION_MASK {
        INBOUND => Some(Direction::Inbound),
        OUTBOUND => Some(Direction::Outbound),
        _ => None,
    }
}

/// `pcap-file` writes the two 32-bit halves of a statistics block's times as one 64-bit integer in
/// the section's byte order, but the format requires the upper half first in either order.
pub(super) const fn swap_halves(timestamp: u64) -> u64 {
    timestamp.rotate_left(32)
}

fn append<'a>(block: impl PcapNgBlock<'a>, bytes: &mut Vec<u8>) {
    // Captures are little-endian on every machine, so that a seed produces the same file
    // everywhere.
    block
        .into_block()
        .write_to::<LittleEndian, _>(bytes)
        .expect("writing to a Vec cannot fail");
}

/// The default name of the capturing application.
pub(super) const APPLICATION: &str = concat!("efa-emu ", env!("CARGO_PKG_VERSION"));

/// Appends the block that begins a capture: the program that writes it, and comments on the
/// capture.
pub(super) fn append_section_header(application: &str, comments: &[String], bytes: &mut Vec<u8>) {
    let mut options = vec![SectionHeaderOption::UserApplication(Cow::Borrowed(
        application,
    ))];
    let comments = comments.iter().map(String::as_str).map(Cow::Borrowed);
    options.extend(comments.map(SectionHeaderOption::Comment));
    append(
        SectionHeaderBlock {
            endianness: Endianness::Little,
            options,
            ..SectionHeaderBlock::default()
        },
        bytes,
    );
}

/// Appends the block that declares an interface whose frames are recorded up to `snaplen` bytes.
/// Interfaces are numbered in the order of their blocks.
pub(super) fn append_interface(interface: &Interface, snaplen: u32, bytes: &mut Vec<u8>) {
    let mut address = interface.gid.0.to_vec();
    address.push(64);
    let mac = frame::ethernet_address(interface.gid);
    let mut options = vec![
        InterfaceDescriptionOption::IfName(Cow::Borrowed(&interface.host)),
        InterfaceDescriptionOption::IfDescription(Cow::Owned(format!(
            "EFA device of host {}",
            interface.host
        ))),
        InterfaceDescriptionOption::IfHardware(Cow::Borrowed(&interface.profile)),
    ];
    if interface.gid != Gid::default() {
        options.extend([
            InterfaceDescriptionOption::IfIpv6Addr(Cow::Owned(address)),
            InterfaceDescriptionOption::IfMacAddr(Cow::Borrowed(mac.as_bytes())),
        ]);
    }
    options.push(InterfaceDescriptionOption::IfTsResol(NANOSECONDS));
    append(
        InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen,
            options,
        },
        bytes,
    );
}

/// The snap length in an interface block of [`append_interface`]. It follows the block's type and
/// length, and the link type.
pub(super) fn snaplen(block: &[u8; SNAPLEN_END]) -> u32 {
    let [.., a, b, c, d] = *block;
    u32::from_le_bytes([a, b, c, d])
}

/// The end of the snap length in the block that declares an interface.
pub(super) const SNAPLEN_END: usize = 16;

/// Appends the first `snaplen` bytes of a frame, which the caller passes as bytes.
pub(super) fn append_frame(
    interface: InterfaceId,
    time: Duration,
    direction: Direction,
    frame: &[u8],
    snaplen: u32,
    bytes: &mut Vec<u8>,
) {
    append_packet(
        interface,
        time,
        Some(direction),
        &frame[..frame.len().min(snaplen as usize)],
        frame.len(),
        &[],
        bytes,
    );
}

/// Appends a frame of which a capture has the first bytes, with comments on the frame.
pub(super) fn append_packet(
    interface: InterfaceId,
    time: Duration,
    direction: Option<Direction>,
    captured: &[u8],
    original_len: usize,
    comments: &[String],
    bytes: &mut Vec<u8>,
) {
    let mut options = Vec::new();
    if let Some(direction) = direction {
        let direction = match direction {
            Direction::Inbound => INBOUND,
            Direction::Outbound => OUTBOUND,
        };
        options.push(EnhancedPacketOption::Flags(UNICAST | direction));
    }
    let comments = comments.iter().map(String::as_str).map(Cow::Borrowed);
    options.extend(comments.map(EnhancedPacketOption::Comment));
    append(
        EnhancedPacketBlock {
            interface_id: interface.0,
            timestamp: time,
            original_len: original_len as u32,
            data: Cow::Borrowed(captured),
            options,
        },
        bytes,
    );
}

/// The frame in a block of [`append_frame`]: its direction, the recorded bytes, and its length.
pub(super) fn frame(block: &[u8]) -> Option<(Direction, &[u8], usize)> {
    let word = |at: usize| Some(u32::from_le_bytes(block.get(at..at + 4)?.try_into().ok()?));
    // After type, length, interface, and both halves of the time: captured and original length.
    let (length_at, data_at) = (20, 28_usize);
    let length = usize::try_from(word(length_at)?).ok()?;
    let bytes = block.get(data_at..data_at.checked_add(length)?)?;
    let original = usize::try_from(word(length_at + 4)?).ok()?;
    // The flags are the value of the first option, after its code and length.
    let flags = word(data_at + length.next_multiple_of(4) + 4)?;
    Some((direction(flags)?, bytes, original))
}

/// Changes the interface of the frame in a block of [`append_frame`]. The interface's number
/// follows the block's type and length.
pub(super) fn set_frame_interface(block: &mut [u8], interface: InterfaceId) {
    block[8..12].copy_from_slice(&interface.0.to_le_bytes());
}

/// The first of several blocks of [`append_frame`].
pub(super) fn first_frame(blocks: &[u8]) -> Option<&[u8]> {
    let length = u32::from_le_bytes(blocks.get(4..8)?.try_into().ok()?);
    blocks.get(..length as usize)
}

/// The interface of the frame in a block of [`append_frame`].
pub(super) fn frame_interface(block: &[u8]) -> InterfaceId {
    InterfaceId(u32::from_le_bytes([
        block[8], block[9], block[10], block[11],
    ]))
}

/// The counters of an interface statistics block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StatisticsKind {
    /// Frames seen and frames dropped.
    All,
    /// Frames dropped; a reader counts those that were recorded.
    Dropped,
}

/// The offset of the count in a block of [`StatisticsKind::Dropped`]: after the block's type and
/// length, the interface and the time, and the option's code and length.
pub(super) const DROPPED_OFFSET: u64 = 8 + 12 + 4;

/// Appends an interface's counts.
pub(super) fn append_statistics(
    interface: InterfaceId,
    time: Duration,
    kind: StatisticsKind,
    counts: Counts,
    bytes: &mut Vec<u8>,
) {
    let dropped = InterfaceStatisticsOption::IsbIfDrop(counts.dropped);
    append(
        InterfaceStatisticsBlock {
            interface_id: interface.0,
            timestamp: swap_halves(time.as_nanos() as u64),
            options: match kind {
                StatisticsKind::All => {
                    vec![InterfaceStatisticsOption::IsbIfRecv(counts.seen), dropped]
                }
                StatisticsKind::Dropped => vec![dropped],
            },
        },
        bytes,
    );
}
