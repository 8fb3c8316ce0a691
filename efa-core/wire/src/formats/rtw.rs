//! Requests To Write: emulated writes (spec sections 3.3, 4.1 and 4.2).

use crate::codec::prelude::*;

packet_format! {
    /// EAGER_RTW and DC_EAGER_RTW: a whole write in one packet.
    ///
    /// Stock libfabric sends it without iovs and payload to request a HANDSHAKE from a peer.
    EagerRtw, table("3.3", "3.8") => data;
    wire rma_iov_count: Count = rma_iov, { array: Some(Array::RmaIov) }
        "number of rma_iov entries, at most 4";
    /// Makes it the DC type.
    pub receipt: Option<SendId>,
        { name: "send_id", when: DELIVERY_COMPLETE, pad: ("padding", 4), source: section("4.2") }
        "operation of the sender, for RECEIPT";
    /// Stock receivers insist that the lengths add up to the payload.
    pub rma_iov: RmaIovs, { array: Some(Array::RmaIov) } "the target's memory";
    pub options: ReqOptions, "optional headers";
}

packet_format! {
    /// LONGCTS_RTW and DC_LONGCTS_RTW: the start of a write that is sent in windows granted by CTS.
    LongctsRtw, table("3.3", "3.9") => data;
    wire rma_iov_count: Count = rma_iov, { array: Some(Array::RmaIov) }
        "number of rma_iov entries, at most 4";
    pub msg_length: u64, "length of the whole write";
    pub send_id: SendId, "operation of the sender, for CTS";
    /// Stock receivers ignore it.
    pub credit_request: u32, "data packets that the sender would like to send";
    pub rma_iov: RmaIovs, { array: Some(Array::RmaIov) } "the target's memory";
    pub delivery_complete: bool, { when: DELIVERY_COMPLETE } "Whether it is the DC type.";
    pub options: ReqOptions, "optional headers";
}

packet_format! {
    /// LONGREAD_RTW: a write for which the responder reads the data by RDMA.
    LongreadRtw, table("4.1", "4.3") => end;
    wire rma_iov_count: Count = rma_iov, { array: Some(Array::RmaIov) }
        "number of rma_iov entries, at most 4";
    pub msg_length: u64, "length of the whole write";
    pub send_id: SendId, "operation of the sender, for EOR or READ_NACK";
    wire read_iov_count: Count = read_iov, { array: Some(Array::ReadIov) }
        "number of read_iov entries, at most 4";
    pub rma_iov: RmaIovs, { array: Some(Array::RmaIov) } "the target's memory";
    pub options: ReqOptions, "optional headers";
    pub read_iov: RmaIovs, { array: Some(Array::ReadIov) } "the requester's buffer";
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    const TARGET: RmaIovs = RmaIovs::new(&[RmaIov::new(0x2000, 5, 0x77)]).unwrap();
    const TWO_TARGETS: RmaIovs =
        RmaIovs::new(&[RmaIov::new(0x2000, 2, 0x77), RmaIov::new(0x3000, 3, 0x78)]).unwrap();
    const SOURCE: RmaIovs = RmaIovs::new(&[RmaIov::new(0x4000, 5, 0x79)]).unwrap();

    literals! {
        eager_rtw EagerRtw {
            // Libfabric 1.13.0 and later request a HANDSHAKE with this packet of 48 bytes.
            literal(
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
                    options: ReqOptions { raw_address: Some(STOCK_ADDRESS), ..none() },
                    ..EagerRtw::default()
                },
                b"",
            ),
            literal(
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
        }
        dc_eager_rtw DcEagerRtw {
            literal(
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
        }
        longcts_rtw LongctsRtw {
            literal(
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
        }
        dc_longcts_rtw DcLongctsRtw {
            literal(
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
        }
        longread_rtw LongreadRtw {
            literal(
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
        }
    }
}
