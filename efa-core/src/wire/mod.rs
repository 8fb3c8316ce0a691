//! Every packet type of the EFA RDM protocol v4.
//!
//! [`Packet::parse`] turns a borrowed byte slice into a [`Header`], which is an enum of plain
//! `Copy` structs, and the place of the payload behind it. Nothing is copied but the fields of the
//! header, and nothing is allocated. The same structs are what [`Repr::emit`] writes into a caller's buffer; the exact
//! length is known before ([`Repr::header_len`]). Payload is not part of a header, because devices
//! gather it from user memory.
//!
//! ```
//! use efa_core::wire::{EagerRtm, Header, MsgId, Packet, Repr};
//!
//! let eager = EagerRtm { msg_id: MsgId(7), tag: Some(0xCAFE), ..EagerRtm::default() };
//! let mut buffer = [0; 64];
//! let length = eager.emit_packet(b"hello", &mut buffer)?;
//! assert_eq!(length, eager.header_len() + 5);
//!
//! let packet = Packet::parse(&buffer[..length])?;
//! assert_eq!(packet.header, Header::EagerRtm(eager));
//! assert_eq!(packet.payload.of(&buffer[..length]), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is accepted
//!
//! Parsing checks the form of a packet and nothing else: that every field is inside the packet,
//! that arrays are not longer than receivers can take, and that a stated length of data is the
//! true one. Unknown flags are kept, and so are bytes behind the last known field of HANDSHAKE. Where
//! the spec and stock libfabric disagree about bytes, this module follows stock libfabric, and
//! the struct says so. All integers are little-endian.

mod atomic;
mod codec;
mod declare;
mod error;
pub mod fields;
mod flags;
mod formats;
mod ids;
mod iov;
#[cfg(test)]
mod literal;
mod packet_type;
mod parts;
mod raw_address;
mod req;

pub use atomic::{AtomicDatatype, AtomicOp};
pub use codec::Repr;
pub use error::{EmitError, ParseError, Reason};
pub use flags::{CtsFlags, ExtraFeatures, HandshakeFlags, ReqFlags, UniversalFlags};
pub use formats::{
    AtomRsp, Cts, CtsData, EagerRtm, EagerRtw, Eor, Handshake, LongctsRtm, LongctsRtw, LongreadRtm,
    LongreadRtw, MediumRtm, PeerError, PeerErrorRefKind, ReadNack, ReadRsp, Receipt, Rta, RtaKind,
    Rtr, RtrKind, RuntreadRtm, UserRecvQp,
};
pub use ids::{Connid, MsgId, RecvId, SendId};
pub use iov::{ExtraInfo, RmaIov, RmaIovs};
pub use packet_type::{Category, Family, FlagSet, Header, PacketType, TypeTraits};
pub use raw_address::RawAddressHeader;
pub use req::ReqOptions;

use zerocopy::FromBytes;

use crate::address::RawAddress;
use codec::{Cursor, RawBase};
use declare::Format;

/// The version in the base header of every packet.
pub const PROTOCOL_VERSION: u8 = 4;

/// The first four bytes of every packet (spec table 1.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BaseHeader {
    /// The packet type.
    pub packet_type: PacketType,
    /// The protocol version.
    pub version: u8,
    /// All flags as they are on the wire; their meaning depends on the packet type.
    pub flags: u16,
}

impl BaseHeader {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<RawBase>();

    /// Reads the base header of any packet of an assigned type, whatever its version.
    ///
    /// # Errors
    /// If the packet is shorter than four bytes or the type id is not assigned.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<BaseHeader, ParseError> {
        split_base(packet).map(|(base, _)| base)
    }
}

/// A parsed packet, as a value that does not depend on the packet's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The base header as it was received, with all flags.
    pub base: BaseHeader,
    /// The fields of the header.
    pub header: Header,
    /// What follows the header: application data where [`PacketType::carries_data`], otherwise bytes
    /// that this version of the protocol does not know, normally none.
    pub payload: Payload,
}

