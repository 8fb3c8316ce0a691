//! Invented addresses, operation ids and memory of synthetic traces.
//!
//! They only have to be distinct: a replay maps them to actual ones, as it does for a recording.

use std::net::Ipv6Addr;

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_play::operation::{EndpointIndex, Remote};

use crate::compare::policy::IdKind;

pub(super) fn address(at: EndpointIndex) -> RawAddress {
    let number = at as u16 + 1;
    RawAddress {
        gid: Gid::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number)),
        qpn: Qpn(number),
        qkey: Qkey(0x1000_0000 + u32::from(number)),
    }
}

/// The memory of the operation that the step with this index starts: a send buffer, or a region. No
/// operation is long enough to reach the next one's.
pub(super) fn memory(step: usize) -> Remote {
    let number = step as u64 + 1;
    Remote {
        address: number << 32,
        key: number,
    }
}

/// The memory of a piece of a message's or write's buffer. Pieces are registered separately, and do
/// not touch.
pub(super) fn piece(step: usize, index: usize) -> Remote {
    let Remote { address, key } = memory(step);
    Remote {
        address: address + ((index as u64) << 28),
        key: key + ((index as u64) << 16),
    }
}

/// The id that an endpoint assigns to the operation of the step with this index.
pub(super) fn id(step: usize, kind: IdKind) -> u64 {
    let number = step as u64 + 1;
    match kind {
        IdKind::Send => 0x1000 + number,
        IdKind::Receive => 0x2000 + number,
    }
}
