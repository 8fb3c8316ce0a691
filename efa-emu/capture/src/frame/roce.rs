//! Packets of reliable connections as RoCE v2 has them: Ethernet / IPv6 / UDP to port 4791 / the
//! InfiniBand packet from its BTH on / invariant CRC (InfiniBand Architecture Specification, volume
//! 1, annex A17). Wireshark reads them without our dissector.

use efa_wire::address::Gid;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, EthernetRepr, IPV6_HEADER_LEN, IpProtocol, Ipv6Packet,
    Ipv6Repr, UDP_HEADER_LEN, UdpPacket, UdpRepr,
};

use super::ethernet::{FIRST_SOURCE_PORT, OUTER_LEN, PATHS, ethernet_address};

/// The UDP destination port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

/// Bytes of the invariant CRC.
const CRC: usize = 4;

/// Bytes of the longest packet for which there is a frame: IPv6 counts in 16 bits.
pub const LONGEST_PACKET: usize = u16::MAX as usize - UDP_HEADER_LEN - CRC;

/// The frame of a packet of at most [`LONGEST_PACKET`] bytes on path number `path`.
pub fn roce_frame(source: Gid, destination: Gid, path: u16, packet: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; OUTER_LEN + packet.len() + CRC];
    let mut ethernet = EthernetFrame::new_unchecked(&mut buffer[..]);
    EthernetRepr {
        src_addr: ethernet_address(source),
        dst_addr: ethernet_address(destination),
        ethertype: EthernetProtocol::Ipv6,
    }
    .emit(&mut ethernet);
    let payload = packet.len() + CRC;
    let ip = Ipv6Repr {
        src_addr: source.to_ipv6(),
        dst_addr: destination.to_ipv6(),
        next_header: IpProtocol::Udp,
        payload_len: UDP_HEADER_LEN + payload,
        hop_limit: 64,
    };
    ip.emit(&mut Ipv6Packet::new_unchecked(ethernet.payload_mut()));
    let ipv6 = OUTER_LEN - UDP_HEADER_LEN - IPV6_HEADER_LEN;
    let udp = UdpRepr {
        src_port: FIRST_SOURCE_PORT + path % PATHS,
        dst_port: ROCE_PORT,
    };
    let mut crc = 0;
    // The CRC covers the UDP header in front of it, but for the checksum there, which covers it.
    for _ in 0..2 {
        udp.emit(
            &mut UdpPacket::new_unchecked(&mut buffer[ipv6 + IPV6_HEADER_LEN..]),
            &ip.src_addr.into(),
            &ip.dst_addr.into(),
            payload,
            |bytes| {
                let (front, end) = bytes.split_at_mut(packet.len());
                front.copy_from_slice(packet);
                end.copy_from_slice(&u32::to_le_bytes(crc));
            },
            &ChecksumCapabilities::default(),
        );
        crc = invariant_crc(&buffer[ipv6..OUTER_LEN + packet.len()]);
    }
    buffer
}

/// The invariant CRC of a packet from its IPv6 header on: Ethernet's CRC of 8 bytes of ones and the
/// packet, in which what routers may change is ones as well.
fn invariant_crc(packet: &[u8]) -> u32 {
    /// Traffic class and flow label, hop limit, UDP checksum, the reserved byte of the BTH.
    const VARIANT: [usize; 8] = [
        0,
        1,
        2,
        3,
        7,
        IPV6_HEADER_LEN + 6,
        IPV6_HEADER_LEN + 7,
        IPV6_HEADER_LEN + UDP_HEADER_LEN + 4,
    ];
    let masked = packet.iter().enumerate().map(|(at, byte)| match at {
        // The version in front of the traffic class does not change.
        0 => byte | 0x0f,
        _ if VARIANT.contains(&at) => 0xff,
        _ => *byte,
    });
    !std::iter::repeat_n(0xff, 8)
        .chain(masked)
        .fold(u32::MAX, step)
}

fn step(crc: u32, byte: u8) -> u32 {
    (0..8).fold(crc ^ u32::from(byte), |crc, _| match crc & 1 {
        0 => crc >> 1,
        _ => crc >> 1 ^ 0xedb8_8320,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_that_of_ethernet() {
        let crc = b"123456789"
            .iter()
            .fold(u32::MAX, |crc, byte| step(crc, *byte));
        assert_eq!(!crc, 0xcbf4_3926);
    }

    #[test]
    fn a_frame_is_udp_to_port_4791_with_a_crc() {
        let gids = [Gid([0xfe; 16]), Gid([0x0a; 16])];
        let packet = [
            4, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0x80, 0, 0, 1, b'd', b'a', b't', b'a',
        ];
        let frame = roce_frame(gids[0], gids[1], 3, &packet);
        assert_eq!(frame.len(), OUTER_LEN + packet.len() + CRC);
        let udp = OUTER_LEN - UDP_HEADER_LEN;
        assert_eq!(frame[udp..udp + 2], (FIRST_SOURCE_PORT + 3).to_be_bytes());
        assert_eq!(frame[udp + 2..udp + 4], ROCE_PORT.to_be_bytes());
        assert_eq!(frame[OUTER_LEN..][..packet.len()], packet);
        // What a router changes does not change the CRC, and everything else does.
        let ipv6 = udp - IPV6_HEADER_LEN;
        let covered = &frame[ipv6..frame.len() - CRC];
        let crc = invariant_crc(covered);
        assert_eq!(frame[frame.len() - CRC..], crc.to_le_bytes());
        for at in 0..covered.len() {
            let mut changed = covered.to_vec();
            changed[at] ^= 1;
            let is_variant = matches!(at, 0..=3 | 7 | 46 | 47 | 52);
            assert_eq!(invariant_crc(&changed) == crc, is_variant, "byte {at}");
        }
    }
}
