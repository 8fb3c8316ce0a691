//! The long-CTS transfer: CTS and CTSDATA (spec section 3.2).

use crate::codec::prelude::*;

packet_format! {
    /// CTS: the receiver opens a window of a long-CTS transfer.
    Cts, table("3.2", "3.6") => end;
    pub connid: Option<Connid>, { when: FieldCondition::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
    pub send_id: SendId, "operation of the data's sender, from its request";
    pub recv_id: RecvId, "operation of the data's receiver, for CTSDATA";
    /// The peer sends exactly this many bytes.
    pub recv_length: u64, "bytes that the receiver is ready to receive";
    pub flags: CtsFlags, "Flags beyond CONNID_HDR.";
}

packet_format! {
    /// CTSDATA: a segment of a long-CTS transfer.
    ///
    /// Parsing refuses a packet whose data is not `seg_length` long. If it is longer, the header
    /// has a part that the receiver does not know (as the connid is for libfabric 1.11.0), and
    /// taking that for data would corrupt the message.
    CtsData, table("3.2", "3.7") => data = seg_length;
    pub recv_id: RecvId, "operation of the data's receiver, from CTS";
    pub seg_length: u64, "length of the data in this packet";
    pub seg_offset: u64, "where the data belongs, from the start of the message";
    pub connid: Option<Connid>, { when: FieldCondition::Flag(CONNID_HDR), pad: ("padding", 4) }
        "connection id of the sender";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    const CONNID: Option<Connid> = Some(Connid(0x1234_5678));

    literals! {
        cts Cts {
            literal(
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
            literal(
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
        }
        ctsdata CtsData {
            literal(
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
            literal(
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
        }
    }
}
