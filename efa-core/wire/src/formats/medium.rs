//! Medium messages (spec section 3.2).

use crate::codec::prelude::*;

packet_format! {
    /// MEDIUM_MSGRTM, MEDIUM_TAGRTM, DC_MEDIUM_MSGRTM and DC_MEDIUM_TAGRTM: a segment of a message
    /// that is sent without flow control.
    MediumRtm, table("3.2", "3.4") => data;
    /// The same in all segments of a message.
    pub msg_id: MsgId, "place of the message in the sequence from this sender";
    /// Makes it a DC type.
    pub receipt: Option<SendId>,
        { name: "send_id", when: DELIVERY_COMPLETE, pad: ("padding", 4), source: section("4.2") }
        "operation of the sender, for RECEIPT";
    /// The spec describes it as the length of this segment, but every stock libfabric sends the
    /// length of the message.
    pub msg_length: u64,
        "length of the whole message (seg_length in the table, but stock sends the total)";
    pub seg_offset: u64, "where the data belongs, from the start of the message or write";
    pub tag: Option<u64>, { when: TAGGED, kind: HEX } "tag";
    pub options: ReqOptions, "optional headers";
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    literals! {
        medium_msgrtm MediumMsgRtm {
            literal(
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
        }
        medium_tagrtm MediumTagRtm {
            literal(
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
        }
        dc_medium_msgrtm DcMediumMsgRtm {
            literal(
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
        }
        dc_medium_tagrtm DcMediumTagRtm {
            literal(
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
        }
    }
}
