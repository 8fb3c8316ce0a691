//! HANDSHAKE: an endpoint's capabilities (spec section 2.1).

use crate::address::Qkey;
use crate::codec::prelude::*;

const HOST_ID: u16 = HandshakeFlags::HOST_ID_HDR.bits();
const DEVICE_VERSION: u16 = HandshakeFlags::DEVICE_VERSION_HDR.bits();
const USER_RECV_QP: u16 = HandshakeFlags::USER_RECV_QP_HDR.bits();
const HMEM_P2P: u16 = HandshakeFlags::HMEM_P2P_HDR.bits();

packet_format! {
    /// HANDSHAKE: the capabilities of an endpoint.
    ///
    /// Each optional field takes 8 bytes, in this order, and no space if it is absent. Fields that
    /// a later version of the protocol appends are kept as the packet's payload.
    Handshake, table("2.1", "2.2") => end;
    wire nextra_p3: Count = extra_info, { array: Some(Array::ExtraInfo) }
        "number of extra_info words plus 3";
    pub extra_info: ExtraInfo, { array: Some(Array::ExtraInfo) } "the capabilities";
    pub connid: Option<Connid>, { when: FieldCondition::Flag(CONNID_HDR), pad: ("connid.padding", 4) }
        "connection id of the sender";
    pub host_id: Option<u64>, { when: FieldCondition::Flag(HOST_ID), kind: HEX } "identifies the sender's host";
    /// The spec calls it optional, but receivers of libfabric 1.20.0 and later read it without
    /// looking whether it is there: send it.
    pub device_version: Option<u32>,
        { when: FieldCondition::Flag(DEVICE_VERSION), kind: HEX, pad: ("device_version.reserved", 4) }
        "PCI part id of the sender's device";
    /// Stock libfabric 1.22.0 to 2.5.1; the spec does not describe it.
    pub user_recv_qp: Option<UserRecvQp>, { when: FieldCondition::Flag(USER_RECV_QP) }
        "a second queue pair that takes messages without headers";
    /// Since libfabric 2.7.0 and in patch releases of 2.6; the spec does not describe it.
    pub hmem_p2p: Option<u8>,
        { name: "hmem_p2p.p2p_supported", when: FieldCondition::Flag(HMEM_P2P), pad: ("hmem_p2p.reserved", 7),
          source: stock("2.7.0") }
        "1 if the sender's device reaches its accelerators' memory";
    pub flags: HandshakeFlags, "Flags beyond those that say which fields are present.";
}

fields! {
    /// The queue pair that [`Handshake::user_recv_qp`] names.
    UserRecvQp, stock("1.22.0");
    /// It has 32 bits in this field.
    pub qpn: u32, { name: "user_recv_qp.qpn", when: FieldCondition::Flag(USER_RECV_QP) }
        "number of the queue pair for headerless messages";
    pub qkey: Qkey, { name: "user_recv_qp.qkey", when: FieldCondition::Flag(USER_RECV_QP) } "its Q-key";
}

impl Part for Option<UserRecvQp> {
    const SHAPE: Shape = Shape::Sections(Lines::<UserRecvQp>::ALL);

    fn parse(_line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        match cursor.flags() & USER_RECV_QP {
            0 => Ok(None),
            _ => Fields::parse(cursor).map(Some),
        }
    }

    fn write(&self, _line: &Line, output: &mut impl Output) {
        if let Some(qp) = self {
            output.flags(USER_RECV_QP);
            Fields::write(qp, output);
        }
    }
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    const READ_ONLY: &[u64] = &[0x1];
    const OF_1_17: &[u64] = &[0x1b];
    const OF_2_1: &[u64] = &[0x1fb];
    const FROM_THE_FUTURE: &[u64] = &[0x3fb, 1 << 63];
    fn words(words: &[u64]) -> ExtraInfo {
        ExtraInfo::new(words).unwrap()
    }

