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
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
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

impl fmt::Display for RawAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]:{}/{:#010x}", self.gid, self.qpn, self.qkey.0)
    }
}
