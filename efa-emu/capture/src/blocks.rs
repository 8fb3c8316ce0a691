//! The fields of pcapng blocks and pcap records of any writer.
//!
//! A block is malformed only if its packet cannot be found. Invalid options do not affect this:
//! they may lack an end mark, be truncated, or not be UTF-8, and the packet is still read.

use std::borrow::Cow;

/// Types of blocks that contain packets, or describe them.
pub(super) mod code {
    pub(crate) const SECTION: u32 = 0x0a0d_0d0a;
    pub(crate) const INTERFACE: u32 = 1;
    pub(crate) const PACKET: u32 = 2;
    pub(crate) const SIMPLE_PACKET: u32 = 3;
    pub(crate) const STATISTICS: u32 = 5;
    pub(crate) const ENHANCED_PACKET: u32 = 6;

    /// Blocks that Wireshark shows and numbers as frames: of systemd's journal, of sysdig, and
    /// custom blocks.
    pub(crate) const NUMBERED: [u32; 7] = [9, 0x204, 0x208, 0x216, 0x221, 0xbad, 0x4000_0bad];
    /// Blocks that describe others: names, secrets.
    pub(crate) const DESCRIPTIONS: [u32; 2] = [4, 10];
}

const COMMENT: u16 = 1;
const EPB_FLAGS: u16 = 2;
const IF_NAME: u16 = 2;
const IF_IPV6ADDR: u16 = 5;
const IF_TSRESOL: u16 = 9;
const IF_TSOFFSET: u16 = 14;
const IF_HARDWARE: u16 = 15;
const ISB_IFDROP: u16 = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            ByteOrder::Big => u16::from_be_bytes(bytes),
            ByteOrder::Little => u16::from_le_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            ByteOrder::Big => u32::from_be_bytes(bytes),
            ByteOrder::Little => u32::from_le_bytes(bytes),
        }
    }

    fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            ByteOrder::Big => u64::from_be_bytes(bytes),
            ByteOrder::Little => u64::from_le_bytes(bytes),
        }
    }
}

/// The bytes of a block between its two lengths, or of a record's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body<'a> {
    pub(super) order: ByteOrder,
    pub(super) bytes: &'a [u8],
}

impl<'a> Body<'a> {
    pub(super) fn u16(self, at: usize) -> Option<u16> {
        Some(self.order.u16(*self.bytes.get(at..)?.first_chunk()?))
    }

    pub(super) fn u32(self, at: usize) -> Option<u32> {
        Some(self.order.u32(*self.bytes.get(at..)?.first_chunk()?))
    }

    /// A time, upper half first.
    fn time(self, at: usize) -> Option<u64> {
        Some(u64::from(self.u32(at)?) << 32 | u64::from(self.u32(at + 4)?))
    }

    /// The options from an offset on: code and value.
    fn options(self, at: usize) -> Options<'a> {
        Options {
            order: self.order,
            bytes: self.bytes.get(at..).unwrap_or_default(),
        }
    }
}

struct Options<'a> {
    order: ByteOrder,
    bytes: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&code, rest) = self.bytes.split_first_chunk()?;
        let (&length, rest) = rest.split_first_chunk()?;
        let (code, length) = (self.order.u16(code), usize::from(self.order.u16(length)));
        let value = rest.get(..length)?;
        self.bytes = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        (code != 0).then_some((code, value))
    }
}

/// A text, which may not be UTF-8.
fn text(value: &[u8]) -> Cow<'_, str> {
    let end = value.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())])
}

/// An interface as its block declares it.
#[derive(Debug)]
pub(super) struct Interface<'a> {
    pub(super) linktype: u32,
    pub(super) snaplen: u32,
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) hardware: Option<Cow<'a, str>>,
    /// `if_IPv6addr` without its prefix length.
    pub(super) address: Option<[u8; 16]>,
    /// `if_tsresol`.
    pub(super) resolution: Option<u8>,
    /// `if_tsoffset`, in seconds.
    pub(super) offset: i64,
}

impl<'a> Interface<'a> {
    pub(super) fn read(body: Body<'a>) -> Option<Interface<'a>> {
        let mut interface = Interface {
            linktype: body.u16(0)?.into(),
            snaplen: body.u32(4)?,
            name: None,
            hardware: None,
            address: None,
            resolution: None,
            offset: 0,
        };
        for (code, value) in body.options(8) {
            match code {
                IF_NAME => interface.name = Some(text(value)),
                IF_HARDWARE => interface.hardware = Some(text(value)),
                IF_IPV6ADDR => interface.address = value.first_chunk().copied(),
                IF_TSRESOL => interface.resolution = value.first().copied(),
                IF_TSOFFSET => {
                    let seconds = value.first_chunk().map(|bytes| body.order.u64(*bytes));
                    interface.offset = seconds.unwrap_or_default().cast_signed();
                }
                _ => {}
            }
        }
        Some(interface)
    }
}

/// A packet, from any type of block.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    pub(super) interface: u32,
    /// The time in units of its interface; `None` if the block has none.
    pub(super) time: Option<u64>,
    pub(super) bytes: &'a [u8],
    pub(super) original_len: usize,
    pub(super) flags: Option<u32>,
    pub(super) comments: Vec<Cow<'a, str>>,
}

