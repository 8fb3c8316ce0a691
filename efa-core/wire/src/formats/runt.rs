//! Runting messages: a first part in packets, the rest announced (spec section 4.5).

use crate::codec::prelude::*;

packet_format! {
    /// RUNTREAD_MSGRTM and RUNTREAD_TAGRTM: a segment of the first part of a message whose rest the
    /// receiver reads by RDMA.
    RuntreadRtm, table("4.5", "4.4") => data;
    /// The same in all segments of a message.
    pub msg_id: MsgId, "place of the message in the sequence from this sender";
    pub msg_length: u64, "length of the whole message";
    pub send_id: SendId, "operation of the sender, for EOR or READ_NACK";
    wire read_iov_count: Count = read_iov, { array: Some(Array::ReadIov) }
        "number of read_iov entries, at most 4";
    pub seg_offset: u64, "where the data belongs, from the start of the message or write";
    /// The spec describes it as the length of this packet's data, but every stock libfabric sends
    /// the total in each packet.
    pub runt_length: u64,
        "bytes of the message that are sent in packets, in all of them together";
    pub tag: Option<u64>, { when: TAGGED, kind: HEX } "tag";
    pub options: ReqOptions, "optional headers";
    pub read_iov: RmaIovs, { array: Some(Array::ReadIov) }
        "the sender's whole buffer, also the part that is sent in packets";
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    literals! {
        runtread_msgrtm RuntreadMsgRtm {
            literal(
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
        }
        runtread_tagrtm RuntreadTagRtm {
            literal(
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
        }
    }
}
