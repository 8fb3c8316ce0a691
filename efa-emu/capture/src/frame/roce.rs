//! Packets of reliable connections in the format of RoCE v2: Ethernet / IPv6 / UDP to port 4791 /
//! the InfiniBand packet from its BTH on / invariant CRC (InfiniBand Architecture Specification,
//! volume 1, annex A17). Wireshark reads them without a dissector of this project.

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

/// The longest packet that fits into a frame, in bytes: IPv6 counts in 16 bits.
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
    let emit = |buffer: &mut [u8], crc: u32| {
        udp.emit(
            &mut UdpPacket::new_unchecked(&mut buffer[ipv6 + IPV6_HEADER_LEN..]),
            &ip.src_addr.into(),
            &ip.dst_addr.into(),
            payload,
            |bytes| {
                let (front, end) = bytes.split_at_mut(packet.len());
                front.copy_from_slice(packet);
                end.copy_from_slice(&crc.to_le_bytes());
            },
            &ChecksumCapabilities::default(),
        );
    };
    emit(&mut buffer, 0);
    // The CRC covers the UDP header before it, except the checksum there, which covers the CRC.
    let crc = invariant_crc(&buffer[ipv6..OUTER_LEN + packet.len()]);
    emit(&mut buffer, crc);
    buffer
}

/// A packet of a reliable connection, read from a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RocePacket<'a> {
    /// The sender.
    pub source: Gid,
    /// The receiver.
    pub destination: Gid,
    /// The packet from its BTH on, without the CRC; only the captured part, if the frame was cut.
    pub packet: &'a [u8],
    /// The bytes of the complete packet, even if the frame was cut.
    pub length: usize,
}

/// Reads an IPv6 packet of `original_len` bytes, of which `bytes` were captured. `None` if it is
/// not a packet of RoCE v2. The CRC is not checked: Wireshark does that.
pub fn roce_packet(bytes: &[u8], original_len: usize) -> Option<RocePacket<'_>> {
    let ip = Ipv6Packet::new_checked(bytes).or_else(|_| {
        let is_cut = bytes.len() < original_len && bytes.len() >= IPV6_HEADER_LEN;
        is_cut.then(|| Ipv6Packet::new_unchecked(bytes)).ok_or(())
    });
    let ip = ip.ok()?;
    let (head, rest) = bytes
        .get(IPV6_HEADER_LEN..)?
        .split_at_checked(UDP_HEADER_LEN)?;
    let is_roce = ip.version() == 6
        && ip.next_header() == IpProtocol::Udp
        && head[2..4] == ROCE_PORT.to_be_bytes();
    let length = usize::from(ip.payload_len()).checked_sub(UDP_HEADER_LEN + CRC)?;
    is_roce.then(|| RocePacket {
        source: Gid(ip.src_addr().octets()),
        destination: Gid(ip.dst_addr().octets()),
        packet: &rest[..rest.len().min(length)],
        length,
    })
}

/// The invariant CRC of a packet from its IPv6 header on: Ethernet's CRC of 8 bytes of ones and the
/// packet, in which fields that routers may change are replaced by ones.
fn invariant_crc(packet: &[u8]) -> u32 {
    /// Traffic class and flow label, hop limit, UDP checksum, the reserved byte of the BTH.
    const VARIANT: [usize; 7] = [
        1,
        2,
        3,
        7,
        IPV6_HEADER_LEN + 6,
        IPV6_HEADER_LEN + 7,
        IPV6_HEADER_LEN + UDP_HEADER_LEN + 4,
    ];
    const HEAD: usize = VARIANT[VARIANT.len() - 1] + 1;
    let (head, rest) = packet.split_at(packet.len().min(HEAD));
    let mut masked = [0; 8 + HEAD];
    let (ones, copy) = masked[..8 + head.len()].split_at_mut(8);
    ones.fill(0xff);
    copy.copy_from_slice(head);
    for at in VARIANT {
        if let Some(byte) = copy.get_mut(at) {
            *byte = 0xff;
        }
    }
    // The version before the traffic class does not change.
    copy[0] |= 0x0f;
    let bytes = masked[..8 + head.len()].iter().chain(rest);
    !bytes.fold(u32::MAX, |crc, byte| step(crc, *byte))
}

/// The CRC of each byte value.
const STEPS: [u32; 256] = {
    let mut steps = [0; 256];
    let mut byte = 0;
    while byte < steps.len() {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 0 { 0 } else { 0xedb8_8320 };
            bit += 1;
        }
        steps[byte] = crc;
        byte += 1;
    }
    steps
};

fn step(crc: u32, byte: u8) -> u32 {
    let [low, ..] = crc.to_le_bytes();
    crc >> 8 ^ STEPS[usize::from(low ^ byte)]
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
    fn frames_are_udp_to_4791_with_crc() {
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
        // The invariant CRC excludes the fields that routers change.
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

    #[test]
    fn the_packet_is_read_back_whole_or_cut() {
        let gids = [Gid([0xfe; 16]), Gid([0x0a; 16])];
        let packet: Vec<u8> = (0..40).collect();
        let frame = roce_frame(gids[0], gids[1], 3, &packet);
        let ip = &frame[OUTER_LEN - UDP_HEADER_LEN - IPV6_HEADER_LEN..];
        for there in 0..=ip.len() {
            let found = roce_packet(&ip[..there], ip.len());
            let begins = IPV6_HEADER_LEN + UDP_HEADER_LEN;
            assert_eq!(found.is_some(), there >= begins, "{there}");
            if let Some(found) = found {
                assert_eq!([found.source, found.destination], gids);
                let length = (there - begins).min(packet.len());
                assert_eq!(found.packet, &packet[..length]);
            }
        }
        let mut other = ip.to_vec();
        other[IPV6_HEADER_LEN + 3] ^= 1;
        assert_eq!(roce_packet(&other, other.len()), None, "another port");
    }
}
