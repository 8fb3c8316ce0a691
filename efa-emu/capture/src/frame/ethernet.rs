//! Frames as bytes: the outer layers around the transport header.

use efa_wire::address::Gid;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv6Packet,
    Ipv6Repr, UDP_HEADER_LEN, UdpPacket, UdpRepr,
};

use super::error::Error;
use super::header::MAX_PAYLOAD;
use super::link;
use super::repr::{FrameKind, Repr};

/// The UDP destination port of every frame: 0xEFA0.
pub const UDP_PORT: u16 = 0xEFA0;
/// The UDP source port of path 0; path `n` uses port `FIRST_SOURCE_PORT + n % PATHS`.
pub const FIRST_SOURCE_PORT: u16 = 49152;
/// Number of different source ports, the dynamic port range.
pub const PATHS: u16 = 16384;
/// Bytes of Ethernet, IPv6 and UDP headers before the transport header.
pub const OUTER_LEN: usize =
    EthernetFrame::<&[u8]>::header_len() + smoltcp::wire::IPV6_HEADER_LEN + UDP_HEADER_LEN;

/// The Ethernet address of a GID.
///
/// EFA devices have GIDs that contain a modified EUI-64 (RFC 4291, appendix A); such a GID yields
/// the Ethernet address from which it was made. Any other GID yields a locally administered address
/// from its last five bytes. The result is never a group address.
pub fn ethernet_address(gid: Gid) -> EthernetAddress {
    let g = gid.0;
    if g[11..13] == [0xff, 0xfe] {
        EthernetAddress([(g[8] ^ 0x02) & 0xfe, g[9], g[10], g[13], g[14], g[15]])
    } else {
        EthernetAddress([0x02, g[11], g[12], g[13], g[14], g[15]])
    }
}

