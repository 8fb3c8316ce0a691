//! Eager messages (spec section 3.2).

use crate::codec::prelude::*;

packet_format! {
    /// EAGER_MSGRTM, EAGER_TAGRTM, DC_EAGER_MSGRTM and DC_EAGER_TAGRTM: a whole message in one
    /// packet.
    EagerRtm, table("3.2", "3.3") => data;
    pub msg_id: MsgId, "place of the message in the sequence from this sender";
    /// Makes it a DC type.
    pub receipt: Option<SendId>,
        { name: "send_id", when: DELIVERY_COMPLETE, pad: ("padding", 4), source: section("4.2") }
        "operation of the sender, for RECEIPT";
    pub tag: Option<u64>, { when: TAGGED, kind: HEX } "tag";
    pub options: ReqOptions, "optional headers";
}

impl EagerRtm {
    /// An untagged message without RECEIPT.
    #[inline]
    pub const fn new(msg_id: MsgId, options: ReqOptions) -> Self {
        EagerRtm {
            msg_id,
            receipt: None,
            tag: None,
            options,
        }
    }
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    literals! {
        eager_msgrtm EagerMsgRtm {
            literal(
                [
                    64, 4, 0x04, 0x00,                   // flags MSG
                    0x02, 0x01, 0, 0,                    // msg_id
                    b'h', b'e', b'l', b'l', b'o',
                ],
                EagerRtm { msg_id: MSG_ID, ..EagerRtm::default() },
                b"hello",
            ),
            // The first packet to a peer, as libfabric 1.13.0 and later sends it: 36 bytes of
            // address.
            literal(
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
            literal(
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
        }
        eager_tagrtm EagerTagRtm {
            literal(
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
            literal(
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
        }
        dc_eager_msgrtm DcEagerMsgRtm {
            literal(
                [
                    133, 4, 0x04, 0x00,
                    0x02, 0x01, 0, 0,                    // msg_id
                    1, 2, 3, 4, 0, 0, 0, 0,              // send_id, padding
                    b'd', b'c',
                ],
                EagerRtm { msg_id: MSG_ID, receipt: Some(SEND_ID), ..EagerRtm::default() },
                b"dc",
            ),
        }
        dc_eager_tagrtm DcEagerTagRtm {
            literal(
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
        }
    }
}
