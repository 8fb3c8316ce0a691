//! The raw address as bytes (spec table 1.5), and the optional header that carries it (spec table
//! 3.2).

use core::hint::cold_path;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::prelude::*;
use super::record::record;
use crate::address::{Gid, Qkey, Qpn, RawAddress};
use crate::error::Reason;

record! {
    /// A raw address on the wire.
    RawAddressBytes;
    gid: [u8; 16], ["raw_addr.gid"], FieldKind::Gid, "GID of the sender's device";
    qpn: U16, ["raw_addr.qpn"], FieldKind::Number, "queue pair number of the sender";
    pad: [u8; 2], ["raw_addr.pad"], FieldKind::Padding, PADDING;
    connid: U32, ["raw_addr.connid"], FieldKind::Bits, "connection id of the sender, which is its Q-key";
    reserved: [u8; 8], ["raw_addr.reserved"], FieldKind::Padding, PADDING;
}

impl RawAddress {
    /// Length in bytes.
    pub const LEN: usize = size_of::<RawAddressBytes>();

    /// The bytes as they go into an address vector and into packets. Pad and reserved are zero,
    /// because stock libfabric compares all bytes when it looks for duplicates.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        zerocopy::transmute!(RawAddressBytes {
            gid: self.gid.0,
            qpn: U16::new(self.qpn.0),
            pad: [0; 2],
            connid: U32::new(self.qkey.0),
            reserved: [0; 8],
        })
    }

    /// Reads an address; pad and reserved bytes are ignored.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let raw: RawAddressBytes = zerocopy::transmute!(*bytes);
        RawAddress::new(Gid(raw.gid), Qpn(raw.qpn.get()), Qkey(raw.connid.get()))
    }
}

/// The optional raw address header (spec table 3.2).
///
/// By the spec, its size field is the size of the address. Stock libfabric since 1.13.0 sends 36:
/// the 32 bytes of the address and 4 meaningless bytes. Any size from 32 on is accepted, and only
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

    /// The `size` field: the number of bytes after it that belong to the header.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Bytes on the wire, the `size` field included.
    pub const fn wire_len(&self) -> usize {
        (self.size as usize).saturating_add(size_of::<U32>())
    }
}

const RAW_ADDR_HDR: u16 = ReqFlags::RAW_ADDR_HDR.bits();

impl Part for Option<RawAddressHeader> {
    const SHAPE: Shape = {
        const PRESENCE: Presence = Presence::IfFlag(RAW_ADDR_HDR);
        const SIZE: FieldDescriptor = FieldDescriptor {
            name: "raw_addr.size",
            width: Width::Fixed(size_of::<U32>()),
            presence: PRESENCE,
            kind: FieldKind::RawAddressSize,
            source: table("3.1", "3.2"),
            description: "bytes of the address that follow: 32, or 36 from stock libfabric since 1.13.0",
        };
        const SURPLUS: FieldDescriptor = FieldDescriptor {
            name: "raw_addr.surplus",
            width: Width::RawAddressSurplus,
            kind: FieldKind::Padding,
            description: "what the size has beyond the 32 bytes of the address; not interpreted",
            ..SIZE
        };
        const fn section(fields: &'static [FieldDescriptor]) -> Section {
            Section {
                array: None,
                fields,
            }
        }
        const ADDRESS: &[FieldDescriptor] =
            &RawAddressBytes::fields(0, PRESENCE, table("1.4", "1.5"));
        Shape::Sections(&[&section(&[SIZE]), &section(ADDRESS), &section(&[SURPLUS])])
    };

    #[inline(always)]
    fn parse(_line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        if cursor.flags() & RAW_ADDR_HDR == 0 {
            return Ok(None);
        }
        cold_path();
        let offset = cursor.offset();
        let size = cursor.take::<U32>()?.get();
        let bytes: &[u8] = cursor.take_slice(size as usize)?;
        match bytes.first_chunk() {
            Some(address) => Ok(Some(RawAddressHeader {
                address: RawAddress::from_bytes(address),
                size,
            })),
            None => Err(cursor.error("raw_addr.size", offset, Reason::RawAddressTooShort { size })),
        }
    }

    #[inline(always)]
    fn write(&self, _line: &Line, output: &mut impl Output) {
        if let Some(header) = self {
            // Only the first packets to a peer have one.
            cold_path();
            output.flags(RAW_ADDR_HDR);
            output.bytes(&header.size.to_le_bytes());
            output.bytes(&header.address.to_bytes());
            // The type guarantees that size is at least the length of the address.
            output.zeroes((header.size as usize).saturating_sub(RawAddress::LEN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_address_layout_follows_table_1_5() {
        let address = RawAddress {
            gid: Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a]),
            qpn: Qpn(0x0102),
            qkey: Qkey(0x1122_3344),
        };
        #[rustfmt::skip]
        let bytes = [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a, // gid
            0x02, 0x01, 0, 0,                                        // qpn, pad
            0x44, 0x33, 0x22, 0x11,                                  // connid
            0, 0, 0, 0, 0, 0, 0, 0,                                  // reserved
        ];
        assert_eq!(address.to_bytes(), bytes);
        assert_eq!(RawAddress::from_bytes(&bytes), address);
        assert_eq!(address.to_string(), "[fe80::2a]:258/0x11223344");
    }
}
