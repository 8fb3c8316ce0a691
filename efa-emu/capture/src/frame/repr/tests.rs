use proptest::prelude::*;

use super::*;

#[rustfmt::skip]
const SEND: [u8; 36] = [
    b'E', b'F', 1, 1,           // magic, version, opcode
    0x03, 0x00, 32, 0,          // flags: immediate, retransmission; header length
    0x02, 0x01, 0x04, 0x03,     // source QPN, destination QPN
    0x44, 0x33, 0x22, 0x11,     // Q-key
    0x08, 0x07, 0x06, 0x05,     // sequence
    0x0c, 0x0b, 0x0a, 0x09,     // immediate
    0, 0, 0x0e, 0x0d,           // status, reserved, path
    4, 0, 0, 0,                 // payload length
    0xaa, 0xbb, 0xcc, 0xdd,     // payload
];

#[rustfmt::skip]
const RDMA_WRITE: [u8; 56] = [
    b'E', b'F', 1, 4,
    0x04, 0x00, 56, 0,          // flags: not captured
    1, 0, 2, 0,
    0x44, 0x33, 0x22, 0x11,
    7, 0, 0, 0,
    0, 0, 0, 0,
    0, 0, 0, 0,
    0x00, 0x20, 0x00, 0x00,     // payload length 8192
    0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // remote address
    0x0d, 0x0c, 0x0b, 0x0a,     // remote key
    0x00, 0x00, 0x10, 0x00,     // total length 1 MiB
    0x00, 0x40, 0x00, 0x00,     // offset 16384
    0, 0, 0, 0,                 // reserved
];

fn send_repr() -> Repr {
    Repr {
        kind: FrameKind::Send,
        source_qpn: Qpn(0x0102),
        destination_qpn: Qpn(0x0304),
        qkey: Qkey(0x1122_3344),
        sequence: 0x0506_0708,
        immediate: Some(0x090a_0b0c),
        retransmission: true,
        path: 0x0d0e,
        payload_length: 4,
        payload_captured: true,
    }
}

fn rdma_write_repr() -> Repr {
    Repr {
        kind: FrameKind::RdmaWrite(Rdma {
            remote: RemoteRange::new(0x0102_0304_0506_0708, 0x0a0b_0c0d),
            total_length: 1 << 20,
            offset: 16384,
        }),
        source_qpn: Qpn(1),
        destination_qpn: Qpn(2),
        qkey: Qkey(0x1122_3344),
        sequence: 7,
        immediate: None,
        retransmission: false,
        path: 0,
        payload_length: 8192,
        payload_captured: false,
    }
}

#[test]
fn header_has_the_documented_bytes() {
    let payload = &[0xaa, 0xbb, 0xcc, 0xdd][..];
    assert_eq!(Repr::parse(&SEND), Ok((send_repr(), payload)));
    let mut bytes = [0xff; HEADER_LEN + 3];
    assert_eq!(send_repr().emit(&mut bytes), [0xff; 3]);
    assert_eq!(bytes[..HEADER_LEN], SEND[..HEADER_LEN]);
}

#[test]
fn rdma_extension_has_the_documented_bytes() {
    assert_eq!(Repr::parse(&RDMA_WRITE), Ok((rdma_write_repr(), &[][..])));
    assert_eq!(rdma_write_repr().captured_len(), 0);
    let mut bytes = [0xff; RDMA_HEADER_LEN];
    rdma_write_repr().emit(&mut bytes);
    assert_eq!(bytes, RDMA_WRITE);
}

#[test]
fn malformed_headers_are_refused_with_the_field() {
    let parse = |bytes: &[u8]| Repr::parse(bytes).unwrap_err();
    let with = |at: usize, value: u8| {
        let mut bytes = SEND;
        bytes[at] = value;
        bytes
    };
    assert_eq!(
        parse(&SEND[..31]),
        Error::Truncated {
            what: "transport header",
            need: 32,
            have: 31
        }
    );
    assert_eq!(parse(&with(0, b'X')), Error::Magic { found: *b"XF" });
    assert_eq!(parse(&with(2, 2)), Error::Version { found: 2 });
    assert_eq!(parse(&with(3, 0)), Error::Opcode { found: 0 });
    assert_eq!(parse(&with(3, 7)), Error::Opcode { found: 7 });
    assert_eq!(
        parse(&with(3, 4)),
        Error::HeaderLength {
            opcode: Opcode::RdmaWrite,
            found: 32
        }
    );
    assert_eq!(
        parse(&with(6, 31)),
        Error::HeaderLength {
            opcode: Opcode::Send,
            found: 31
        }
    );
    assert_eq!(
        parse(&with(6, 40)),
        Error::Truncated {
            what: "transport header",
            need: 40,
            have: 36
        }
    );
    let mut response = with(3, 5);
    response[24] = 16;
    assert_eq!(parse(&response), Error::Status { found: 16 });
}

