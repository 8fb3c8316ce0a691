use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::rules::{self, Severity};
use efa_core::wire::fields::fields_of;
use efa_core::wire::{
    Connid, Cts, CtsFlags, EagerRtm, LongctsRtm, MsgId, OpeType, PeerError, RecvId, Repr,
    ReqOptions, SendId,
};

use super::bindings::FIRST_SCRIPTED_ID;
use super::policy::{IdKind, Rule};
use super::*;

fn address(host: u8, qpn: u16, qkey: u32) -> RawAddress {
    let mut gid = [0; 16];
    gid[15] = host;
    RawAddress::new(Gid(gid), Qpn(qpn), Qkey(qkey))
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

fn eager(from: RawAddress, tag: u64) -> Vec<u8> {
    EagerRtm {
        tag: Some(tag),
        ..EagerRtm::new(MsgId(3), ReqOptions::with_raw_address(from))
    }
    .to_packet(b"payload")
}

fn from_a(bytes: &[u8]) -> Recorded<'_> {
    Recorded {
        number: 7,
        sender: 0,
        receiver: 1,
        operation: Some(0),
        bytes,
    }
}

#[test]
fn packets_with_other_addresses_compare_equal() {
    let recorded = eager(recorded_addresses()[0], 0x1f);
    let actual = eager(actual_addresses()[0], 0x1f);
    assert_eq!(bindings().compare(from_a(&recorded), &actual), []);
    assert_eq!(bindings().translate(from_a(&recorded)), Ok(actual));
}

#[test]
fn hosts_with_equal_qpns_are_distinguished() {
    let recorded = vec![address(1, 7, 0x1111), address(2, 7, 0x2222)];
    let actual = vec![address(3, 30, 0x3333), address(4, 40, 0x4444)];
    let mut bindings = Bindings::new(recorded.clone(), actual.clone(), &[]);
    let from_b = |bytes| Recorded {
        number: 1,
        sender: 1,
        receiver: 0,
        operation: Some(0),
        bytes,
    };
    let was = eager(recorded[1], 0);
    let is = eager(actual[1], 0);
    assert_eq!(bindings.compare(from_b(&was), &is), []);
    assert_eq!(bindings.translate(from_b(&was)), Ok(is));
}

#[test]
fn changes_to_meaningful_bytes_are_named() {
    let recorded = eager(recorded_addresses()[0], 0x1f);
    let actual = eager(actual_addresses()[0], 0x1f);
    for position in 0..actual.len() {
        let mut changed = actual.clone();
        changed[position] ^= 0x01;
        let findings = bindings().compare(from_a(&recorded), &changed);
        let field = fields_of(&actual)
            .unwrap()
            .find(|field| field.range().contains(&position));
        let field = field.unwrap();
        match policy::standard(field.packet_type, field.descriptor) {
            Rule::Ignored => assert_eq!(findings, [], "byte {position}"),
            // Without a raw address header the message has other bytes.
            Rule::Masked(_) | Rule::AtLeast(_) | Rule::Segment => {}
            _ => {
                let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
                let name = format!("field `{}`", field.name());
                assert!(
                    texts.iter().any(|text| text.starts_with("packet 7 (")
                        && text.contains(&name)
                        && text.contains("spec section")
                        && text.contains("expected ")
                        && text.contains(", actual ")),
                    "byte {position} of {field}: {texts:?}"
                );
            }
        }
    }
}

#[test]
fn sender_choices_are_remarks_wrong_values_failures() {
    let request = |credit_request, msg_length| {
        LongctsRtm {
            msg_id: MsgId(0),
            msg_length,
            send_id: SendId(1),
            credit_request,
            ..LongctsRtm::default()
        }
        .to_packet(b"")
    };
    let compare = |actual: &[u8]| -> Vec<(Severity, String)> {
        let recorded = request(32, 100_000);
        let findings = bindings().compare(from_a(&recorded), actual);
        findings
            .into_iter()
            .map(|f| (f.severity, f.field))
            .collect()
    };
    assert_eq!(compare(&request(32, 100_000)), []);
    let remark = (Severity::Note, "credit_request".to_owned());
    assert_eq!(compare(&request(4, 100_000)), [remark]);
    let failure = (Severity::Error, "msg_length".to_owned());
    assert_eq!(compare(&request(32, 100_001)), [failure]);
}

#[test]
fn a_truncated_packet_is_a_failure() {
    let recorded = eager(recorded_addresses()[0], 0x1f);
    let actual = &eager(actual_addresses()[0], 0x1f)[..12];
    let findings = bindings().compare(from_a(&recorded), actual);
    assert!(!findings.is_empty());
    assert_eq!(findings[0].severity, Severity::Error);
}

