//! Requests To Write.

use efa_core::wire::{
    Connid, EagerRtw, LongctsRtw, LongreadRtw, ReqOptions, RmaIov, RmaIovs, RuntctsRtw,
    RuntreadRtw, SendId,
};

use super::{Literal, STOCK_ADDRESS, derived};

const SEND_ID: SendId = SendId(0x0403_0201);
const TARGET: RmaIovs = RmaIovs::new(&[RmaIov::new(0x2000, 5, 0x77)]).unwrap();
const TWO_TARGETS: RmaIovs =
    RmaIovs::new(&[RmaIov::new(0x2000, 2, 0x77), RmaIov::new(0x3000, 3, 0x78)]).unwrap();
const SOURCE: RmaIovs = RmaIovs::new(&[RmaIov::new(0x4000, 5, 0x79)]).unwrap();

fn connid() -> ReqOptions {
    ReqOptions {
        connid: Some(Connid(0x1234_5678)),
        ..ReqOptions::default()
    }
}

#[rustfmt::skip]
pub(crate) fn literals() -> Vec<Literal> {
    vec![
        // What libfabric 1.13.0 and later sends to make a peer answer with HANDSHAKE: 48 bytes.
        derived(
            [
                70, 4, 0x01, 0x00,                   // flags RAW_ADDR
                0, 0, 0, 0,                          // rma_iov_count
                36, 0, 0, 0,                         // raw_addr.size
                0xfe, 0x80, 0, 0, 0, 0, 0, 0,
                0x04, 0x2a, 0xff, 0xfe, 0x11, 0x22, 0x33, 0x44,
                0x07, 0x01, 0, 0,
                0xf0, 0x0f, 0xa5, 0x5a,
                0, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0,
            ],
            EagerRtw {
                options: ReqOptions { raw_address: Some(STOCK_ADDRESS), ..ReqOptions::default() },
                ..EagerRtw::default()
            },
            b"",
        ),
        derived(
            [
                70, 4, 0x02, 0x80,                   // flags CQ_DATA, CONNID
                2, 0, 0, 0,                          // rma_iov_count
                0, 0x20, 0, 0, 0, 0, 0, 0,           // rma_iov[0].addr
                2, 0, 0, 0, 0, 0, 0, 0,              // len
                0x77, 0, 0, 0, 0, 0, 0, 0,           // key
                0, 0x30, 0, 0, 0, 0, 0, 0,           // rma_iov[1]
                3, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0, 0, 0, 0, 0, 0, 0,
                1, 2, 3, 4, 5, 6, 7, 8,              // cq_data
                0x78, 0x56, 0x34, 0x12,              // connid
                b'h', b'e', b'l', b'l', b'o',
            ],
            EagerRtw {
                rma_iov: TWO_TARGETS,
                receipt: None,
                options: ReqOptions { cq_data: Some(0x0807_0605_0403_0201), ..connid() },
            },
            b"hello",
        ),
        derived(
            [
                139, 4, 0x00, 0x80,
                1, 0, 0, 0,                          // rma_iov_count
                1, 2, 3, 4, 0, 0, 0, 0,              // send_id, padding
                0, 0x20, 0, 0, 0, 0, 0, 0,
                5, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,
                b'h', b'e', b'l', b'l', b'o',
            ],
            EagerRtw { rma_iov: TARGET, receipt: Some(SEND_ID), options: connid() },
            b"hello",
        ),
        derived(
            [
                71, 4, 0x00, 0x80,
                1, 0, 0, 0,                          // rma_iov_count
                0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                1, 2, 3, 4,                          // send_id
                32, 0, 0, 0,                         // credit_request
                0, 0x20, 0, 0, 0, 0, 0, 0,
                5, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,
                b'f', b'i', b'r', b's', b't',
            ],
            LongctsRtw {
                rma_iov: TARGET,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                delivery_complete: false,
                options: connid(),
            },
            b"first",
        ),
        derived(
            [
                140, 4, 0x00, 0x80,
                1, 0, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,
                1, 2, 3, 4,
                32, 0, 0, 0,
                0, 0x20, 0, 0, 0, 0, 0, 0,
                5, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,
                b'f', b'i', b'r', b's', b't',
            ],
            LongctsRtw {
                rma_iov: TARGET,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                delivery_complete: true,
                options: connid(),
            },
            b"first",
        ),
        derived(
            [
                130, 4, 0x00, 0x80,
                1, 0, 0, 0,                          // rma_iov_count
                5, 0, 0, 0, 0, 0, 0, 0,              // msg_length
                1, 2, 3, 4,                          // send_id
                1, 0, 0, 0,                          // read_iov_count
                0, 0x20, 0, 0, 0, 0, 0, 0,           // rma_iov[0]
                5, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,              // connid
                0, 0x40, 0, 0, 0, 0, 0, 0,           // read_iov[0]
                5, 0, 0, 0, 0, 0, 0, 0,
                0x79, 0, 0, 0, 0, 0, 0, 0,
            ],
            LongreadRtw {
                rma_iov: TARGET,
                msg_length: 5,
                send_id: SEND_ID,
                read_iov: SOURCE,
                options: connid(),
            },
            b"",
        ),
        derived(
            [
                144, 4, 0x00, 0x80,
                1, 0, 0, 0,                          // rma_iov_count
                0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                1, 2, 3, 4,                          // send_id
                32, 0, 0, 0,                         // credit_request
                0, 0x20, 0, 0, 0, 0, 0, 0,           // seg_offset
                0, 0xb0, 0x04, 0, 0, 0, 0, 0,        // runt_length
                0, 0x20, 0, 0, 0, 0, 0, 0,           // rma_iov[0]
                5, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,              // connid
                b'r', b'u', b'n', b't',
            ],
            RuntctsRtw {
                rma_iov: TARGET,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                credit_request: 32,
                seg_offset: 0x2000,
                runt_length: 307_200,
                options: connid(),
            },
            b"runt",
        ),
        derived(
            [
                147, 4, 0x00, 0x80,
                1, 0, 0, 0,                          // rma_iov_count
                0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                1, 2, 3, 4,                          // send_id
                1, 0, 0, 0,                          // read_iov_count
                0, 0x20, 0, 0, 0, 0, 0, 0,           // seg_offset
                0, 0xb0, 0x04, 0, 0, 0, 0, 0,        // runt_length
                0, 0x20, 0, 0, 0, 0, 0, 0,           // rma_iov[0]
                5, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,              // connid
                0, 0x40, 0, 0, 0, 0, 0, 0,           // read_iov[0]
                5, 0, 0, 0, 0, 0, 0, 0,
                0x79, 0, 0, 0, 0, 0, 0, 0,
                b'r', b'u', b'n', b't',
            ],
            RuntreadRtw {
                rma_iov: TARGET,
                msg_length: 0x10_0000,
                send_id: SEND_ID,
                seg_offset: 0x2000,
                runt_length: 307_200,
                read_iov: SOURCE,
                options: connid(),
            },
            b"runt",
        ),
    ]
}
