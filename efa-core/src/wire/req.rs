//! What all request packets share: the optional headers (spec section 3.1).

use zerocopy::little_endian::{U32, U64};

use super::codec::{Cursor, Writer};
use super::declare::{CONNID_HDR, Line, PADDING, Part, Shape, section, table};
use super::error::{ParseError, Reason};
use super::fields::{FieldDescriptor, Kind, Presence, Section, Source, Width};
use super::flags::ReqFlags;
use super::ids::Connid;
use crate::address::RawAddress;

/// The optional raw address header (spec table 3.2).
///
/// The spec says that its size is that of the address. Stock libfabric since 1.13.0 sends 36: the
/// 32 bytes of the address and 4 that mean nothing. Any size from 32 on is accepted, and only
/// the first 32 bytes are interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RawAddressHeader {
    address: RawAddress,
    size: u32,
}

impl RawAddressHeader {
    /// The size that stock libfabric sends since 1.13.0, in bytes.
    pub const STOCK_SIZE: u32 = 36;

    /// A header in the size of stock libfabric since 1.13.0.
    pub const fn new(address: RawAddress) -> RawAddressHeader {
        RawAddressHeader {
            address,
            size: Self::STOCK_SIZE,
        }
    }

    /// A header with `size` bytes for the address, the surplus zero. `None` if it is less than
    /// [`RawAddress::LEN`].
    pub const fn with_size(address: RawAddress, size: u32) -> Option<RawAddressHeader> {
        if size as usize >= RawAddress::LEN {
            Some(RawAddressHeader { address, size })
        } else {
            None
        }
    }

    /// The sender's address.
    pub const fn address(&self) -> RawAddress {
        self.address
    }

    /// The `size` field: bytes behind it that belong to the header.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Bytes on the wire, the `size` field included.
    pub const fn wire_len(&self) -> usize {
        (self.size as usize).saturating_add(size_of::<U32>())
    }
}

/// The optional headers of a request, in the order in which they follow the mandatory header.
///
/// Stock libfabric asserts that raw address and connid are not both present; the spec allows it,
/// and so does the parser. Send only one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReqOptions {
    /// The sender's raw address, sent until the peer's handshake has arrived (spec section 2.2).
    pub raw_address: Option<RawAddressHeader>,
    /// Data for the completion at the target. The wire has always 64 bits for it.
    pub cq_data: Option<u64>,
    /// The sender's connection id (spec section 4.4).
    pub connid: Option<Connid>,
    /// Flags beyond those that follow from the packet type and from the fields above.
    pub flags: ReqFlags,
}

impl ReqOptions {
    /// Bytes on the wire.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        let raw_address = match self.raw_address {
            Some(header) => header.wire_len(),
            None => 0,
        };
        let cq_data = if self.cq_data.is_some() { 8 } else { 0 };
        let connid = if self.connid.is_some() { 4 } else { 0 };
        raw_address.saturating_add(cq_data + connid)
    }
}

impl Part for ReqOptions {
    const SHAPE: Shape = Shape::Fields(&REQ_OPTIONS);

