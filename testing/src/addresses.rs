//! Addresses of emulated hosts.

use efa_core::address::Gid;

/// The GID of the host with this number, as a device derives it from a MAC address. Only the lower
/// 8 bits of the number are used.
pub const fn gid(host: usize) -> Gid {
    let host = host as u8;
    Gid([
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, host,
    ])
}
