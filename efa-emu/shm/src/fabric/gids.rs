//! The GIDs of emulated devices.

use efa_core::address::Gid;

use crate::identity::config::DEFAULT_FABRIC;
use crate::identity::device_name::DeviceName;

/// The number of hosts that have separate GIDs.
const NUMBERS: u32 = 1 << 24;

/// Bytes of the GIDs of emulated devices: link-local EUI-64 addresses, as real ports have them, of
/// locally administered MAC addresses. The MAC address of device D of host number H is
/// `02:ef:a0+D:HH:HH:HH`.
const GID_START: [u8; 10] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0xef];
const FIRST_DEVICE: u8 = 0xa0;
const EUI_64: [u8; 2] = [0xff, 0xfe];

/// The GID of a device, by the number of its host and its index there.
pub(super) fn device_gid(number: u32, index: u32) -> Gid {
    debug_assert!(number < NUMBERS && index < DeviceName::MOST);
    let mut gid = [0; 16];
    gid[..10].copy_from_slice(&GID_START);
    gid[10] = FIRST_DEVICE + index as u8;
    gid[11..13].copy_from_slice(&EUI_64);
    gid[13..].copy_from_slice(&number.to_be_bytes()[1..]);
    Gid(gid)
}

/// Returns whether a GID is one that is assigned to emulated devices.
pub fn is_emulated(gid: Gid) -> bool {
    let Gid(bytes) = gid;
    let devices = FIRST_DEVICE..FIRST_DEVICE + DeviceName::MOST as u8;
    bytes[..10] == GID_START && devices.contains(&bytes[10]) && bytes[11..13] == EUI_64
}

/// FNV-1a.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The bits in which GIDs of a fabric differ from those of hosts with the same names in the fabric
/// `default`. Fabrics of a machine share its `/dev/shm`, and libfabric 1.11 names its files there
/// by user, GID and queue pair number alone. Two of its endpoints with the same address, in two
/// fabrics, would use one file, and crash.
pub(super) fn inverted_bits(fabric: &str) -> u32 {
    match fabric {
        DEFAULT_FABRIC => 0,
        name => {
            let hash = hash(name);
            ((hash >> 24) ^ hash) % NUMBERS
        }
    }
}

/// Numbers for a host in the order in which they should be tried. In the fabric `default`, `host-N`
/// prefers the number N. All others prefer a number from 0x100000 on that depends only on their
/// names, so that a host that is created again keeps its GIDs.
pub(super) fn preferred_numbers(fabric: &str, host: &str) -> impl Iterator<Item = u32> + use<> {
    let number = host
        .strip_prefix("host-")
        .and_then(|n| n.parse::<u32>().ok());
    let first = match number {
        Some(number) if number < 0x10_0000 => number,
        _ => {
            let hash = hash(host);
            0x10_0000 + ((hash >> 20) ^ hash) % (NUMBERS - 0x10_0000)
        }
    };
    let inverted = inverted_bits(fabric);
    (0..NUMBERS).map(move |step| ((first + step) % NUMBERS) ^ inverted)
}