    #[inline(always)]
    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let flags = ReqFlags::from_bits_retain(cursor.flags());
        let raw_address = if flags.contains(ReqFlags::RAW_ADDR_HDR) {
            Some(parse_raw_address(cursor)?)
        } else {
            None
        };
        let cq_data = if flags.contains(ReqFlags::CQ_DATA_HDR) {
            Some(cursor.take::<U64>()?.get())
        } else {
            None
        };
        let connid = if flags.contains(ReqFlags::CONNID_HDR) {
            Some(Connid(cursor.take::<U32>()?.get()))
        } else {
            None
        };
        let mut implied = line.implies;
        if cursor.packet_type().is_tagged() {
            implied |= ReqFlags::TAGGED;
        }
        Ok(ReqOptions {
            raw_address,
            cq_data,
            connid,
            flags: flags.difference(ReqFlags::OPTIONAL_HEADERS | implied),
        })
    }

    #[inline(always)]
    fn len(&self, _line: &Line) -> usize {
        self.wire_len()
    }

    #[inline(always)]
    fn write(&self, _line: &Line, writer: &mut Writer<'_>) {
        if let Some(header) = self.raw_address {
            writer.put(&U32::new(header.size));
            writer.put_bytes(&header.address.to_bytes());
            // The type guarantees that size is at least the length of the address.
            writer.put_zeroes((header.size as usize).saturating_sub(RawAddress::LEN));
        }
        if let Some(cq_data) = self.cq_data {
            writer.put(&U64::new(cq_data));
        }
        if let Some(connid) = self.connid {
            writer.put(&U32::new(connid.0));
        }
    }

    #[inline(always)]
    fn flags(&self, line: &Line) -> u16 {
        let mut flags = self.flags | line.implies;
        flags.set(ReqFlags::RAW_ADDR_HDR, self.raw_address.is_some());
        flags.set(ReqFlags::CQ_DATA_HDR, self.cq_data.is_some());
        flags.set(ReqFlags::CONNID_HDR, self.connid.is_some());
        flags.bits()
    }

    #[inline(always)]
    fn as_options(&self) -> Option<&ReqOptions> {
        Some(self)
    }

    #[inline(always)]
    fn as_connid(&self) -> Option<Connid> {
        self.connid
    }
}

fn parse_raw_address(cursor: &mut Cursor<'_>) -> Result<RawAddressHeader, ParseError> {
    let offset = cursor.offset();
    let size = cursor.take::<U32>()?.get();
    let bytes: &[u8] = cursor.take_slice(size as usize)?;
    match bytes.first_chunk() {
        Some(address) => Ok(RawAddressHeader {
            address: RawAddress::from_bytes(address),
            size,
        }),
        None => Err(cursor.error("raw_addr.size", offset, Reason::RawAddressTooShort { size })),
    }
}

/// The optional headers in the tables.
const REQ_OPTIONS: Section = {
    const T_RAW_ADDR: Source = table("3.1", "3.2");
    const T_ADDRESS: Source = table("1.4", "1.5");
    const fn raw_addr(
        name: &'static str,
        width: usize,
        kind: Kind,
        source: Source,
        description: &'static str,
    ) -> FieldDescriptor {
        FieldDescriptor {
            name,
            width: Width::Fixed(width),
            presence: Presence::IfFlag(ReqFlags::RAW_ADDR_HDR.bits()),
            kind,
            source,
            description,
        }
    }
    Section {
        array: None,
        fields: &[
            raw_addr(
                "raw_addr.size",
                4,
                Kind::RawAddressSize,
                T_RAW_ADDR,
                "bytes of the address that follow: 32, or 36 from stock libfabric since 1.13.0",
            ),
            raw_addr(
                "raw_addr.gid",
                16,
                Kind::Gid,
                T_ADDRESS,
                "GID of the sender's device",
            ),
            raw_addr(
                "raw_addr.qpn",
                2,
                Kind::Number,
                T_ADDRESS,
                "queue pair number of the sender",
            ),
            raw_addr("raw_addr.pad", 2, Kind::Padding, T_ADDRESS, PADDING),
            raw_addr(
                "raw_addr.connid",
                4,
                Kind::Bits,
                T_ADDRESS,
                "connection id of the sender, which is its Q-key",
            ),
            raw_addr("raw_addr.reserved", 8, Kind::Padding, T_ADDRESS, PADDING),
            FieldDescriptor {
                width: Width::RawAddressSurplus,
                ..raw_addr(
                    "raw_addr.surplus",
                    0,
                    Kind::Padding,
                    T_RAW_ADDR,
                    "what the size has beyond the 32 bytes of the address; not interpreted",
                )
            },
            FieldDescriptor {
                name: "cq_data",
                width: Width::Fixed(8),
                presence: Presence::IfFlag(ReqFlags::CQ_DATA_HDR.bits()),
                kind: Kind::Bits,
                source: section("3.1"),
                description: "data for the completion at the target",
            },
            FieldDescriptor {
                name: "connid",
                width: Width::Fixed(4),
                presence: Presence::IfFlag(CONNID_HDR),
                kind: Kind::Bits,
                source: section("4.4"),
                description: "connection id of the sender",
            },
        ],
    }
};
