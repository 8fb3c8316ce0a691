//! Refused packets, and the errors.

use efa_wire::fields::forms;
use efa_wire::{EagerRtm, EagerRtw, Eor, Handshake, MsgId, Packet, PacketType, PeerError, Repr};

fn refusal(packet: &[u8]) -> String {
    Packet::parse(packet).expect_err("refused").to_string()
}

#[test]
fn an_empty_packet() {
    assert_eq!(
        refusal(&[]),
        "packet: field type at byte 0: needs 1 byte, but 0 are left (spec section 1.3, table 1.2)"
    );
}

#[test]
fn less_than_a_base_header() {
    assert_eq!(
        refusal(&[65, 4, 0]),
        "EAGER_TAGRTM: field flags at byte 2: needs 2 bytes, but 1 is left \
         (spec section 1.3, table 1.3)"
    );
    // The type is checked before the length.
    assert_eq!(
        refusal(&[200]),
        "packet: field type at byte 0: type id 200 is not assigned (spec section 1.3, table 1.2)"
    );
}

#[test]
fn types_that_must_not_be_on_the_wire() {
    assert_eq!(
        refusal(&[132, 4, 0, 0]),
        "packet: field type at byte 0: type id 132 is not assigned (spec section 1.3, table 1.2)"
    );
    assert_eq!(
        refusal(&[1, 4, 0, 0]),
        "RTS: field type at byte 0: type id 1 is a leftover of protocol v3 and must not be sent any \
         more (spec section 1.3, table 1.2)"
    );
    assert_eq!(
        refusal(&[6, 4, 0, 0]),
        "RMA_CONTEXT: field type at byte 0: type id 6 is for local records of libfabric and must \
         never be on the wire (spec section 1.3, table 1.2)"
    );
}

#[test]
fn another_version() {
    assert_eq!(
        refusal(&[64, 3, 0, 0, 0, 0, 0, 0]),
        "EAGER_MSGRTM: field version at byte 1: version 3 is not supported, only 4 \
         (spec section 1.3, table 1.3)"
    );
}

#[test]
fn a_cut_field() {
    let packet = EagerRtm {
        msg_id: MsgId(1),
        tag: Some(2),
        ..EagerRtm::default()
    }
    .to_packet(&[]);
    assert_eq!(
        refusal(&packet[..11]),
        "EAGER_TAGRTM: field tag at byte 8: needs 8 bytes, but 3 are left \
         (spec section 3.2, table 3.3)"
    );
}

#[test]
fn more_iovs_than_a_receiver_can_take() {
    let mut packet = EagerRtw::default().to_packet(&[0; 24 * 5]);
    packet[4] = 5;
    assert_eq!(
        refusal(&packet),
        "EAGER_RTW: field rma_iov_count at byte 4: 5 entries, but at most 4 are allowed \
         (spec section 3.3, table 3.8)"
    );
    packet[4..8].fill(0xff);
    assert!(refusal(&packet).contains("4294967295 entries"));
}

#[test]
fn raw_addresses_too_short_or_beyond_the_packet() {
    let mut packet = vec![64, 4, 0x01, 0, 0, 0, 0, 0];
    packet.extend(31_u32.to_le_bytes());
    packet.extend([0; 60]);
    assert_eq!(
        refusal(&packet),
        "EAGER_MSGRTM: field raw_addr.size at byte 8: 31 bytes, but a raw address has at least 32 \
         (spec section 3.1, table 3.2)"
    );
    packet[8..12].copy_from_slice(&61_u32.to_le_bytes());
    assert_eq!(
        refusal(&packet),
        "EAGER_MSGRTM: field raw_addr.surplus at byte 44: needs 29 bytes, but 28 are left \
         (spec section 3.1, table 3.2)"
    );
    packet[8..12].fill(0xff);
    assert!(refusal(&packet).contains("needs 4294967263 bytes"));
    for size in 32..=60_u32 {
        packet[8..12].copy_from_slice(&size.to_le_bytes());
        let parsed = Packet::parse(&packet).expect("any size from 32 on");
        assert_eq!(parsed.payload.length, 60 - size as usize);
    }
}

#[test]
fn handshakes_with_impossible_counts() {
    let mut packet = Handshake::default().to_packet(&[]);
    packet[4] = 2;
    assert_eq!(
        refusal(&packet),
        "HANDSHAKE: field nextra_p3 at byte 4: 2, but it counts the capability words plus 3 and so \
         is at least 3 (spec section 2.1, table 2.2)"
    );
    packet[4] = 4;
    assert_eq!(
        refusal(&packet),
        "HANDSHAKE: field extra_info at byte 8: needs 8 bytes, but 0 are left \
         (spec section 2.1, table 2.2)"
    );
    packet[4..8].fill(0xff);
    assert!(refusal(&packet).contains("4294967292 entries, but at most 65535"));
}

#[test]
fn data_of_another_length_than_stated() {
    let mut packet = vec![4, 4, 0, 0];
    packet.extend(9_u32.to_le_bytes());
    packet.extend(3_u64.to_le_bytes());
    packet.extend(0_u64.to_le_bytes());
    packet.extend(b"data");
    assert_eq!(
        refusal(&packet),
        "CTSDATA: field seg_length at byte 8: states 3 bytes of data, but 4 follow the headers \
         (spec section 3.2, table 3.7)"
    );
    packet.truncate(packet.len() - 1);
    assert_eq!(Packet::parse(&packet).unwrap().payload.of(&packet), b"dat");
}

/// The forms of development states of libfabric are recognised by their length, and refused like
/// any other.
#[test]
fn a_peer_error_of_another_length() {
    let whole = PeerError::default().to_packet(&[]);
    assert_eq!(whole.len(), 24);
    let forms: Vec<_> = forms(PacketType::PeerError)
        .iter()
        .map(|(length, _)| *length)
        .collect();
    assert_eq!(forms, [20, 28]);
    for length in 4..=64 {
        let mut packet = whole.clone();
        packet.resize(length, 0xff);
        let parsed = Packet::parse(&packet);
        assert_eq!(parsed.is_ok(), length == 24, "{length} bytes");
        if length > 24 || forms.contains(&length) {
            let expected = format!(
                "PEER_ERROR: field type at byte 0: {length} bytes, but packets of the type have 24 \
                 (not in the spec, stock libfabric since 2.7.0)"
            );
            assert_eq!(refusal(&packet), expected);
        } else if length < 24 {
            assert!(refusal(&packet).contains("needs 4 bytes"));
        }
    }
}

#[test]
fn an_eor_without_its_connid() {
    let packet = Eor::default().to_packet(&[]);
    let mut short = packet[..12].to_vec();
    assert_eq!(
        Packet::parse(&short).map(|packet| packet.header),
        Ok(Eor::default().into()),
        "libfabric 1.11.0 sends 12 bytes"
    );
    short[3] = 0x80;
    assert_eq!(
        refusal(&short),
        "EOR: field connid at byte 12: needs 4 bytes, but 0 are left (spec section 4.1, table 4.2)"
    );
    assert_eq!(PacketType::peek(&short), Some(PacketType::Eor));
}
