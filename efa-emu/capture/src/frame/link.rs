//! Link layers around the IPv6 packets of the emulated wire.

use smoltcp::wire::{EthernetFrame, EthernetProtocol};

use super::error::Error;
use crate::direction::Direction;

/// LINKTYPE_ numbers.
pub(crate) const ETHERNET: u32 = 1;
const RAW: [u32; 4] = [12, 14, 101, 229];
const SLL: u32 = 113;
const SLL2: u32 = 276;

/// `sll_pkttype`: sent by the host itself, and sent to it.
const OUTGOING: u16 = 4;
const TO_US: u16 = 0;

/// Finds the IPv6 packet of a frame: its offset, and the direction if the link layer has it.
///
/// # Errors
/// The frame belongs to another protocol, or is cut off.
pub(crate) fn ip_packet(linktype: u32, bytes: &[u8]) -> Result<(usize, Option<Direction>), Error> {
    let what = match linktype {
        ETHERNET => "Ethernet header",
        _ => "link-layer header",
    };
    let word = |at: usize, need: usize| {
        let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
        word.map(|word| u16::from_be_bytes(*word))
            .ok_or(Error::Truncated {
                what,
                need,
                have: bytes.len(),
            })
    };
    let (start, protocol, kind) = match linktype {
        ETHERNET => {
            let length = EthernetFrame::<&[u8]>::header_len();
            (length, word(length - 2, length)?, None)
        }
        SLL => (16, word(14, 16)?, Some(word(0, 16)?)),
        // One byte: the previous byte belongs to the ARPHRD type.
        SLL2 => (20, word(0, 20)?, Some(word(9, 20)? & 0xff)),
        _ if RAW.contains(&linktype) => return Ok((0, None)),
        _ => {
            return Err(Error::Foreign {
                what: "link type",
                found: linktype as u16,
                expected: ETHERNET as u16,
            });
        }
    };
    if protocol != u16::from(EthernetProtocol::Ipv6) {
        return Err(Error::Foreign {
            what: "Ethernet type",
            found: protocol,
            expected: EthernetProtocol::Ipv6.into(),
        });
    }
    let direction = match kind {
        Some(OUTGOING) => Some(Direction::Outbound),
        Some(TO_US) => Some(Direction::Inbound),
        _ => None,
    };
    Ok((start, direction))
}