#[test]
fn a_longer_header_and_unknown_flags_are_skipped() {
    let mut bytes = [0; 40];
    bytes[..32].copy_from_slice(&SEND[..32]);
    bytes[5] = 0x80;
    bytes[6] = 36;
    bytes[36..].copy_from_slice(&SEND[32..]);
    assert_eq!(Repr::parse(&bytes), Ok((send_repr(), &SEND[32..])));
}

#[test]
fn answers_go_back_to_the_initiator() {
    let request = RequestHeader {
        operation: Operation::RdmaRead,
        source_qpn: Qpn(1),
        destination_qpn: Qpn(2),
        qkey: Qkey(3),
        sequence: 4,
        retries: 0,
        immediate: None,
        remote: Some(RemoteRange { address: 5, key: 6 }),
        length: 10000,
    };
    let sent = Repr::of_request(&request, 0, 0);
    assert_eq!((sent.source_qpn, sent.destination_qpn), (Qpn(1), Qpn(2)));
    let rdma = |offset| Rdma {
        remote: request.remote.unwrap(),
        total_length: 10000,
        offset,
    };
    assert_eq!(sent.kind, FrameKind::RdmaReadRequest(rdma(0)));

    let data = Repr::of_read_data(&request, 8192, 1808);
    assert_eq!((data.source_qpn, data.destination_qpn), (Qpn(2), Qpn(1)));
    assert_eq!(
        (data.kind, data.payload_length),
        (FrameKind::RdmaReadResponse(rdma(8192)), 1808)
    );
    assert_eq!((data.qkey, data.sequence), (Qkey(3), 4));

    let status = Repr::of_status(&request, Status::RemoteBadAddress);
    assert_eq!(
        (status.source_qpn, status.destination_qpn),
        (Qpn(2), Qpn(1))
    );
    assert_eq!(status.kind, FrameKind::Response(Status::RemoteBadAddress));
}

fn rdma() -> impl Strategy<Value = Rdma> {
    any::<(u64, u32, u32, u32)>().prop_map(|(address, key, total_length, offset)| Rdma {
        remote: RemoteRange { address, key },
        total_length,
        offset,
    })
}

/// Any header. The payload length is at most `longest` so that a test can afford the payload.
pub(in crate::frame) fn repr(longest: u32) -> impl Strategy<Value = Repr> {
    let kind = prop_oneof![
        Just(FrameKind::Send),
        rdma().prop_map(FrameKind::RdmaReadRequest),
        rdma().prop_map(FrameKind::RdmaReadResponse),
        rdma().prop_map(FrameKind::RdmaWrite),
        prop::sample::select(&Status::ALL[..]).prop_map(FrameKind::Response),
        Just(FrameKind::Datagram),
    ];
    let rest = any::<(u16, u16, u32, u32, Option<u32>, bool, u16, bool)>();
    (kind, rest, 0..=longest).prop_map(|(kind, rest, payload_length)| Repr {
        kind,
        source_qpn: Qpn(rest.0),
        destination_qpn: Qpn(rest.1),
        qkey: Qkey(rest.2),
        sequence: rest.3,
        immediate: rest.4,
        retransmission: rest.5,
        path: rest.6,
        payload_length,
        payload_captured: rest.7,
    })
}

proptest! {
    #[test]
    fn an_emitted_header_is_parsed_unchanged(repr in repr(u32::MAX)) {
        let mut bytes = vec![0xff; repr.header_len()];
        repr.emit(&mut bytes);
        prop_assert_eq!(Repr::parse(&bytes), Ok((repr, &[][..])));
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), real: bool) {
        if real && bytes.len() > 4 {
            let opcode = bytes[3] % 7;
            bytes[..4].copy_from_slice(&[b'E', b'F', VERSION, opcode]);
        }
        let _ = Repr::parse(&bytes);
    }
}
