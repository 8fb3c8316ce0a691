use efa_wire::Status;
use efa_wire::address::{Qkey, Qpn};
use proptest::prelude::*;

use efa_wire::address::Gid;

use super::*;

fn gid(last: u8) -> Gid {
    Gid([
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0x12, 0x34, 0xff, 0xfe, 0x56, 0x78, last,
    ])
}

fn header() -> Repr {
    Repr {
        kind: FrameKind::Send,
        source_qpn: Qpn(1),
        destination_qpn: Qpn(2),
        qkey: Qkey(0x1122_3344),
        sequence: 5,
        immediate: None,
        retransmission: false,
        path: 3,
        payload_length: 2,
        payload_captured: true,
    }
}

fn frame_of(header: Repr, payload: &[u8]) -> Frame<'_> {
    Frame {
        source: gid(1),
        destination: gid(2),
        header,
        payload,
    }
}

fn emitted(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.emit(&mut bytes).unwrap();
    bytes
}

#[rustfmt::skip]
const FRAME: [u8; 96] = [
    0x02, 0x12, 0x34, 0x56, 0x78, 0x0b,         // destination of fe80::12:34ff:fe56:780b
    0x02, 0x12, 0x34, 0x56, 0x78, 0x0a,         // source
    0x86, 0xdd,                                 // IPv6
    0x60, 0, 0, 0, 0, 42, 17, 64,               // version, payload length, UDP, hop limit
    0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0x12, 0x34, 0xff, 0xfe, 0x56, 0x78, 0x0a,
    0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0x12, 0x34, 0xff, 0xfe, 0x56, 0x78, 0x0b,
    0xc0, 0x03, 0xef, 0xa0, 0, 42, 0x57, 0x83,  // ports 49155 and 61344, length, checksum
    b'E', b'F', 1, 1, 0, 0, 32, 0,
    1, 0, 2, 0, 0x44, 0x33, 0x22, 0x11,
    5, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 3, 0, 2, 0, 0, 0,
    0xca, 0xfe,
];

#[test]
fn frame_has_the_documented_bytes() {
    let frame = Frame {
        source: gid(0x0a),
        destination: gid(0x0b),
        header: header(),
        payload: &[0xca, 0xfe],
    };
    let bytes = emitted(&frame);
    assert_eq!(bytes, FRAME);
    assert_eq!(bytes.len(), frame.len());
    assert_eq!(Frame::parse(&FRAME).unwrap(), frame);
    assert_eq!(frame.rdm_packet(), Some(&[0xca, 0xfe][..]));
}

#[test]
fn ethernet_padding_is_not_payload() {
    let mut padded = FRAME.to_vec();
    padded.extend([0; 7]);
    assert_eq!(Frame::parse(&padded).unwrap().payload, [0xca, 0xfe]);
}

#[test]
fn ethernet_addresses_are_unicast_and_round_trip() {
    let mut hardware = gid(1);
    hardware.0[8] = 0x02 ^ 0x0e;
    assert_eq!(
        ethernet_address(hardware).0,
        [0x0e, 0x12, 0x34, 0x56, 0x78, 1]
    );
    let other = Gid([0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(ethernet_address(other).0, [0x02, 11, 12, 13, 14, 15]);
    hardware.0[8] = 0xff;
    assert!(ethernet_address(hardware).is_unicast());
}

#[test]
fn foreign_and_damaged_frames_are_refused() {
    let with = |at: usize, value: u8| {
        let mut bytes = FRAME;
        bytes[at] = value;
        bytes
    };
    let parse = |bytes: &[u8]| Frame::parse(bytes).unwrap_err().to_string();
    assert_eq!(
        parse(&[]),
        "Ethernet header needs 14 bytes, but only 0 are there"
    );
    assert_eq!(
        parse(&with(13, 0)),
        "not a frame of the emulated wire: Ethernet type is 0x8600, expected 0x86dd"
    );
    assert_eq!(
        parse(&with(20, 6)),
        "not a frame of the emulated wire: IPv6 next header is 0x6, expected 0x11"
    );
    assert_eq!(
        parse(&FRAME[..40]),
        "IPv6 header needs 40 bytes, but only 26 are there"
    );
    assert_eq!(
        parse(&FRAME[..95]),
        "IPv6 packet needs 82 bytes, but only 81 are there"
    );
    assert_eq!(
        parse(&with(57, 0xa1)),
        "not a frame of the emulated wire: UDP destination port is 0xefa1, expected 0xefa0"
    );
    assert_eq!(parse(&with(95, 0xff)), "UDP checksum 0x5783 is wrong");
    let mut bytes = Vec::new();
    let frame = frame_of(header(), &[1]);
    assert_eq!(
        frame.emit(&mut bytes),
        Err(Error::PayloadLength {
            announced: 2,
            have: 1
        })
    );
    let big = vec![0; MAX_PAYLOAD + 1];
    let header = Repr {
        payload_length: big.len() as u32,
        ..header()
    };
    let frame = frame_of(header, &big);
    assert_eq!(
        frame.emit(&mut bytes),
        Err(Error::TooLong {
            length: MAX_PAYLOAD + 1
        })
    );
    assert!(bytes.is_empty());
}

#[test]
fn the_largest_payload_fits_behind_the_longest_header() {
    let payload = vec![0x5a; MAX_PAYLOAD];
    let rdma = Rdma {
        remote: efa_device_model::link::RemoteRange { address: 1, key: 2 },
        total_length: u32::MAX,
        offset: 0,
    };
    let header = Repr {
        kind: FrameKind::RdmaWrite(rdma),
        payload_length: payload.len() as u32,
        ..header()
    };
    let frame = frame_of(header, &payload);
    let bytes = emitted(&frame);
    assert_eq!(Frame::parse(&bytes).unwrap(), frame);
}

#[test]
fn a_payload_left_out_keeps_its_length() {
    let header = Repr {
        payload_captured: false,
        payload_length: 1 << 30,
        ..header()
    };
    let frame = frame_of(header, &[]);
    let bytes = emitted(&frame);
    assert_eq!(bytes.len(), OUTER_LEN + header::HEADER_LEN);
    assert_eq!(Frame::parse(&bytes).unwrap(), frame);
}

proptest! {
    #[test]
    fn an_emitted_frame_is_parsed_unchanged(
        source: [u8; 16],
        destination: [u8; 16],
        header in repr::tests::repr(2000),
        fill: u8,
    ) {
        let payload = vec![fill; header.captured_len()];
        let frame = Frame {
            source: Gid(source),
            destination: Gid(destination),
            header,
            payload: &payload,
        };
        let mut bytes = vec![0xee; 3];
        frame.emit(&mut bytes).unwrap();
        prop_assert_eq!(Frame::parse(&bytes[3..]).unwrap(), frame);
    }

    #[test]
    fn mutated_frames_never_panic(
        changes in prop::collection::vec((0usize..96, any::<u8>()), 1..6),
        length in 0usize..=96,
    ) {
        let mut bytes = FRAME;
        for (at, value) in changes {
            bytes[at] = value;
        }
        let _ = Frame::parse(&bytes[..length]);
        let _ = Frame::parse(&bytes);
    }
}

#[test]
fn every_status_survives_a_response_frame() {
    for status in Status::ALL {
        let header = Repr {
            kind: FrameKind::Response(status),
            payload_length: 0,
            ..header()
        };
        let frame = frame_of(header, &[]);
        let bytes = emitted(&frame);
        assert_eq!(
            Frame::parse(&bytes).unwrap().header.kind,
            FrameKind::Response(status)
        );
    }
}
