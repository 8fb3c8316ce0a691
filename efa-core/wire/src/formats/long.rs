//! Messages that are announced: long-CTS (spec section 3.2) and long-read (spec section 4.1).

use crate::codec::prelude::*;

packet_format! {
    /// LONGCTS_MSGRTM, LONGCTS_TAGRTM, DC_LONGCTS_MSGRTM and DC_LONGCTS_TAGRTM: the start of a
    /// message that is sent in windows granted by CTS.
    LongctsRtm, table("3.2", "3.5") => data;
    /// With [`ReqFlags::READ_NACK`] it is the id of the refused request.
    pub msg_id: MsgId, "place of the message in the sequence from this sender";
    pub msg_length: u64, "length of the whole message";
    pub send_id: SendId, "operation of the sender, for CTS";
    /// Stock receivers ignore it.
    pub credit_request: u32, "data packets that the sender would like to send";
    pub tag: Option<u64>, { when: TAGGED, kind: HEX } "tag";
    pub delivery_complete: bool, { when: DELIVERY_COMPLETE } "Whether it is a DC type.";
    pub options: ReqOptions, "optional headers";
}

packet_format! {
    /// LONGREAD_MSGRTM and LONGREAD_TAGRTM: a message that the receiver reads by RDMA.
    LongreadRtm, table("4.1", "4.1") => end;
    pub msg_id: MsgId, "place of the message in the sequence from this sender";
    pub msg_length: u64, "length of the whole message";
    pub send_id: SendId, "operation of the sender, for EOR or READ_NACK";
    wire read_iov_count: Count = read_iov, { array: Some(Array::ReadIov) }
        "number of read_iov entries, at most 4";
    pub tag: Option<u64>, { when: TAGGED, kind: HEX } "tag";
    pub options: ReqOptions, "optional headers";
    pub read_iov: RmaIovs, { array: Some(Array::ReadIov) } "the sender's buffer";
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    literals! {
        longcts_msgrtm LongctsMsgRtm {
            literal(
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
            literal(
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
        }
        longcts_tagrtm LongctsTagRtm {
            literal(
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
        }
        dc_longcts_msgrtm DcLongctsMsgRtm {
            literal(
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
        }
        dc_longcts_tagrtm DcLongctsTagRtm {
            literal(
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
        }
        longread_msgrtm LongreadMsgRtm {
            literal(
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
        }
        longread_tagrtm LongreadTagRtm {
            literal(
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
        }
    }
}
