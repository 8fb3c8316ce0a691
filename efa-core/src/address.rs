//! How endpoints, queue pairs and address handles are named.

use core::fmt;
use core::net::Ipv6Addr;

/// A port's global identifier: 16 bytes in the format of an IPv6 address (spec table 1.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID as an IPv6 address, which is also how it is printed.
    pub const fn to_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.0)
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Gid(address.octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// A queue pair number: 16 bits on the wire and in the raw address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Qpn(pub u16);

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An address handle number: a device's local name of a GID in its address book.
///
/// Numbers are stable while any handle of the GID lives. 0xFFFF is never a handle: the device uses
/// it to say that a sender is unknown, which this crate expresses as `Option<Ahn>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ahn(pub u16);

impl Ahn {
    /// The raw value by which a device reports a sender that is not in its address book.
    pub const UNKNOWN: u16 = 0xFFFF;
}

/// A queue pair's 32-bit access key. EFA endpoints draw it at random once per queue pair and use it
/// as their connection id as well (spec section 1.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Qkey(pub u32);

/// An endpoint's raw address (spec table 1.5): what an application puts into an address vector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RawAddress {
    /// The device's port GID.
    pub gid: Gid,
    /// The endpoint's queue pair.
    pub qpn: Qpn,
    /// The queue pair's Q-key, which is the endpoint's connection id.
    pub qkey: Qkey,
}

impl RawAddress {
    /// Length in bytes: GID 16, QPN 2, pad 2, connid 4, reserved 8.
    pub const LEN: usize = 32;

    /// The 32 bytes as they go into an address vector and into packets; pad and reserved are zero,
    /// because stock libfabric compares all of them when it looks for duplicates.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..18].copy_from_slice(&self.qpn.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.qkey.0.to_le_bytes());
        bytes
    }

    /// Reads an address; pad and reserved bytes are ignored.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[..16]);
        RawAddress {
            gid: Gid(gid),
            qpn: Qpn(u16::from_le_bytes([bytes[16], bytes[17]])),
            qkey: Qkey(u32::from_le_bytes([
                bytes[20], bytes[21], bytes[22], bytes[23],
            ])),
        }
    }
}

impl fmt::Display for RawAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]:{}/{:#010x}", self.gid, self.qpn, self.qkey.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_address_has_the_layout_of_table_1_5() {
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
