//! How endpoints, queue pairs and address handles are named.

use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

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
/// Numbers are stable while any handle of the GID exists. 0xFFFF is never a handle: the device
/// reports it for an unknown sender, which this crate represents as `None` in `Option<Ahn>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ahn(pub u16);

impl Ahn {
    /// The raw value that a device reports for a sender outside of its address book.
    pub const UNKNOWN: u16 = 0xFFFF;
}

/// A queue pair's 32-bit access key. EFA endpoints draw it at random once per queue pair and use it
/// as their connection id as well (spec section 1.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Qkey(pub u32);

/// An endpoint's raw address (spec table 1.5), as applications insert it into an address vector.
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
    /// The address of the queue pair `qpn` of the device with this GID.
    #[inline]
    pub const fn new(gid: Gid, qpn: Qpn, qkey: Qkey) -> Self {
        RawAddress { gid, qpn, qkey }
    }
}

/// The error of parsing a text that is not a [`RawAddress`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not an address: write [GID]:QPN/0xQKEY, such as [fe80::1]:2/0x00000003")]
pub struct ParseAddressError(String);

impl FromStr for RawAddress {
    type Err = ParseAddressError;

    /// Parses the format of `Display`.
    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let address = || {
            let (gid, rest) = text.strip_prefix('[')?.split_once("]:")?;
            let (qpn, qkey) = rest.split_once("/0x")?;
            Some(RawAddress {
                gid: gid.parse::<Ipv6Addr>().ok()?.into(),
                qpn: Qpn(qpn.parse().ok()?),
                qkey: Qkey(u32::from_str_radix(qkey, 16).ok()?),
            })
        };
        address().ok_or_else(|| ParseAddressError(text.to_owned()))
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
    fn addresses_are_read_as_they_are_written() {
        let address = RawAddress {
            gid: Gid([
                0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0xef, 0xa0, 0xff, 0xfe, 0, 0, 1,
            ]),
            qpn: Qpn(65_535),
            qkey: Qkey(0x0102_0304),
        };
        let text = "[fe80::ef:a0ff:fe00:1]:65535/0x01020304";
        assert_eq!(address.to_string(), text);
        assert_eq!(text.parse(), Ok(address));
        for wrong in [
            "",
            "fe80::1:2/0x3",
            "[fe80::1]2/0x3",
            "[fe80::1]:65536/0x3",
            "[fe80::1]:2/3",
            "[fe80::1]:2/0x100000000",
            "[1.2.3.4]:2/0x3",
        ] {
            let error = wrong.parse::<RawAddress>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")), "{error}");
        }
    }
}
