//! Formats that stock libfabric defines and no release has ever sent: tables only. Its receivers
//! refuse them, and so does [`Packet::parse`](crate::Packet::parse).

use crate::codec::prelude::*;

// The spec does not describe it.
packet_format! {
    table RuntctsRtm, stock("1.16.0") => data;
    pub msg_id: MsgId, "place of the message in the sequence from this sender";
    pub msg_length: u64, "length of the whole message";
    pub send_id: SendId, "operation of the sender, for CTS";
    pub credit_request: u32, "data packets that the sender would like to send";
    pub seg_offset: u64, "where the data belongs, from the start of the message or write";
    pub runt_length: u64, "bytes that are sent in packets of this type, in all of them together";
    pub tag: Option<u64>, { when: TAGGED, kind: HEX } "tag";
    pub options: ReqOptions, "optional headers";
}

// The spec does not describe it.
packet_format! {
    table RuntctsRtw, stock("1.16.0") => data;
    wire rma_iov_count: Count = rma_iov, { array: Some(Array::RmaIov) }
        "number of rma_iov entries, at most 4";
    pub msg_length: u64, "length of the whole write";
    pub send_id: SendId, "operation of the sender, for CTS";
    pub credit_request: u32, "data packets that the sender would like to send";
    pub seg_offset: u64, "where the data belongs, from the start of the message or write";
    pub runt_length: u64, "bytes that are sent in packets of this type, in all of them together";
    pub rma_iov: RmaIovs, { array: Some(Array::RmaIov) } "the target's memory";
    pub options: ReqOptions, "optional headers";
}

// The spec does not describe it. read_iov is placed as in RUNTREAD_MSGRTM.
packet_format! {
    table RuntreadRtw, stock("1.16.0") => data;
    wire rma_iov_count: Count = rma_iov, { array: Some(Array::RmaIov) }
        "number of rma_iov entries, at most 4";
    pub msg_length: u64, "length of the whole write";
    pub send_id: SendId, "operation of the sender, for EOR or READ_NACK";
    wire read_iov_count: Count = read_iov, { array: Some(Array::ReadIov) }
        "number of read_iov entries, at most 4";
    pub seg_offset: u64, "where the data belongs, from the start of the message or write";
    pub runt_length: u64, "bytes that are sent in packets of this type, in all of them together";
    pub rma_iov: RmaIovs, { array: Some(Array::RmaIov) } "the target's memory";
    pub options: ReqOptions, "optional headers";
    pub read_iov: RmaIovs, { array: Some(Array::ReadIov) } "the requester's buffer";
}

// Stock libfabric gives it the base header as its mandatory header. The spec reserves the code.
packet_format! {
    table ReadRtr, section("1.3") => end;
    pub options: ReqOptions, "optional headers";
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    literals! {
        runtcts_msgrtm RuntctsMsgRtm {
            table_literal(
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
                &[
                    ("msg_id", 0x102),
                    ("msg_length", 0x10_0000),
                    ("send_id", 0x0403_0201),
                    ("credit_request", 32),
                    ("seg_offset", 0x2000),
                    ("runt_length", 307_200),
                ],
                b"runt",
            ),
        }
        runtcts_tagrtm RuntctsTagRtm {
            table_literal(
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
                &[
                    ("msg_id", 0x102),
                    ("msg_length", 0x10_0000),
                    ("send_id", 0x0403_0201),
                    ("credit_request", 32),
                    ("seg_offset", 0x2000),
                    ("runt_length", 307_200),
                    ("tag", 0x8877_6655_4433_2211),
                ],
                b"runt",
            ),
        }
        runtcts_rtw RuntctsRtw {
            table_literal(
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
                &[
                    ("rma_iov_count", 1),
                    ("msg_length", 0x10_0000),
                    ("send_id", 0x0403_0201),
                    ("credit_request", 32),
                    ("seg_offset", 0x2000),
                    ("runt_length", 307_200),
                    ("rma_iov.addr", 0x2000),
                    ("rma_iov.len", 5),
                    ("rma_iov.key", 0x77),
                    ("connid", 0x1234_5678),
                ],
                b"runt",
            ),
        }
        runtread_rtw RuntreadRtw {
            table_literal(
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
                &[
                    ("rma_iov_count", 1),
                    ("msg_length", 0x10_0000),
                    ("send_id", 0x0403_0201),
                    ("read_iov_count", 1),
                    ("seg_offset", 0x2000),
                    ("runt_length", 307_200),
                    ("rma_iov.addr", 0x2000),
                    ("rma_iov.len", 5),
                    ("rma_iov.key", 0x77),
                    ("connid", 0x1234_5678),
                    ("read_iov.addr", 0x4000),
                    ("read_iov.len", 5),
                    ("read_iov.key", 0x79),
                ],
                b"runt",
            ),
        }
        read_rtr ReadRtr {
            table_literal(
                [
                    131, 4, 0x00, 0x80,
                    0x78, 0x56, 0x34, 0x12,              // connid, right behind the base header
                ],
                &[
                    ("connid", 0x1234_5678),
                ],
                b"",
            ),
        }
    }
}
