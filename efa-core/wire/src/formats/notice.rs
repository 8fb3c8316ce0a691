//! Notices about an operation, without data: EOR, READ_NACK, RECEIPT and PEER_ERROR.

use crate::codec::prelude::*;

packet_format! {
    /// EOR: the receiver has read everything by RDMA.
    ///
    /// libfabric 1.11.0 sends 12 bytes, without the last word. They are accepted if CONNID_HDR is
    /// not set; emitting always writes 16.
    Eor, table("4.1", "4.2") => end;
    pub send_id: SendId, "operation of the data's sender, from its request";
    pub recv_id: RecvId, "operation of the data's receiver";
    pub connid: Option<Connid>, { when: FieldCondition::FlagOrRoom(CONNID_HDR) }
        "connection id of the sender";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

packet_format! {
    /// READ_NACK: the receiver cannot read by RDMA.
    ReadNack, section("4.7") => end;
    pub send_id: SendId, "operation of the data's sender, from its request";
    pub recv_id: RecvId, "operation of the data's receiver";
    pub connid: Option<Connid>, { when: FieldCondition::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

packet_format! {
    /// RECEIPT: the data of a DC request has arrived in the application's memory.
    Receipt, section("4.2") => end;
    /// Stock libfabric calls it `tx_id` and reads no other field.
    pub send_id: SendId, "operation of the sender, from its request";
    pub msg_id: MsgId, "message, 0 for a write or an atomic";
    pub connid: Option<Connid>, { when: FieldCondition::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

packet_format! {
    /// PEER_ERROR: its sender has aborted its side of a message. The receiver of the packet decides
    /// how to end the other side.
    ///
    /// The spec does not describe it. The sizes and names of the fields come from tests of
    /// libfabric; their order comes from a development form of 28 bytes without `op_id_valid`,
    /// which is inferred. Packets of any other length are refused: development states before 2.7.0
    /// had [other forms](crate::fields::forms).
    PeerError, stock("2.7.0") => exact;
    pub msg_id: MsgId, "the message";
    /// [`PeerError::NO_OP`] if no id is known. Ids are used again, so it counts only if that
    /// operation is of the message `msg_id`.
    pub op_id: u32,
        "operation of the message at the receiver of this packet; 0x7fffffff if not known";
    pub emitter_ope_type: OpeType,
        "side of the message that sends this packet: 1 sends the data, 2 receives it";
    pub prov_errno: u32, { kind: Some(FieldKind::ProviderError) }
        "why: a device status, or from 4096 on a number of libfabric's own";
    pub connid: Option<Connid>, { when: FieldCondition::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
    pub flags: UniversalFlags, "Flags beyond CONNID_HDR.";
}

impl PeerError {
    /// The value of [`PeerError::op_id`] for an unknown id (`INT32_MAX`).
    pub const NO_OP: u32 = i32::MAX as u32;
}

// The form that libfabric sent from July 2026 until 2.7.0, with interruptions.
packet_format! {
    table PeerErrorByReference, development("of July and August 2026") => exact;
    pub op_id: u32, "what is abandoned, in the numbering that ref_kind says";
    pub ref_kind: u32,
        "what op_id is: 0 an operation of the receiver, 1 a message, 2 a message that never comes";
    pub prov_errno: u32, { kind: Some(FieldKind::ProviderError) }
        "why: a device status, or from 4096 on a number of libfabric's own";
    pub connid: Option<Connid>, { when: FieldCondition::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
}

packet_format! {
    table PeerErrorWithValidity, development("of August 2026") => exact;
    pub msg_id: MsgId, "the message";
    pub op_id: u32, "operation of the message at the receiver of this packet";
    pub op_id_valid: u32, "whether op_id is known";
    pub emitter_ope_type: OpeType, "which side of the message the sender of this packet is";
    pub prov_errno: u32, { kind: Some(FieldKind::ProviderError) }
        "why: a device status, or from 4096 on a number of libfabric's own";
    pub connid: Option<Connid>, { when: FieldCondition::FlagOrPadding(CONNID_HDR) }
        "connection id of the sender";
}

/// The forms of PEER_ERROR that development states of libfabric had and no release, by length.
pub(crate) const PEER_ERROR_FORMS: &[(usize, &[&Section])] = &[
    (20, PeerErrorByReference::SECTIONS),
    (28, PeerErrorWithValidity::SECTIONS),
];

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

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
                    0x2a, 0, 0, 0,               // msg_id
                    0xff, 0xff, 0xff, 0x7f,      // op_id
                    2, 0, 0, 0,                  // emitter_ope_type
                    7, 0, 0, 0,                  // prov_errno
                    0x78, 0x56, 0x34, 0x12,      // connid
                ],
                PeerError {
                    msg_id: MsgId(42),
                    op_id: PeerError::NO_OP,
                    emitter_ope_type: OpeType::RXE,
                    prov_errno: 7,
                    connid: CONNID,
                    flags: UniversalFlags::empty(),
                },
                b"",
            ),
            // Development states of libfabric.
            table_literal(
                [
                    12, 4, 0x00, 0x80,
                    0x2a, 0, 0, 0,               // op_id
                    2, 0, 0, 0,                  // ref_kind
                    7, 0, 0, 0,                  // prov_errno
                    0x78, 0x56, 0x34, 0x12,      // connid
                ],
                &[
                    ("op_id", 42),
                    ("ref_kind", 2),
                    ("prov_errno", 7),
                    ("connid", 0x1234_5678),
                ],
                b"",
            ),
            table_literal(
                [
                    12, 4, 0x00, 0x80,
                    0x2a, 0, 0, 0,               // msg_id
                    1, 2, 3, 4,                  // op_id
                    1, 0, 0, 0,                  // op_id_valid
                    2, 0, 0, 0,                  // emitter_ope_type
                    7, 0, 0, 0,                  // prov_errno
                    0x78, 0x56, 0x34, 0x12,      // connid
                ],
                &[
                    ("msg_id", 42),
                    ("op_id", 0x0403_0201),
                    ("op_id_valid", 1),
                    ("emitter_ope_type", 2),
                    ("prov_errno", 7),
                    ("connid", 0x1234_5678),
                ],
                b"",
            ),
        }
    }
}