    literals! {
        handshake_packet Handshake {
            // The form of 1.11.0: 16 bytes.
            literal(
                [
                    9, 4, 0x00, 0x00,
                    4, 0, 0, 0,                          // nextra_p3: one word
                    0x01, 0, 0, 0, 0, 0, 0, 0,           // extra_info[0]: RDMA read
                ],
                Handshake { extra_info: words(READ_ONLY), ..Handshake::default() },
                b"",
            ),
            // The form of 1.17.0: 24 bytes.
            literal(
                [
                    9, 4, 0x00, 0x80,                    // flags CONNID_HDR
                    4, 0, 0, 0,
                    0x1b, 0, 0, 0, 0, 0, 0, 0,           // RDMA read, DC, connid, runting read
                    0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0,  // connid, padding
                ],
                Handshake {
                    extra_info: words(OF_1_17),
                    connid: Some(Connid(0x1234_5678)),
                    ..Handshake::default()
                },
                b"",
            ),
            // The form of 2.1.0 with a host id and a second queue pair: 48 bytes.
            literal(
                [
                    9, 4, 0x07, 0x80,                    // flags CONNID, HOST_ID, DEVICE_VERSION, QP
                    4, 0, 0, 0,
                    0xfb, 0x01, 0, 0, 0, 0, 0, 0,
                    0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0,  // connid, padding
                    0x08, 0x07, 0x06, 0x05, 4, 3, 2, 1,  // host_id
                    0xa1, 0xef, 0, 0, 0, 0, 0, 0,        // device_version, reserved
                    0x02, 0x01, 0, 0,                    // user receive QP: QPN
                    0x44, 0x33, 0x22, 0x11,              // and Q-key
                ],
                Handshake {
                    extra_info: words(OF_2_1),
                    connid: Some(Connid(0x1234_5678)),
                    host_id: Some(0x0102_0304_0506_0708),
                    device_version: Some(0xefa1),
                    user_recv_qp: Some(UserRecvQp { qpn: 0x0102, qkey: Qkey(0x1122_3344) }),
                    ..Handshake::default()
                },
                b"",
            ),
            // The form of 2.6.0 without a host id: the later fields have lower offsets.
            literal(
                [
                    9, 4, 0x02, 0x80,
                    4, 0, 0, 0,
                    0xfb, 0x01, 0, 0, 0, 0, 0, 0,
                    0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0,  // connid, padding
                    0xa2, 0xef, 0, 0, 0, 0, 0, 0,        // device_version, reserved
                ],
                Handshake {
                    extra_info: words(OF_2_1),
                    connid: Some(Connid(0x1234_5678)),
                    device_version: Some(0xefa2),
                    ..Handshake::default()
                },
                b"",
            ),
            // A possible later form: two words, an unknown flag, an unknown field, which are all
            // kept.
            literal(
                [
                    9, 4, 0x1a, 0x00,
                    5, 0, 0, 0,                          // nextra_p3: two words
                    0xfb, 0x03, 0, 0, 0, 0, 0, 0,
                    0, 0, 0, 0, 0, 0, 0, 0x80,
                    0xa2, 0xef, 0, 0, 0, 0, 0, 0,        // device_version, reserved
                    1, 0, 0, 0, 0, 0, 0, 0,              // p2p_supported, reserved
                    b'u', b'n', b'k', b'n', b'o', b'w', b'n', b'!',
                ],
                Handshake {
                    extra_info: words(FROM_THE_FUTURE),
                    device_version: Some(0xefa2),
                    hmem_p2p: Some(1),
                    flags: HandshakeFlags::from_bits_retain(0x10),
                    ..Handshake::default()
                },
                b"unknown!",
            ),
        }
    }
    #[test]
    fn capability_bits_have_their_names() {
        assert_eq!(
            words(OF_1_17).features(),
            ExtraFeatures::RDMA_READ
                | ExtraFeatures::DELIVERY_COMPLETE
                | ExtraFeatures::CONNID_HEADER
                | ExtraFeatures::RUNTING_READ
        );
        assert!(words(FROM_THE_FUTURE).contains(127));
    }
}
