use efa_core::address::{Qkey, Qpn};
use efa_core::wire::{
    Connid, Cts, CtsFlags, EagerRtm, LongctsRtm, MsgId, RawAddressHeader, RecvId, Repr, ReqOptions,
    SendId,
};

use super::*;

fn address(host: u8, qpn: u16, qkey: u32) -> RawAddress {
    let mut gid = [0; 16];
    gid[15] = host;
    RawAddress {
        gid: Gid(gid),
        qpn: Qpn(qpn),
        qkey: Qkey(qkey),
    }
}

fn recorded_addresses() -> Vec<RawAddress> {
    vec![address(1, 10, 0x1111), address(2, 20, 0x2222)]
}

fn actual_addresses() -> Vec<RawAddress> {
    vec![address(3, 30, 0x3333), address(4, 40, 0x4444)]
}

fn bindings() -> Bindings {
    Bindings::new(recorded_addresses(), actual_addresses(), &[])
}

fn emit(repr: &impl Repr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 200];
    let length = repr.emit_packet(payload, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

fn eager(from: RawAddress, tag: u64) -> Vec<u8> {
    emit(
        &EagerRtm {
            msg_id: MsgId(3),
            tag: Some(tag),
            options: ReqOptions {
                raw_address: Some(RawAddressHeader::new(from)),
                ..ReqOptions::default()
            },
            ..EagerRtm::default()
        },
        b"payload",
    )
}

fn from_a(bytes: &[u8]) -> Recorded<'_> {
    Recorded {
        number: 7,
        sender: 0,
        receiver: 1,
        bytes,
    }
}

#[test]
fn another_address_in_the_same_place_is_the_same_packet() {
    let recorded = eager(recorded_addresses()[0], 0x1f);
    let actual = eager(actual_addresses()[0], 0x1f);
    assert_eq!(bindings().compare(from_a(&recorded), &actual), []);
    assert_eq!(bindings().translate(from_a(&recorded)), Ok(actual));
}

#[test]
fn hosts_that_number_their_queue_pairs_alike_are_told_apart() {
    let recorded = vec![address(1, 7, 0x1111), address(2, 7, 0x2222)];
    let actual = vec![address(3, 30, 0x3333), address(4, 40, 0x4444)];
    let mut bindings = Bindings::new(recorded.clone(), actual.clone(), &[]);
    let from_b = |bytes| Recorded {
        number: 1,
        sender: 1,
        receiver: 0,
        bytes,
    };
    let was = eager(recorded[1], 0);
    let is = eager(actual[1], 0);
    assert_eq!(bindings.compare(from_b(&was), &is), []);
    assert_eq!(bindings.translate(from_b(&was)), Ok(is));
}

#[test]
fn every_changed_byte_with_a_meaning_is_found_and_named() {
    let recorded = eager(recorded_addresses()[0], 0x1f);
    let actual = eager(actual_addresses()[0], 0x1f);
    for position in 0..recorded.len() {
        let mut changed = recorded.clone();
        changed[position] ^= 0x01;
        let mismatches = bindings().compare(from_a(&changed), &actual);
        let field = fields_of(&recorded)
            .unwrap()
            .find(|field| (field.offset..field.offset + field.bytes.len()).contains(&position));
        let field = field.unwrap();
        let rule = policy::standard(field.packet_type, field.descriptor);
        if rule == Rule::Ignored {
            assert_eq!(mismatches, [], "byte {position}");
            continue;
        }
        let text = mismatches
            .first()
            .unwrap_or_else(|| panic!("byte {position} of {field}"))
            .to_string();
        assert!(text.starts_with("packet 7 ("), "{text}");
        assert!(
            text.contains(&format!("`{}`", field.name())),
            "{text} / {field}"
        );
        assert!(text.contains("spec section"), "{text}");
        assert!(
            text.contains(": expected ") && text.contains(", actual "),
            "{text}"
        );
    }
}

#[test]
fn ids_are_bound_when_introduced_and_translated_when_referred_to() {
    let request = |send_id| {
        emit(
            &LongctsRtm {
                msg_id: MsgId(0),
                msg_length: 100_000,
                send_id: SendId(send_id),
                credit_request: 32,
                ..LongctsRtm::default()
            },
            b"",
        )
    };
    let cts = |connid, send_id, recv_id| {
        emit(
            &Cts {
                connid: Some(Connid(connid)),
                send_id: SendId(send_id),
                recv_id: RecvId(recv_id),
                recv_length: 1000,
                flags: CtsFlags::empty(),
            },
            b"",
        )
    };
    let mut bindings = bindings();
    let recorded_cts = cts(0x2222, 5, 9);
    let from_b = Recorded {
        number: 8,
        sender: 1,
        receiver: 0,
        bytes: &recorded_cts,
    };
    let unbound = bindings.translate(from_b).unwrap_err();
    assert_eq!((unbound.field.as_str(), unbound.value), ("send_id", 5));

    assert_eq!(bindings.compare(from_a(&request(5)), &request(77)), []);
    assert_eq!(bindings.translate(from_b), Ok(cts(0x4444, 77, 9)));
}

#[test]
fn an_answer_must_name_what_the_scripted_peer_introduced() {
    let cts = |send_id, recv_id| {
        emit(
            &Cts {
                connid: None,
                send_id: SendId(send_id),
                recv_id: RecvId(recv_id),
                recv_length: 1000,
                flags: CtsFlags::empty(),
            },
            b"",
        )
    };
    // Under test is the receiver: its own recv_id is free, the peer's send_id is not.
    let mut bindings = bindings();
    let recorded = cts(5, 9);
    let from_b = Recorded {
        number: 8,
        sender: 1,
        receiver: 0,
        bytes: &recorded,
    };
    assert_eq!(bindings.compare(from_b, &cts(5, 1234)), []);
    let mismatches = bindings.compare(from_b, &cts(6, 1234));
    assert_eq!(mismatches.len(), 1);
    assert_eq!(
        mismatches[0].to_string(),
        "packet 8 (CTS), field `send_id` (spec section 3.2, table 3.6): expected 5, as the peer \
         introduced it, actual 6"
    );
}

#[test]
fn another_type_is_one_difference_and_not_fifty() {
    let recorded = eager(recorded_addresses()[0], 0x1f);
    let mut actual = eager(actual_addresses()[0], 0x1f);
    actual[0] = 64;
    let mismatches = bindings().compare(from_a(&recorded), &actual);
    assert_eq!(mismatches.len(), 1);
    assert_eq!(
        mismatches[0].to_string(),
        "packet 7 (EAGER_TAGRTM), field `type` (spec section 1.3, table 1.3): expected 65 \
         (EAGER_TAGRTM), actual 64 (EAGER_MSGRTM)"
    );
}
