//! Data that answers a request: READRSP and ATOMRSP (spec section 3.3).

use crate::codec::prelude::*;

packet_format! {
    /// READRSP: the data, or the first data, of an emulated read.
    ///
    /// The spec puts send_id before recv_id; every stock libfabric does the opposite, and so does
    /// this. Parsing refuses a packet whose data is not `seg_length` long.
    ReadRsp, table("3.3", "3.11") => data = seg_length;
    pub connid: Option<Connid>, { when: FieldCondition::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
    pub recv_id: RecvId, "operation of the requester, from RTR (the table swaps the two ids)";
    pub send_id: SendId, "operation of the responder, for CTS (the table swaps the two ids)";
    pub seg_length: u64, "length of the data in this packet (recv_length in the table)";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

packet_format! {
    /// ATOMRSP: the old values of a fetching atomic.
    ///
    /// Parsing refuses a packet whose data is not `seg_length` long.
    AtomRsp, table("3.3", "3.15") => data = seg_length;
    pub connid: Option<Connid>, { when: FieldCondition::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
    // libfabric 1.11.0 has the responder's operation here.
    wire reserved: Reserved, "without meaning; senders may leave anything in it";
    pub recv_id: RecvId, "operation of the requester, from RTA";
    pub seg_length: u64, "length of the data in this packet";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    const CONNID: Option<Connid> = Some(Connid(0x1234_5678));

    literals! {
        readrsp ReadRsp {
            literal(
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
        }
        atomrsp AtomRsp {
            literal(
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
        }
    }
}