#[test]
fn ids_are_bound_and_then_translated() {
    let request = |send_id| {
        LongctsRtm {
            msg_id: MsgId(0),
            msg_length: 100_000,
            send_id: SendId(send_id),
            credit_request: 32,
            ..LongctsRtm::default()
        }
        .to_packet(b"")
    };
    let cts = |connid, send_id, recv_id| {
        Cts {
            connid: Some(Connid(connid)),
            send_id: SendId(send_id),
            recv_id: RecvId(recv_id),
            recv_length: 1000,
            flags: CtsFlags::empty(),
        }
        .to_packet(b"")
    };
    let mut bindings = bindings();
    let recorded_cts = cts(0x2222, 5, 9);
    let from_b = Recorded {
        number: 8,
        sender: 1,
        receiver: 0,
        operation: Some(0),
        bytes: &recorded_cts,
    };
    let unbound = bindings.translate(from_b).unwrap_err();
    assert_eq!((unbound.field.as_str(), unbound.value), ("send_id", 5));

    assert_eq!(bindings.compare(from_a(&request(5)), &request(77)), []);
    // The scripted endpoint also chooses its own id, the same one for the same operation.
    let first = FIRST_SCRIPTED_ID as u32;
    assert_eq!(bindings.translate(from_b), Ok(cts(0x4444, 77, first)));
    assert_eq!(bindings.translate(from_b), Ok(cts(0x4444, 77, first)));
    let other = Recorded {
        operation: Some(1),
        ..from_b
    };
    assert!(bindings.translate(other).is_err());
    let kind = IdKind::Receive;
    assert_eq!(bindings.operation_of(1, kind, FIRST_SCRIPTED_ID), Some(0));
}

#[test]
fn answers_must_name_the_scripted_peers_operation() {
    let cts = |send_id, recv_id| {
        Cts {
            connid: None,
            send_id: SendId(send_id),
            recv_id: RecvId(recv_id),
            recv_length: 1000,
            flags: CtsFlags::empty(),
        }
        .to_packet(b"")
    };
    // The tested receiver may choose recv_id, but must return the peer's send_id.
    let mut bindings = bindings();
    let request = LongctsRtm {
        send_id: SendId(5),
        ..LongctsRtm::default()
    }
    .to_packet(b"");
    let introduced = bindings.translate(from_a(&request)).unwrap();
    let id = FIRST_SCRIPTED_ID as u32;
    assert_eq!(introduced[16..20], id.to_le_bytes());
    let recorded = cts(5, 9);
    let from_b = Recorded {
        number: 8,
        sender: 1,
        receiver: 0,
        operation: Some(0),
        bytes: &recorded,
    };
    assert_eq!(bindings.compare(from_b, &cts(id, 1234)), []);
    // The recorded id is wrong here.
    let findings = bindings.compare(from_b, &cts(5, 1234));
    assert_eq!(findings.len(), 1);
    assert_eq!(
        findings[0].to_string(),
        format!(
            "packet 8 (CTS), field `send_id` (spec section 3.2, table 3.6; \
             v4/3.2/answer-names-request): expected {id}, as the peer introduced it, actual 5"
        )
    );
}

/// It must refer to the peer's operation, or to none.
#[test]
fn peer_errors_must_name_their_subject() {
    let error = |op_id, side| {
        let packet = PeerError {
            op_id,
            emitter_ope_type: side,
            ..PeerError::default()
        };
        packet.to_packet(b"")
    };
    let mut bindings = bindings();
    let request = LongctsRtm {
        send_id: SendId(5),
        ..LongctsRtm::default()
    }
    .to_packet(b"");
    bindings.translate(from_a(&request)).unwrap();
    let id = FIRST_SCRIPTED_ID as u32;
    let mut compare = |recorded: &[u8], actual: &[u8]| -> Vec<&'static str> {
        let from_b = Recorded {
            number: 8,
            sender: 1,
            receiver: 0,
            operation: Some(0),
            bytes: recorded,
        };
        let findings = bindings.compare(from_b, actual);
        findings
            .iter()
            .filter_map(|found| Some(found.rule?.statement))
            .collect()
    };
    let wrong = [rules::ANSWER_NAMES_REQUEST.statement];
    let (receiver, sender, none) = (OpeType::RXE, OpeType::TXE, PeerError::NO_OP);
    for recorded in [5, none] {
        let recorded = error(recorded, receiver);
        assert_eq!(compare(&recorded, &error(id, receiver)), [""; 0]);
        assert_eq!(compare(&recorded, &error(none, receiver)), [""; 0]);
        assert_eq!(compare(&recorded, &error(5, receiver)), wrong);
    }
    // The peer has no receiving operation.
    let recorded = error(none, sender);
    assert_eq!(compare(&recorded, &error(none, sender)), [""; 0]);
    assert_eq!(compare(&recorded, &error(id, sender)), wrong);
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
        "packet 7 (EAGER_TAGRTM), field `type` (spec section 1.3, table 1.3; \
         v4/1.3/packet-form): expected 65 (EAGER_TAGRTM), actual 64 (EAGER_MSGRTM)"
    );
}
