//! Notices about an operation, without data: EOR, READ_NACK, RECEIPT and PEER_ERROR.

use crate::wire::codec::prelude::*;

packet_format! {
    /// EOR: the receiver has read everything by RDMA.
    ///
    /// libfabric 1.11.0 sends 12 bytes, without the last word. They are accepted if CONNID_HDR is not
    /// set; emitting always writes 16.
    Eor, table("4.1", "4.2") => end;
    pub send_id: SendId, "operation of the data's sender, from its request";
    pub recv_id: RecvId, "operation of the data's receiver";
    pub connid: Option<Connid>, { when: When::FlagOrRoom(CONNID_HDR) }
        "connection id of the sender";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

packet_format! {
    /// READ_NACK: the receiver cannot read by RDMA.
    ReadNack, section("4.7") => end;
    pub send_id: SendId, "operation of the data's sender, from its request";
    pub recv_id: RecvId, "operation of the data's receiver";
    pub connid: Option<Connid>, { when: When::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

packet_format! {
    /// RECEIPT: the data of a DC request is where the application wants it.
    Receipt, section("4.2") => end;
    /// Stock libfabric calls it `tx_id` and looks at nothing else.
    pub send_id: SendId, "operation of the sender, from its request";
    pub msg_id: MsgId, "message, 0 for a write or an atomic";
    pub connid: Option<Connid>, { when: When::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

packet_format! {
    /// PEER_ERROR: the sender abandons its half of an operation and asks the receiver to do the same.
    ///
    /// The spec does not describe it, and no release of libfabric up to 2.6.0 sends it. This is the layout
    /// on the development branch after 2.6.0, where it may still change.
    PeerError, stock("2.6.0 (development branch)") => end;
    /// In the numbering that `ref_kind` says.
    pub op_id: u32, "what is abandoned";
    pub ref_kind: PeerErrorRefKind, "what op_id is";
    /// Only for error messages.
    pub prov_errno: u32, { kind: Some(Kind::ProviderError) }
        "why: a device status, or from 4096 on a number of libfabric's own";
    pub connid: Option<Connid>, { when: When::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

#[cfg(test)]
pub(in crate::wire) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::wire::literal::prelude::*;

    const CONNID: Option<Connid> = Some(Connid(0x1234_5678));

    literals! {
        eor Eor {
            literal(
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
        }
        read_nack ReadNack {
            literal(
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
        }
        receipt Receipt {
            literal(
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
        }
        peer_error PeerError {
            literal(
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
        }
    }
}