/// Where the payload of a packet is. It ends with the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// Bytes in front of it, which are those of the header.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
}

impl Payload {
    /// The payload's bytes, given those of the packet that was parsed.
    pub fn of<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        packet.get(self.offset..).unwrap_or_default()
    }
}

impl Packet {
    /// Parses an eager message, the most frequent kind of packet. `None` for every other packet, and for those
    /// that [`Packet::parse`] rejects.
    #[inline(always)]
    pub(crate) fn parse_eager(packet: &[u8]) -> Option<(PacketType, EagerRtm, Payload)> {
        let mut cursor = Cursor::of(packet).ok()?;
        let packet_type = cursor.packet_type();
        let (PacketType::EagerMsgRtm | PacketType::EagerTagRtm) = packet_type else {
            return None;
        };
        let eager = EagerRtm::parse_header(&mut cursor).ok()?;
        Some((packet_type, eager, cursor.payload()))
    }

    /// The address that the sender states, if it does.
    #[inline(always)]
    pub fn raw_address(&self) -> Option<RawAddress> {
        let header = self.header.req_options()?.raw_address?;
        Some(header.address())
    }

    /// Parses a whole packet. Its length is that of the slice.
    ///
    /// # Errors
    /// If the type is not one that may be on the wire, the version is not
    /// [`PROTOCOL_VERSION`], the packet ends inside its header, an array has too many entries, or a
    /// stated length is not the true one.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Packet, ParseError> {
        let mut cursor = Cursor::of(packet)?;
        // The most frequent type that has no function like `parse_eager` is parsed here, so that the
        // cursor stays in registers. The others are parsed by a function of their own.
        match cursor.packet_type() {
            PacketType::CtsData => {
                let data = CtsData::parse_header(&mut cursor)?;
                Ok(cursor.packet_with(Header::CtsData(data)))
            }
            _ => Header::parse(cursor),
        }
    }
}

impl Header {
    #[inline(never)]
    fn parse(cursor: Cursor<'_>) -> Result<Packet, ParseError> {
        Header::parse_packet(cursor)
    }
}

impl Cursor<'_> {
    /// Starts to parse a packet: reads and checks its base header.
    #[inline(always)]
    fn of(packet: &[u8]) -> Result<Cursor<'_>, ParseError> {
        let (base, rest) = split_base(packet)?;
        if base.version != PROTOCOL_VERSION {
            return Err(unsupported_version(base));
        }
        Ok(Cursor::new(base, packet, rest))
    }
}

#[inline(always)]
fn split_base(packet: &[u8]) -> Result<(BaseHeader, &[u8]), ParseError> {
    let Ok((raw, rest)) = RawBase::ref_from_prefix(packet) else {
        return Err(truncated_base(packet));
    };
    let Some(packet_type) = PacketType::from_code(raw.packet_type) else {
        return Err(unassigned_type(raw.packet_type));
    };
    let base = BaseHeader {
        packet_type,
        version: raw.version,
        flags: raw.flags.get(),
    };
    Ok((base, rest))
}

/// The error for a packet of less than four bytes.
#[cold]
fn truncated_base(packet: &[u8]) -> ParseError {
    match (packet, codec::truncated(packet)) {
        (_, Some(error)) => error,
        ([code, ..], None) => unassigned_type(*code),
        ([], None) => ParseError {
            packet_type: None,
            field: "type",
            offset: 0,
            reason: Reason::Truncated {
                needed: 1,
                available: 0,
            },
        },
    }
}

#[cold]
fn unassigned_type(code: u8) -> ParseError {
    ParseError {
        packet_type: None,
        field: "type",
        offset: 0,
        reason: Reason::UnassignedType { code },
    }
}

#[cold]
fn unsupported_version(base: BaseHeader) -> ParseError {
    ParseError {
        packet_type: Some(base.packet_type),
        field: "version",
        offset: 1,
        reason: Reason::UnsupportedVersion {
            version: base.version,
        },
    }
}
