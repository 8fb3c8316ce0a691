//! Requests To Read and To Atomic.

use efa_core::wire::{
    AtomicDatatype, AtomicOp, Connid, MsgId, ReadRtr, RecvId, ReqOptions, RmaIov, RmaIovs, Rta,
    RtaKind, Rtr, RtrKind, SendId,
};

use super::{Literal, derived};

const RECV_ID: RecvId = RecvId(0x0d0c_0b0a);
const MSG_ID: MsgId = MsgId(0x0000_0102);
const TARGET: RmaIovs = RmaIovs::new(&[RmaIov::new(0x2000, 8, 0x77)]).unwrap();

fn connid() -> ReqOptions {
    ReqOptions {
        connid: Some(Connid(0x1234_5678)),
        ..ReqOptions::default()
    }
}

fn rta(kind: RtaKind, atomic_op: AtomicOp) -> Rta {
    Rta {
        kind,
        msg_id: MSG_ID,
        atomic_datatype: AtomicDatatype::UINT64,
        atomic_op,
        rma_iov: TARGET,
        options: connid(),
    }
}

#[rustfmt::skip]
pub(crate) fn literals() -> Vec<Literal> {
    vec![
        derived(
            [
                72, 4, 0x00, 0x80,
                1, 0, 0, 0,                          // rma_iov_count
                8, 0, 0, 0, 0, 0, 0, 0,              // msg_length
                0x0a, 0x0b, 0x0c, 0x0d,              // recv_id
                8, 0, 0, 0,                          // recv_length, unlike spec table 3.10
                0, 0x20, 0, 0, 0, 0, 0, 0,           // rma_iov[0]
                8, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,              // connid
            ],
            Rtr {
                kind: RtrKind::Short,
                rma_iov: TARGET,
                msg_length: 8,
                recv_id: RECV_ID,
                recv_length: 8,
                options: connid(),
            },
            b"",
        ),
        derived(
            [
                73, 4, 0x00, 0x80,
                1, 0, 0, 0,
                0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                0x0a, 0x0b, 0x0c, 0x0d,              // recv_id
                0, 0, 0x04, 0,                       // recv_length
                0, 0x20, 0, 0, 0, 0, 0, 0,
                8, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,
            ],
            Rtr {
                kind: RtrKind::Longcts,
                rma_iov: TARGET,
                msg_length: 0x10_0000,
                recv_id: RECV_ID,
                recv_length: 0x4_0000,
                options: connid(),
            },
            b"",
        ),
        derived(
            [
                131, 4, 0x00, 0x80,
                0x78, 0x56, 0x34, 0x12,              // connid, right behind the base header
            ],
            ReadRtr { options: connid() },
            b"",
        ),
        derived(
            [
                74, 4, 0x20, 0x80,                   // flags ATOMIC, CONNID
                0x02, 0x01, 0, 0,                    // msg_id
                1, 0, 0, 0,                          // rma_iov_count
                7, 0, 0, 0,                          // atomic_datatype
                2, 0, 0, 0,                          // atomic_op
                0, 0, 0, 0,                          // padding
                0, 0x20, 0, 0, 0, 0, 0, 0,
                8, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,
                1, 0, 0, 0, 0, 0, 0, 0,
            ],
            rta(RtaKind::Write, AtomicOp::SUM),
            &[1, 0, 0, 0, 0, 0, 0, 0],
        ),
        derived(
            [
                75, 4, 0x20, 0x80,
                0x02, 0x01, 0, 0,
                1, 0, 0, 0,
                7, 0, 0, 0,
                2, 0, 0, 0,
                0x0a, 0x0b, 0x0c, 0x0d,              // recv_id
                0, 0x20, 0, 0, 0, 0, 0, 0,
                8, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,
                1, 0, 0, 0, 0, 0, 0, 0,
            ],
            rta(RtaKind::Fetch(RECV_ID), AtomicOp::SUM),
            &[1, 0, 0, 0, 0, 0, 0, 0],
        ),
        derived(
            [
                76, 4, 0x20, 0x80,
                0x02, 0x01, 0, 0,
                1, 0, 0, 0,
                7, 0, 0, 0,
                12, 0, 0, 0,                         // atomic_op: CSWAP
                0x0a, 0x0b, 0x0c, 0x0d,              // recv_id
                0, 0x20, 0, 0, 0, 0, 0, 0,
                8, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,
                1, 0, 0, 0, 0, 0, 0, 0,              // operand
                2, 0, 0, 0, 0, 0, 0, 0,              // comparand
            ],
            rta(RtaKind::Compare(RECV_ID), AtomicOp::CSWAP),
            &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
        ),
        derived(
            [
                141, 4, 0x20, 0x80,
                0x02, 0x01, 0, 0,
                1, 0, 0, 0,
                7, 0, 0, 0,
                2, 0, 0, 0,
                1, 2, 3, 4,                          // send_id
                0, 0x20, 0, 0, 0, 0, 0, 0,
                8, 0, 0, 0, 0, 0, 0, 0,
                0x77, 0, 0, 0, 0, 0, 0, 0,
                0x78, 0x56, 0x34, 0x12,
                1, 0, 0, 0, 0, 0, 0, 0,
            ],
            rta(RtaKind::DcWrite(SendId(0x0403_0201)), AtomicOp::SUM),
            &[1, 0, 0, 0, 0, 0, 0, 0],
        ),
    ]
}