impl<'a> Packet<'a> {
    /// Reads a block with a packet; `snaplen` is the first interface's. `None` if it is malformed.
    pub(super) fn read(code: u32, body: Body<'a>, snaplen: Option<u32>) -> Option<Packet<'a>> {
        if code == code::SIMPLE_PACKET {
            let original_len = body.u32(0)? as usize;
            let most = snaplen.filter(|length| *length > 0).unwrap_or(u32::MAX);
            let rest = body.bytes.get(4..)?;
            let length = original_len.min(most as usize).min(rest.len());
            return Some(Packet {
                interface: 0,
                time: None,
                bytes: &rest[..length],
                original_len,
                flags: None,
                comments: Vec::new(),
            });
        }
        let interface = match code {
            code::PACKET => body.u16(0)?.into(),
            _ => body.u32(0)?,
        };
        let length = body.u32(12)? as usize;
        let options_at = 20_usize.checked_add(length)?.checked_next_multiple_of(4)?;
        let mut packet = Packet {
            interface,
            time: Some(body.time(4)?),
            bytes: body.bytes.get(20..20 + length)?,
            original_len: body.u32(16)? as usize,
            flags: None,
            comments: Vec::new(),
        };
        for (code, value) in body.options(options_at) {
            match code {
                COMMENT => packet.comments.push(text(value)),
                EPB_FLAGS => packet.flags = value.first_chunk().map(|it| body.order.u32(*it)),
                _ => {}
            }
        }
        Some(packet)
    }
}

/// The interface of a statistics block, and the number of frames that it did not capture.
pub(super) fn statistics(body: Body<'_>) -> Option<(u32, Option<u64>)> {
    let interface = body.u32(0)?;
    let dropped = body.options(12).find(|(code, _)| *code == ISB_IFDROP);
    let count = dropped.and_then(|(_, value)| Some(body.order.u64(*value.first_chunk()?)));
    Some((interface, count))
}

/// The header of a file in the classic format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Classic {
    pub(super) order: ByteOrder,
    /// Units of time per second.
    pub(super) per_second: u64,
    /// Bytes of a record's header.
    pub(super) record: usize,
}

impl Classic {
    /// Bytes of the file's header.
    pub(super) const HEADER: usize = 24;

    /// Recognises the format from the first four bytes of a file.
    pub(super) fn recognise(start: [u8; 4]) -> Option<Classic> {
        [ByteOrder::Big, ByteOrder::Little]
            .into_iter()
            .find_map(|order| {
                let (per_second, record) = match order.u32(start) {
                    0xa1b2_c3d4 => (1_000_000, 16),
                    0xa1b2_3c4d => (1_000_000_000, 16),
                    // Kuznetsov's variant: eight more bytes in each record.
                    0xa1b2_cd34 => (1_000_000, 24),
                    _ => return None,
                };
                Some(Classic {
                    order,
                    per_second,
                    record,
                })
            })
    }

    /// The link type in the file's header; the upper bits describe frame check sequences.
    pub(super) fn linktype(self, header: &[u8]) -> Option<u32> {
        let order = self.order;
        let word = Body {
            order,
            bytes: header,
        }
        .u32(20)?;
        Some(word & 0x03ff_ffff)
    }

    /// The time of a record, its captured length and its original length.
    pub(super) fn record(self, header: &[u8]) -> Option<(u64, usize, usize)> {
        let order = self.order;
        let body = Body {
            order,
            bytes: header,
        };
        let time = u64::from(body.u32(0)?) * self.per_second + u64::from(body.u32(4)?);
        Some((time, body.u32(8)? as usize, body.u32(12)? as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes: &[u8]) -> Body<'_> {
        let order = ByteOrder::Little;
        Body { order, bytes }
    }

    #[test]
    fn options_end_where_the_block_does() {
        let bytes = *b"\x02\0\x01\0a\0\0\0\x0f\0\x03\0b\xe9c\0";
        let found: Vec<_> = body(&bytes).options(0).collect();
        assert_eq!(found, [(2, &b"a"[..]), (15, b"b\xe9c")]);
        assert_eq!(text(found[1].1), "b\u{fffd}c");
        // The value of the second option is cut off.
        assert_eq!(body(&bytes[..14]).options(0).count(), 1);
    }

    #[test]
    fn obsolete_and_simple_packets_are_read() {
        let obsolete = *b"\x01\0\x09\0\x02\0\0\0\x01\0\0\0\x03\0\0\0\x05\0\0\0abc\0";
        let packet = Packet::read(code::PACKET, body(&obsolete), None).unwrap();
        assert_eq!((packet.interface, packet.time), (1, Some((2 << 32) + 1)));
        assert_eq!((packet.bytes, packet.original_len), (&b"abc"[..], 5));
        let simple = *b"\x05\0\0\0abc\0";
        let packet = Packet::read(code::SIMPLE_PACKET, body(&simple), Some(3)).unwrap();
        assert_eq!((packet.bytes, packet.original_len), (&b"abc"[..], 5));
        assert_eq!(packet.time, None);
    }
}
