//! HANDSHAKE as the generations of stock libfabric send it.

use efa_core::address::Qkey;
use efa_core::wire::{Connid, ExtraFeatures, ExtraInfo, Handshake, HandshakeFlags, UserRecvQp};

use super::{Literal, derived};

const READ_ONLY: &[u64] = &[0x1];
const OF_1_17: &[u64] = &[0x1b];
const OF_2_1: &[u64] = &[0x1fb];
const FROM_THE_FUTURE: &[u64] = &[0x3fb, 1 << 63];

fn words(words: &[u64]) -> ExtraInfo {
    ExtraInfo::new(words).unwrap()
}

#[rustfmt::skip]
pub(crate) fn literals() -> Vec<Literal> {
    vec![
        // As 1.11.0: 16 bytes.
        derived(
            [
                9, 4, 0x00, 0x00,
                4, 0, 0, 0,                          // nextra_p3: one word
                0x01, 0, 0, 0, 0, 0, 0, 0,           // extra_info[0]: RDMA read
            ],
            Handshake { extra_info: words(READ_ONLY), ..Handshake::default() },
            b"",
        ),
        // As 1.17.0: 24 bytes.
        derived(
            [
                9, 4, 0x00, 0x80,                    // flags CONNID_HDR
                4, 0, 0, 0,
                0x1b, 0, 0, 0, 0, 0, 0, 0,           // RDMA read, DC, connid, runting read
                0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0,  // connid, padding
            ],
            Handshake {
                extra_info: words(OF_1_17),
                connid: Some(Connid(0x1234_5678)),
                ..Handshake::default()
            },
            b"",
        ),
        // As 2.1.0 with a host id and a second queue pair: 48 bytes.
        derived(
            [
                9, 4, 0x07, 0x80,                    // flags CONNID, HOST_ID, DEVICE_VERSION, QP
                4, 0, 0, 0,
                0xfb, 0x01, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0,  // connid, padding
                0x08, 0x07, 0x06, 0x05, 4, 3, 2, 1,  // host_id
                0xa1, 0xef, 0, 0, 0, 0, 0, 0,        // device_version, reserved
                0x02, 0x01, 0, 0,                    // user receive QP: QPN
                0x44, 0x33, 0x22, 0x11,              // and Q-key
            ],
            Handshake {
                extra_info: words(OF_2_1),
                connid: Some(Connid(0x1234_5678)),
                host_id: Some(0x0102_0304_0506_0708),
                device_version: Some(0xefa1),
                user_recv_qp: Some(UserRecvQp { qpn: 0x0102, qkey: Qkey(0x1122_3344) }),
                ..Handshake::default()
            },
            b"",
        ),
        // As 2.6.0 without a host id: the fields behind it move up.
        derived(
            [
                9, 4, 0x02, 0x80,
                4, 0, 0, 0,
                0xfb, 0x01, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0,  // connid, padding
                0xa2, 0xef, 0, 0, 0, 0, 0, 0,        // device_version, reserved
            ],
            Handshake {
                extra_info: words(OF_2_1),
                connid: Some(Connid(0x1234_5678)),
                device_version: Some(0xefa2),
                ..Handshake::default()
            },
            b"",
        ),
        // As it may become: two words, an unknown flag, an unknown field, which are all kept.
        derived(
            [
                9, 4, 0x1a, 0x00,
                5, 0, 0, 0,                          // nextra_p3: two words
                0xfb, 0x03, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0x80,
                0xa2, 0xef, 0, 0, 0, 0, 0, 0,        // device_version, reserved
                1, 0, 0, 0, 0, 0, 0, 0,              // p2p_supported, reserved
                b'u', b'n', b'k', b'n', b'o', b'w', b'n', b'!',
            ],
            Handshake {
                extra_info: words(FROM_THE_FUTURE),
                device_version: Some(0xefa2),
                hmem_p2p: Some(true),
                flags: HandshakeFlags::from_bits_retain(0x10),
                ..Handshake::default()
            },
            b"unknown!",
        ),
    ]
}

#[test]
fn capability_bits_have_their_names() {
    assert_eq!(
        words(OF_1_17).features(),
        ExtraFeatures::RDMA_READ
            | ExtraFeatures::DELIVERY_COMPLETE
            | ExtraFeatures::CONNID_HEADER
            | ExtraFeatures::RUNTING_READ
    );
    assert!(words(FROM_THE_FUTURE).contains(127));
}
