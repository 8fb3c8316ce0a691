//! Description of a packet field as data: name, width, condition, source, description.

use core::fmt;

use super::packet_type::{PacketType, TypeTraits};

/// One field of a packet type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldDescriptor {
    /// The name in the spec's tables; a field inside an optional header or an array entry has the
    /// name of that in front, as in `raw_addr.qpn`.
    pub name: &'static str,
    /// Its width.
    pub width: Width,
    /// When it is there.
    pub presence: Presence,
    /// The meaning of its bytes.
    pub kind: FieldKind,
    /// The source of its definition.
    pub source: Source,
    /// Its meaning, in a sentence.
    pub description: &'static str,
}

/// The length of a field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// This many bytes.
    Fixed(usize),
    /// The raw address header's size beyond the 32 bytes of the address.
    RawAddressSurplus,
    /// All remaining bytes of the packet; the field is absent if none remain.
    Rest,
}

impl Width {
    /// The number of bytes, 0 if it is not fixed.
    pub(super) const fn fixed(self) -> usize {
        match self {
            Width::Fixed(width) => width,
            Width::RawAddressSurplus | Width::Rest => 0,
        }
    }
}

/// When a field is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Presence {
    /// In every packet of the type.
    Always,
    /// If this flag of the base header is set.
    IfFlag(u16),
    /// If this flag of the base header is set; otherwise the next field of the table, which has the
    /// same width, is in its place (`multiuse` in the spec).
    IfFlagElseNext(u16),
    /// If this flag of the base header is not set.
    UnlessFlag(u16),
    /// If this flag is not set and the packet is long enough.
    UnlessFlagIfRoom(u16),
    /// In every packet of the types with one of these traits.
    IfType(TypeTraits),
    /// In every packet of the types with none of these traits.
    UnlessType(TypeTraits),
}

impl Presence {
    /// Returns whether packets of this type may have the field.
    pub const fn is_of(self, packet_type: PacketType) -> bool {
        match self {
            Presence::IfType(traits) => packet_type.is(traits),
            Presence::UnlessType(traits) => !packet_type.is(traits),
            _ => true,
        }
    }

    /// Returns whether a packet of this type with these flags has the field, if it is long enough.
    pub const fn holds(self, packet_type: PacketType, flags: u16) -> bool {
        match self {
            Presence::Always => true,
            Presence::IfFlag(flag) | Presence::IfFlagElseNext(flag) => flags & flag != 0,
            Presence::UnlessFlag(flag) | Presence::UnlessFlagIfRoom(flag) => flags & flag == 0,
            Presence::IfType(_) | Presence::UnlessType(_) => self.is_of(packet_type),
        }
    }
}

/// The meaning of a field's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FieldKind {
    /// An unsigned number, for people in decimal.
    Number,
    /// A number that is not a quantity; displayed in hexadecimal.
    Bits,
    /// The packet type id.
    PacketType,
    /// The flags of the base header.
    Flags,
    /// `enum fi_datatype`.
    AtomicDatatype,
    /// `enum fi_op`.
    AtomicOp,
    /// A side of a message.
    OpeType,
    /// A device status or a number of libfabric's own, see
    /// `efa_core::endpoint::ProviderError`.
    ProviderError,
    /// The number of entries of an array.
    Count(Array),
    /// The `size` of the raw address header.
    RawAddressSize,
    /// A GID.
    Gid,
    /// Bytes without a meaning: senders may leave anything in them.
    Padding,
    /// Application data.
    Data,
    /// Bytes after the last field of this version of the protocol.
    Unknown,
}

/// The arrays that packets contain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Array {
    /// `rma_iov`, counted by `rma_iov_count`.
    RmaIov,
    /// `read_iov`, counted by `read_iov_count`.
    ReadIov,
    /// `extra_info`, counted by `nextra_p3` minus 3.
    ExtraInfo,
}

/// The source of a field's definition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// In the spec.
    Spec {
        /// The number of the section.
        section: &'static str,
        /// The number of the table, if it has one.
        table: Option<&'static str>,
    },
    /// Only in stock libfabric.
    Stock {
        /// The first version.
        since: &'static str,
    },
    /// Only in development states of stock libfabric, and in no release.
    Development {
        /// The development states.
        state: &'static str,
    },
}

/// A table of the spec.
pub(crate) const fn table(section: &'static str, table: &'static str) -> Source {
    let table = Some(table);
    Source::Spec { section, table }
}

/// A section of the spec.
pub(crate) const fn section(section: &'static str) -> Source {
    let table = None;
    Source::Spec { section, table }
}

/// Not in the spec.
pub(crate) const fn stock(since: &'static str) -> Source {
    Source::Stock { since }
}

/// Only in a development state of stock libfabric.
pub(crate) const fn development(state: &'static str) -> Source {
    Source::Development { state }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Spec {
                section,
                table: Some(table),
            } => write!(f, "spec section {section}, table {table}"),
            Source::Spec {
                section,
                table: None,
            } => write!(f, "spec section {section}"),
            Source::Stock { since } => {
                write!(f, "not in the spec, stock libfabric since {since}")
            }
            Source::Development { state } => {
                write!(
                    f,
                    "in no release, development states of stock libfabric {state}"
                )
            }
        }
    }
}

/// Fields that belong together: once, or once for each entry of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// The array whose entries these are the fields of.
    pub array: Option<Array>,
    /// The fields, in the order of the packet.
    pub fields: &'static [FieldDescriptor],
}

/// Bytes of the fields that every packet has. A field that may be replaced by padding is counted
/// through that padding, because one of the two is always there.
pub(crate) const fn min_len(sections: &[&Section]) -> usize {
    let (mut bytes, mut section) = (0, 0);
    while section < sections.len() {
        let Section { array, fields } = *sections[section];
        let mut field = 0;
        while array.is_none() && field < fields.len() {
            if let (Presence::Always | Presence::UnlessFlag(_), Width::Fixed(width)) =
                (fields[field].presence, fields[field].width)
            {
                bytes += width;
            }
            field += 1;
        }
        section += 1;
    }
    bytes
}
