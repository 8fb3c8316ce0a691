//! Requests To Message.

use efa_core::wire::{
    Connid, EagerRtm, LongctsRtm, LongreadRtm, MediumRtm, MsgId, RawAddressHeader, ReqFlags,
    ReqOptions, RmaIov, RmaIovs, RuntctsRtm, RuntreadRtm, SendId,
};

use super::{ADDRESS, Literal, STOCK_ADDRESS, derived};

const TAG: Option<u64> = Some(0x8877_6655_4433_2211);
const SEND_ID: SendId = SendId(0x0403_0201);
const MSG_ID: MsgId = MsgId(0x0000_0102);
const READ_IOVS: &[RmaIov] = &[RmaIov::new(0x7f00_dead_0000, 0x10_0000, 0x1234_abcd)];
const READ_IOV: RmaIovs = RmaIovs::new(READ_IOVS).unwrap();

fn none() -> ReqOptions {
    ReqOptions::default()
}

fn connid() -> ReqOptions {
    ReqOptions {
        connid: Some(Connid(0x1234_5678)),
        ..none()
    }
}

#[rustfmt::skip]
pub(crate) fn literals() -> Vec<Literal> {
    vec![
        derived(
            [
                64, 4, 0x04, 0x00,                   // flags MSG
                0x02, 0x01, 0, 0,                    // msg_id
                b'h', b'e', b'l', b'l', b'o',
            ],
            EagerRtm { msg_id: MSG_ID, ..EagerRtm::default() },
            b"hello",
        ),
        // The first packet to a peer, as libfabric 1.13.0 and later sends it: 36 bytes of address.
        derived(
            [
                64, 4, 0x05, 0x00,                   // flags RAW_ADDR, MSG
                0, 0, 0, 0,                          // msg_id
                36, 0, 0, 0,                         // raw_addr.size
                0xfe, 0x80, 0, 0, 0, 0, 0, 0,        // gid
                0x04, 0x2a, 0xff, 0xfe, 0x11, 0x22, 0x33, 0x44,
                0x07, 0x01, 0, 0,                    // qpn, pad
                0xf0, 0x0f, 0xa5, 0x5a,              // connid
                0, 0, 0, 0, 0, 0, 0, 0,              // reserved
                0, 0, 0, 0,                          // surplus
                b'x',
            ],
            EagerRtm {
                options: ReqOptions { raw_address: Some(STOCK_ADDRESS), ..none() },
                ..EagerRtm::default()
            },
            b"x",
        ),
        // The same as libfabric 1.11.0 sends it, with CQ data at an offset that is not aligned.
        derived(
            [
                64, 4, 0x07, 0x00,                   // flags RAW_ADDR, CQ_DATA, MSG
                0, 0, 0, 0,
                32, 0, 0, 0,                         // raw_addr.size
                0xfe, 0x80, 0, 0, 0, 0, 0, 0,
                0x04, 0x2a, 0xff, 0xfe, 0x11, 0x22, 0x33, 0x44,
                0x07, 0x01, 0, 0,
                0xf0, 0x0f, 0xa5, 0x5a,
                0, 0, 0, 0, 0, 0, 0, 0,
                1, 2, 3, 4, 5, 6, 7, 8,              // cq_data
            ],
            EagerRtm {
                options: ReqOptions {
                    raw_address: RawAddressHeader::with_size(ADDRESS, 32),
                    cq_data: Some(0x0807_0605_0403_0201),
                    ..none()
                },
                ..EagerRtm::default()
            },
            b"",
        ),
        derived(
            [
                65, 4, 0x0c, 0x80,                   // flags MSG, TAGGED, CONNID
                0x02, 0x01, 0, 0,                    // msg_id
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // tag
                0x78, 0x56, 0x34, 0x12,              // connid
                b'h', b'e', b'l', b'l', b'o',
            ],
            EagerRtm { msg_id: MSG_ID, tag: TAG, receipt: None, options: connid() },
            b"hello",
        ),
        // All three optional headers, which the spec allows and stock libfabric never sends.
        derived(
            [
                65, 4, 0x0f, 0x80,
                0x02, 0x01, 0, 0,
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
                36, 0, 0, 0,
                0xfe, 0x80, 0, 0, 0, 0, 0, 0,
                0x04, 0x2a, 0xff, 0xfe, 0x11, 0x22, 0x33, 0x44,
                0x07, 0x01, 0, 0,
                0xf0, 0x0f, 0xa5, 0x5a,
                0, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0,
                1, 2, 3, 4, 5, 6, 7, 8,              // cq_data
                0x78, 0x56, 0x34, 0x12,              // connid
            ],
            EagerRtm {
                msg_id: MSG_ID,
                tag: TAG,
                receipt: None,
                options: ReqOptions {
                    raw_address: Some(STOCK_ADDRESS),
                    cq_data: Some(0x0807_0605_0403_0201),
                    ..connid()
                },
            },
            b"",
        ),
        derived(
            [
                133, 4, 0x04, 0x00,
                0x02, 0x01, 0, 0,                    // msg_id
                1, 2, 3, 4, 0, 0, 0, 0,              // send_id, padding
                b'd', b'c',
            ],
            EagerRtm { msg_id: MSG_ID, receipt: Some(SEND_ID), ..EagerRtm::default() },
            b"dc",
        ),
        derived(
            [
                134, 4, 0x0c, 0x00,
                0x02, 0x01, 0, 0,                    // msg_id
                1, 2, 3, 4, 0, 0, 0, 0,              // send_id, padding
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // tag
                b'd', b'c',
            ],
            EagerRtm { msg_id: MSG_ID, tag: TAG, receipt: Some(SEND_ID), options: none() },
            b"dc",
        ),
        derived(
            [
                66, 4, 0x04, 0x00,
                0x02, 0x01, 0, 0,                    // msg_id
                0, 0x80, 0, 0, 0, 0, 0, 0,           // msg_length: of the whole message
                8, 0, 0, 0, 0, 0, 0, 0,              // seg_offset
                b's', b'e', b'g',
            ],
            MediumRtm { msg_id: MSG_ID, msg_length: 0x8000, seg_offset: 8, ..MediumRtm::default() },
            b"seg",
        ),
        derived(
            [
                67, 4, 0x0c, 0x80,
                0x02, 0x01, 0, 0,                    // msg_id
                0, 0x80, 0, 0, 0, 0, 0, 0,           // msg_length
                8, 0, 0, 0, 0, 0, 0, 0,              // seg_offset
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // tag
                0x78, 0x56, 0x34, 0x12,              // connid
                b's', b'e', b'g',
            ],
            MediumRtm {
                msg_id: MSG_ID,
                msg_length: 0x8000,
                seg_offset: 8,
                tag: TAG,
                receipt: None,
                options: connid(),
            },
            b"seg",
        ),
        derived(
            [
                135, 4, 0x04, 0x00,
                0x02, 0x01, 0, 0,                    // msg_id
                1, 2, 3, 4, 0, 0, 0, 0,              // send_id, padding
                0, 0x80, 0, 0, 0, 0, 0, 0,           // msg_length
                8, 0, 0, 0, 0, 0, 0, 0,              // seg_offset
                b's', b'e', b'g',
            ],
            MediumRtm {
                msg_id: MSG_ID,
                msg_length: 0x8000,
                seg_offset: 8,
                receipt: Some(SEND_ID),
                ..MediumRtm::default()
            },
            b"seg",
        ),
        derived(
            [
                136, 4, 0x0c, 0x00,
                0x02, 0x01, 0, 0,                    // msg_id
                1, 2, 3, 4, 0, 0, 0, 0,              // send_id, padding
                0, 0x80, 0, 0, 0, 0, 0, 0,           // msg_length
                8, 0, 0, 0, 0, 0, 0, 0,              // seg_offset
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // tag
                b's', b'e', b'g',
            ],
            MediumRtm {
                msg_id: MSG_ID,
                msg_length: 0x8000,
                seg_offset: 8,
                tag: TAG,
                receipt: Some(SEND_ID),
                options: none(),
            },
            b"seg",
        ),
        derived(
            [
                68, 4, 0x04, 0x00,
                0x02, 0x01, 0, 0,                    // msg_id
                0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                1, 2, 3, 4,                          // send_id
                32, 0, 0, 0,                         // credit_request
                b'f', b'i', b'r', b's', b't',
            ],
            LongctsRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                ..LongctsRtm::default()
            },
            b"first",
        ),
        // The answer to READ_NACK: flag 0x2000, no data.
        derived(
            [
                68, 4, 0x04, 0xa0,                   // flags MSG, READ_NACK, CONNID
                0x02, 0x01, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,
                1, 2, 3, 4,
                32, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,              // connid
            ],
            LongctsRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                options: ReqOptions { flags: ReqFlags::READ_NACK, ..connid() },
                ..LongctsRtm::default()
            },
            b"",
        ),
        derived(
            [
                69, 4, 0x0c, 0x00,
                0x02, 0x01, 0, 0,                    // msg_id
                0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                1, 2, 3, 4,                          // send_id
                32, 0, 0, 0,                         // credit_request
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // tag
                b'f', b'i', b'r', b's', b't',
            ],
            LongctsRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                tag: TAG,
                delivery_complete: false,
                options: none(),
            },
            b"first",
        ),
        derived(
            [
                137, 4, 0x04, 0x00,
                0x02, 0x01, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,
                1, 2, 3, 4,
                32, 0, 0, 0,
                b'f', b'i', b'r', b's', b't',
            ],
            LongctsRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                delivery_complete: true,
                ..LongctsRtm::default()
            },
            b"first",
        ),
        derived(
            [
                138, 4, 0x0c, 0x00,
                0x02, 0x01, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,
                1, 2, 3, 4,
                32, 0, 0, 0,
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
                b'f', b'i', b'r', b's', b't',
            ],
            LongctsRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                tag: TAG,
                delivery_complete: true,
                options: none(),
            },
            b"first",
        ),
        derived(
            [
                128, 4, 0x04, 0x80,
                0x02, 0x01, 0, 0,                    // msg_id
                0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                1, 2, 3, 4,                          // send_id
                1, 0, 0, 0,                          // read_iov_count
                0x78, 0x56, 0x34, 0x12,              // connid
                0x00, 0x00, 0xad, 0xde, 0x00, 0x7f, 0, 0, // read_iov[0].addr
                0, 0, 0x10, 0, 0, 0, 0, 0,           // len
                0xcd, 0xab, 0x34, 0x12, 0, 0, 0, 0,  // key
            ],
            LongreadRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                tag: None,
                read_iov: READ_IOV,
                options: connid(),
            },
            b"",
        ),
        derived(
            [
                129, 4, 0x0c, 0x00,
                0x02, 0x01, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,
                1, 2, 3, 4,
                1, 0, 0, 0,
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // tag
                0x00, 0x00, 0xad, 0xde, 0x00, 0x7f, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,
                0xcd, 0xab, 0x34, 0x12, 0, 0, 0, 0,
            ],
            LongreadRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                tag: TAG,
                read_iov: READ_IOV,
                options: none(),
            },
            b"",
        ),
        derived(
            [
                145, 4, 0x04, 0x80,
                0x02, 0x01, 0, 0,                    // msg_id
                0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                1, 2, 3, 4,                          // send_id
                1, 0, 0, 0,                          // read_iov_count
                0, 0x20, 0, 0, 0, 0, 0, 0,           // seg_offset
                0, 0xb0, 0x04, 0, 0, 0, 0, 0,        // runt_length: of all packets together
                0x78, 0x56, 0x34, 0x12,              // connid
                0x00, 0x00, 0xad, 0xde, 0x00, 0x7f, 0, 0, // read_iov[0]: the whole buffer
                0, 0, 0x10, 0, 0, 0, 0, 0,
                0xcd, 0xab, 0x34, 0x12, 0, 0, 0, 0,
                b'r', b'u', b'n', b't',
            ],
            RuntreadRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                seg_offset: 0x2000,
                runt_length: 307_200,
                tag: None,
                read_iov: READ_IOV,
                options: connid(),
            },
            b"runt",
        ),
        derived(
            [
                146, 4, 0x0c, 0x00,
                0x02, 0x01, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,
                1, 2, 3, 4,
                1, 0, 0, 0,
                0, 0x20, 0, 0, 0, 0, 0, 0,
                0, 0xb0, 0x04, 0, 0, 0, 0, 0,
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // tag
                0x00, 0x00, 0xad, 0xde, 0x00, 0x7f, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,
                0xcd, 0xab, 0x34, 0x12, 0, 0, 0, 0,
                b'r', b'u', b'n', b't',
            ],
            RuntreadRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                seg_offset: 0x2000,
                runt_length: 307_200,
                tag: TAG,
                read_iov: READ_IOV,
                options: none(),
            },
            b"runt",
        ),
        derived(
            [
                142, 4, 0x04, 0x00,
                0x02, 0x01, 0, 0,                    // msg_id
                0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                1, 2, 3, 4,                          // send_id
                32, 0, 0, 0,                         // credit_request
                0, 0x20, 0, 0, 0, 0, 0, 0,           // seg_offset
                0, 0xb0, 0x04, 0, 0, 0, 0, 0,        // runt_length
                b'r', b'u', b'n', b't',
            ],
            RuntctsRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                seg_offset: 0x2000,
                runt_length: 307_200,
                tag: None,
                options: none(),
            },
            b"runt",
        ),
        derived(
            [
                143, 4, 0x0c, 0x00,
                0x02, 0x01, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,
                1, 2, 3, 4,
                32, 0, 0, 0,
                0, 0x20, 0, 0, 0, 0, 0, 0,
                0, 0xb0, 0x04, 0, 0, 0, 0, 0,
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // tag
                b'r', b'u', b'n', b't',
            ],
            RuntctsRtm {
                msg_id: MSG_ID,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                seg_offset: 0x2000,
                runt_length: 307_200,
                tag: TAG,
                options: none(),
            },
            b"runt",
        ),
    ]
}
