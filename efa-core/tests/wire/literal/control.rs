//! CTS, CTSDATA, READRSP, EOR, ATOMRSP, RECEIPT, READ_NACK, PEER_ERROR.

use efa_core::wire::{
    AtomRsp, Connid, Cts, CtsData, CtsFlags, Eor, MsgId, PeerError, PeerErrorRefKind, ReadNack,
    ReadRsp, Receipt, RecvId, SendId, UniversalFlags,
};

use super::{Literal, derived};

const CONNID: Option<Connid> = Some(Connid(0x1234_5678));

#[rustfmt::skip]
pub(crate) fn literals() -> Vec<Literal> {
    vec![
        derived(
            [
                3, 4, 0x00, 0x80,            // type, version, flags CONNID_HDR
                0x78, 0x56, 0x34, 0x12,      // connid
                0x01, 0x02, 0x03, 0x04,      // send_id
                0x0a, 0x0b, 0x0c, 0x0d,      // recv_id
                0x00, 0x00, 0x04, 0, 0, 0, 0, 0, // recv_length
            ],
            Cts {
                connid: CONNID,
                send_id: SendId(0x0403_0201),
                recv_id: RecvId(0x0d0c_0b0a),
                recv_length: 0x40000,
                flags: CtsFlags::empty(),
            },
            b"",
        ),
        derived(
            [
                3, 4, 0x80, 0x00,            // flags CTS_EMULATED_READ
                0, 0, 0, 0,                  // padding
                1, 0, 0, 0,                  // send_id
                2, 0, 0, 0,                  // recv_id
                3, 0, 0, 0, 0, 0, 0, 0,      // recv_length
            ],
            Cts {
                connid: None,
                send_id: SendId(1),
                recv_id: RecvId(2),
                recv_length: 3,
                flags: CtsFlags::EMULATED_READ,
            },
            b"",
        ),
        derived(
            [
                4, 4, 0x00, 0x00,            // no connid: 24 bytes
                0x0a, 0x0b, 0x0c, 0x0d,      // recv_id
                4, 0, 0, 0, 0, 0, 0, 0,      // seg_length
                0, 0x10, 0, 0, 1, 0, 0, 0,   // seg_offset
                b'd', b'a', b't', b'a',
            ],
            CtsData {
                recv_id: RecvId(0x0d0c_0b0a),
                seg_length: 4,
                seg_offset: 0x1_0000_1000,
                connid: None,
                flags: UniversalFlags::empty(),
            },
            b"data",
        ),
        derived(
            [
                4, 4, 0x00, 0x80,            // with connid: 32 bytes
                0x0a, 0x0b, 0x0c, 0x0d,      // recv_id
                2, 0, 0, 0, 0, 0, 0, 0,      // seg_length
                0, 0, 0, 0, 0, 0, 0, 0,      // seg_offset
                0x78, 0x56, 0x34, 0x12,      // connid
                0, 0, 0, 0,                  // padding
                b'h', b'i',
            ],
            CtsData {
                recv_id: RecvId(0x0d0c_0b0a),
                seg_length: 2,
                seg_offset: 0,
                connid: CONNID,
                flags: UniversalFlags::empty(),
            },
            b"hi",
        ),
        derived(
            [
                5, 4, 0x00, 0x80,
                0x78, 0x56, 0x34, 0x12,      // connid
                0x0a, 0x0b, 0x0c, 0x0d,      // recv_id, before send_id unlike spec table 3.11
                0x01, 0x02, 0x03, 0x04,      // send_id
                3, 0, 0, 0, 0, 0, 0, 0,      // seg_length
                1, 2, 3,
            ],
            ReadRsp {
                connid: CONNID,
                recv_id: RecvId(0x0d0c_0b0a),
                send_id: SendId(0x0403_0201),
                seg_length: 3,
                flags: UniversalFlags::empty(),
            },
            &[1, 2, 3],
        ),
        derived(
            [
                7, 4, 0x00, 0x80,
                0x01, 0x02, 0x03, 0x04,      // send_id
                0x0a, 0x0b, 0x0c, 0x0d,      // recv_id
                0x78, 0x56, 0x34, 0x12,      // connid
            ],
            Eor {
                send_id: SendId(0x0403_0201),
                recv_id: RecvId(0x0d0c_0b0a),
                connid: CONNID,
                flags: UniversalFlags::empty(),
            },
            b"",
        ),
        derived(
            [
                8, 4, 0x00, 0x80,
                0x78, 0x56, 0x34, 0x12,      // connid
                0, 0, 0, 0,                  // reserved
                0x0a, 0x0b, 0x0c, 0x0d,      // recv_id
                8, 0, 0, 0, 0, 0, 0, 0,      // seg_length
                9, 0, 0, 0, 0, 0, 0, 0x80,
            ],
            AtomRsp {
                connid: CONNID,
                recv_id: RecvId(0x0d0c_0b0a),
                seg_length: 8,
                flags: UniversalFlags::empty(),
            },
            &[9, 0, 0, 0, 0, 0, 0, 0x80],
        ),
        derived(
            [
                10, 4, 0x00, 0x80,
                0x01, 0x02, 0x03, 0x04,      // send_id (tx_id in libfabric)
                0xff, 0xff, 0xff, 0xff,      // msg_id
                0x78, 0x56, 0x34, 0x12,      // connid
            ],
            Receipt {
                send_id: SendId(0x0403_0201),
                msg_id: MsgId(u32::MAX),
                connid: CONNID,
                flags: UniversalFlags::empty(),
            },
            b"",
        ),
        derived(
            [
                11, 4, 0x00, 0x80,
                0x01, 0x02, 0x03, 0x04,      // send_id
                0x0a, 0x0b, 0x0c, 0x0d,      // recv_id
                0x78, 0x56, 0x34, 0x12,      // connid
            ],
            ReadNack {
                send_id: SendId(0x0403_0201),
                recv_id: RecvId(0x0d0c_0b0a),
                connid: CONNID,
                flags: UniversalFlags::empty(),
            },
            b"",
        ),
        derived(
            [
                12, 4, 0x00, 0x80,
                0x2a, 0, 0, 0,               // op_id
                2, 0, 0, 0,                  // ref_kind
                7, 0, 0, 0,                  // prov_errno
                0x78, 0x56, 0x34, 0x12,      // connid
            ],
            PeerError {
                op_id: 42,
                ref_kind: PeerErrorRefKind::MSG_ID_SKIP,
                prov_errno: 7,
                connid: CONNID,
                flags: UniversalFlags::empty(),
            },
            b"",
        ),
    ]
}
