//! The parts that all packets have: the base header, and the data or nothing after the headers.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::record::record;
use crate::descriptor::{
    FieldDescriptor, FieldKind, Presence, Section, Source, Width, section, table,
};
use crate::error::{ParseError, Reason};
use crate::packet_type::PacketType;

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
        split(packet).map(|(base, _)| base)
    }
}

record! {
    /// The base header on the wire.
    pub(crate) RawBase;
    packet_type: u8, ["type"], FieldKind::PacketType, "packet type id";
    version: u8, ["version"], FieldKind::Number, "protocol version, always 4";
    flags: U16, ["flags"], FieldKind::Flags, "optional parts of the packet and what it is used for";
}

impl From<BaseHeader> for RawBase {
    #[inline(always)]
    fn from(base: BaseHeader) -> RawBase {
        RawBase {
            packet_type: base.packet_type.code(),
            version: base.version,
            flags: U16::new(base.flags),
        }
    }
}

/// The base header in the tables.
pub(crate) const BASE: Section = Section {
    array: None,
    fields: &RawBase::fields(0, Presence::Always, table("1.3", "1.3")),
};

/// The section after the headers of packets with data.
pub(crate) const DATA: Section = Section {
    array: None,
    fields: &[FieldDescriptor {
        name: "data",
        width: Width::Rest,
        presence: Presence::Always,
        kind: FieldKind::Data,
        source: section("3.1"),
        description: "application data",
    }],
};

/// The section after the headers of packets without data; normally empty.
pub(crate) const TRAILING: Section = Section {
    array: None,
    fields: &[FieldDescriptor {
        name: "trailing",
        width: Width::Rest,
        presence: Presence::Always,
        kind: FieldKind::Unknown,
        source: section("1.3"),
        description: "bytes behind the end of the packet's format",
    }],
};

/// Splits a packet after its base header.
#[inline(always)]
pub(super) fn split(packet: &[u8]) -> Result<(BaseHeader, &[u8]), ParseError> {
    let Ok((raw, rest)) = RawBase::ref_from_prefix(packet) else {
        return Err(truncated(packet));
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
fn truncated(packet: &[u8]) -> ParseError {
    let packet_type = PacketType::peek(packet);
    if let ([code, ..], None) = (packet, packet_type) {
        return unassigned_type(*code);
    }
    let (mut field, mut offset, mut needed) = ("type", 0, 0);
    for descriptor in BASE.fields {
        (field, needed) = (descriptor.name, descriptor.width.fixed());
        if offset + needed > packet.len() {
            break;
        }
        offset += needed;
    }
    let available = packet.len() - offset;
    let reason = Reason::Truncated { needed, available };
    ParseError {
        packet_type,
        field,
        offset,
        reason,
    }
}

/// The error for a type id that is not assigned.
#[cold]
fn unassigned_type(code: u8) -> ParseError {
    ParseError {
        packet_type: None,
        field: "type",
        offset: 0,
        reason: Reason::UnassignedType { code },
    }
}

/// The error for a packet of another version of the protocol.
#[cold]
pub(super) fn unsupported_version(base: BaseHeader) -> ParseError {
    ParseError {
        packet_type: Some(base.packet_type),
        field: "version",
        offset: 1,
        reason: Reason::UnsupportedVersion {
            version: base.version,
        },
    }
}