/// One frame of the emulated wire; it borrows its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The sender's GID.
    pub source: Gid,
    /// The receiver's GID.
    pub destination: Gid,
    /// The transport header.
    pub header: Repr,
    /// The data: an RDM packet, a datagram or a piece of RDMA data.
    /// [`Repr::captured_len`] bytes long, or less after [`Frame::parse_cut`].
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Length in bytes of the whole frame.
    pub fn len(&self) -> usize {
        OUTER_LEN + self.header.header_len() + self.payload.len()
    }

    /// Whether the frame carries no data.
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// Appends the frame's bytes to `buffer`, with a valid UDP checksum.
    ///
    /// Fails, and does not change the buffer, if the payload's length differs from the one in the
    /// header, or the payload is too long for a frame.
    pub fn emit(&self, buffer: &mut Vec<u8>) -> Result<(), Error> {
        if self.payload.len() != self.header.captured_len() {
            return Err(Error::PayloadLength {
                announced: self.header.captured_len(),
                have: self.payload.len(),
            });
        }
        if self.payload.len() > MAX_PAYLOAD {
            return Err(Error::TooLong {
                length: self.payload.len(),
            });
        }
        let start = buffer.len();
        buffer.resize(start + self.len(), 0);

        let mut ethernet = EthernetFrame::new_unchecked(&mut buffer[start..]);
        EthernetRepr {
            src_addr: ethernet_address(self.source),
            dst_addr: ethernet_address(self.destination),
            ethertype: EthernetProtocol::Ipv6,
        }
        .emit(&mut ethernet);

        let udp_payload = self.header.header_len() + self.payload.len();
        let ip = Ipv6Repr {
            src_addr: self.source.to_ipv6(),
            dst_addr: self.destination.to_ipv6(),
            next_header: IpProtocol::Udp,
            payload_len: UDP_HEADER_LEN + udp_payload,
            hop_limit: 64,
        };
        let mut ipv6 = Ipv6Packet::new_unchecked(ethernet.payload_mut());
        ip.emit(&mut ipv6);

        let udp = UdpRepr {
            src_port: FIRST_SOURCE_PORT + self.header.path % PATHS,
            dst_port: UDP_PORT,
        };
        udp.emit(
            &mut UdpPacket::new_unchecked(ipv6.payload_mut()),
            &ip.src_addr.into(),
            &ip.dst_addr.into(),
            udp_payload,
            |bytes| {
                self.header.emit(bytes).copy_from_slice(self.payload);
            },
            &ChecksumCapabilities::default(),
        );
        Ok(())
    }

    /// Reads a frame. Bytes after the IPv6 packet (Ethernet padding) are ignored.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, Error> {
        Frame::parse_cut(bytes, bytes.len())
    }

    /// Reads a frame of `original` bytes whose first bytes were captured, as in a capture with a
    /// snap length. It must include all headers. The payload may be shorter than
    /// [`Repr::captured_len`]; the checksum is not verified then.
    pub fn parse_cut(bytes: &'a [u8], original: usize) -> Result<Frame<'a>, Error> {
        let (start, _) = link::ip_packet(link::ETHERNET, bytes)?;
        Frame::parse_packet(&bytes[start..], original.saturating_sub(start))
    }

    /// As [`Frame::parse_cut`], for an IPv6 packet without a link layer.
    ///
    /// # Errors
    /// As [`Frame::parse_cut`].
    pub fn parse_packet(bytes: &'a [u8], original: usize) -> Result<Frame<'a>, Error> {
        let cut_off = original.saturating_sub(bytes.len());
        let truncated = |what, need, have| Error::Truncated { what, need, have };
        if bytes.len() < smoltcp::wire::IPV6_HEADER_LEN {
            return Err(truncated(
                "IPv6 header",
                smoltcp::wire::IPV6_HEADER_LEN,
                bytes.len(),
            ));
        }
        let ipv6 = Ipv6Packet::new_unchecked(bytes);
        if ipv6.version() != 6 {
            return Err(Error::Foreign {
                what: "IP version",
                found: ipv6.version().into(),
                expected: 6,
            });
        }
        let total = ipv6.total_len();
        if total > bytes.len() + cut_off {
            return Err(truncated("IPv6 packet", total, bytes.len()));
        }
        if ipv6.next_header() != IpProtocol::Udp {
            return Err(Error::Foreign {
                what: "IPv6 next header",
                found: u8::from(ipv6.next_header()).into(),
                expected: u8::from(IpProtocol::Udp).into(),
            });
        }

        let (packet, addresses) = (bytes, smoltcp::wire::IPV6_HEADER_LEN - 2 * size_of::<Gid>());
        let bytes = &bytes[smoltcp::wire::IPV6_HEADER_LEN..total.min(bytes.len())];
        if bytes.len() < UDP_HEADER_LEN {
            return Err(truncated("UDP header", UDP_HEADER_LEN, bytes.len()));
        }
        let udp = UdpPacket::new_unchecked(bytes);
        let udp_len = usize::from(udp.len());
        if udp_len < UDP_HEADER_LEN || udp_len > bytes.len() + cut_off {
            let need = udp_len.max(UDP_HEADER_LEN);
            return Err(truncated("UDP datagram", need, bytes.len()));
        }
        if udp.dst_port() != UDP_PORT {
            return Err(Error::Foreign {
                what: "UDP destination port",
                found: udp.dst_port(),
                expected: UDP_PORT,
            });
        }
        let missing = udp_len.saturating_sub(bytes.len());
        let is_whole = missing == 0;
        let checksum_is_right = || {
            // The datagram follows the addresses, which are at the end of the IPv6 header.
            let covered = &packet[addresses..smoltcp::wire::IPV6_HEADER_LEN + udp_len];
            let others = [u8::from(IpProtocol::Udp).into(), udp.len()];
            ones_complement_sum(covered, others) == u16::MAX
                // Slower, but it accepts a frame without a checksum.
                || udp.verify_checksum(&ipv6.src_addr().into(), &ipv6.dst_addr().into())
        };
        if is_whole && !checksum_is_right() {
            return Err(Error::Checksum {
                found: udp.checksum(),
            });
        }

        let (header, payload) = Repr::parse(&bytes[UDP_HEADER_LEN..udp_len.min(bytes.len())])?;
        if payload.len() + missing != header.captured_len() {
            return Err(Error::PayloadLength {
                announced: header.captured_len(),
                have: payload.len() + missing,
            });
        }
        Ok(Frame {
            source: ipv6.src_addr().into(),
            destination: ipv6.dst_addr().into(),
            header,
            payload,
        })
    }

    /// The RDM packet that the frame carries: the payload of a [`FrameKind::Send`].
    pub fn rdm_packet(&self) -> Option<&'a [u8]> {
        matches!(self.header.kind, FrameKind::Send).then_some(self.payload)
    }
}

/// The sum of 16-bit words of Internet checksums (RFC 1071), of bytes and further words. It adds in
/// the machine's byte order and several words per step, which is ten times as fast as `smoltcp`'s.
fn ones_complement_sum(bytes: &[u8], words: [u16; 2]) -> u16 {
    let (chunks, rest) = bytes.as_chunks();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let wide = |chunk: [u8; 4]| u64::from(u32::from_ne_bytes(chunk));
    let mut sum: u64 = chunks.iter().map(|chunk| wide(*chunk)).sum();
    sum += wide(last)
        + words
            .map(|word| u64::from(word.to_be()))
            .iter()
            .sum::<u64>();
    while sum > u16::MAX.into() {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum as u16).to_be()
}
