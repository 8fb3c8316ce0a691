use std::time::Duration;

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::wire::{
    AtomRsp, AtomicDatatype, AtomicOp, Connid, Cts, CtsData, CtsFlags, EagerRtm, EagerRtw, Eor,
    ExtraFeatures, Handshake, LongctsRtm, LongreadRtm, MediumRtm, MsgId, RawAddressHeader, ReadRsp,
    Receipt, RecvId, Repr, ReqOptions, RmaIov, RmaIovs, Rta, RtaKind, Rtr, RtrKind, RuntreadRtm,
    SendId, UniversalFlags,
};
use efa_emu::frame;

use super::*;

fn address(host: u8) -> RawAddress {
    let mut gid = [0; 16];
    gid[15] = host;
    RawAddress {
        gid: Gid(gid),
        qpn: Qpn(host.into()),
        qkey: Qkey(0x1000 + u32::from(host)),
    }
}

const A: u8 = 1;
const B: u8 = 2;

/// Builds captures packet by packet; every packet is seen at both ends unless said otherwise.
struct Builder {
    capture: Capture,
    sequence: u32,
}

impl Builder {
    fn new() -> Self {
        Builder {
            capture: Capture {
                path: "test.pcapng".into(),
                interfaces: vec!["a".into(), "b".into()],
                frames: Vec::new(),
                damage: Vec::new(),
            },
            sequence: 0,
        }
    }

    /// A conversation in which both handshakes have been exchanged: packets 1 to 6.
    fn acquainted(features: ExtraFeatures) -> Self {
        let mut builder = Builder::new();
        builder.send(A, B, &eager(0, Some(A), None), b"first");
        builder.send(B, A, &handshake(features, B), b"");
        builder.send(A, B, &handshake(features, A), b"");
        builder
    }

    fn send(&mut self, from: u8, to: u8, repr: &impl Repr, payload: &[u8]) {
        let mut bytes = vec![0; 9000];
        let length = repr.emit_packet(payload, &mut bytes).unwrap();
        bytes.truncate(length);
        self.send_bytes(from, to, bytes);
    }

    fn send_bytes(&mut self, from: u8, to: u8, payload: Vec<u8>) {
        for direction in [Direction::Outbound, Direction::Inbound] {
            let host = match direction {
                Direction::Outbound => from,
                Direction::Inbound => to,
            };
            let frames = &mut self.capture.frames;
            frames.push(CapturedPacket {
                number: frames.len() as u64 + 1,
                interface: usize::from(host) - 1,
                time: Duration::from_micros(frames.len() as u64),
                direction: Some(direction),
                comments: Vec::new(),
                source: address(from).gid,
                destination: address(to).gid,
                header: frame::Repr {
                    kind: Kind::Send,
                    source_qpn: address(from).qpn,
                    destination_qpn: address(to).qpn,
                    qkey: address(to).qkey,
                    sequence: self.sequence,
                    immediate: None,
                    retransmission: false,
                    path: 0,
                    payload_length: payload.len() as u32,
                    payload_captured: true,
                },
                headerless: false,
                payload: payload.clone(),
            });
        }
        self.sequence += 1;
    }

    /// The rules that are broken, and the packets at which that shows.
    fn broken(&self) -> Vec<(&'static str, u64)> {
        let checked = check(&self.capture);
        let broken = checked.violations.iter();
        broken.map(|v| (v.rule.id, v.packet)).collect()
    }
}

fn connid(host: u8) -> Option<Connid> {
    Some(Connid(address(host).qkey.0))
}

fn options(raw: Option<u8>, id: Option<u8>) -> ReqOptions {
    ReqOptions {
        raw_address: raw.map(|host| RawAddressHeader::new(address(host))),
        connid: id.and_then(connid),
        ..ReqOptions::default()
    }
}

fn eager(msg_id: u32, raw: Option<u8>, id: Option<u8>) -> EagerRtm {
    EagerRtm {
        msg_id: MsgId(msg_id),
        options: options(raw, id),
        ..EagerRtm::default()
    }
}

fn handshake(features: ExtraFeatures, host: u8) -> Handshake {
    Handshake {
        extra_info: features.into(),
        connid: connid(host),
        ..Handshake::default()
    }
}

fn cts(send_id: u32, recv_id: u32, recv_length: u64, host: u8) -> Cts {
    Cts {
        connid: connid(host),
        send_id: SendId(send_id),
        recv_id: RecvId(recv_id),
        recv_length,
        flags: CtsFlags::empty(),
    }
}

fn data(recv_id: u32, offset: u64, length: u64, host: u8) -> CtsData {
    CtsData {
        recv_id: RecvId(recv_id),
        seg_length: length,
        seg_offset: offset,
        connid: connid(host),
        flags: UniversalFlags::empty(),
    }
}

fn long_cts(msg_id: u32, length: u64, send_id: u32) -> LongctsRtm {
    LongctsRtm {
        msg_id: MsgId(msg_id),
        msg_length: length,
        send_id: SendId(send_id),
        credit_request: 32,
        options: options(None, Some(A)),
        ..LongctsRtm::default()
    }
}

fn all() -> ExtraFeatures {
    ExtraFeatures::all().difference(ExtraFeatures::CONSTANT_HEADER_LENGTH)
}

#[test]
fn an_orderly_conversation_breaks_no_rule() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(1, None, Some(A)), b"second");
    // A long message in two windows.
    b.send(A, B, &long_cts(2, 3000, 7), &[0; 1000]);
    b.send(B, A, &cts(7, 9, 1500, B), b"");
    b.send(A, B, &data(9, 1000, 1000, A), &[0; 1000]);
    b.send(A, B, &data(9, 2000, 500, A), &[0; 500]);
    b.send(B, A, &cts(7, 9, 500, B), b"");
    b.send(A, B, &data(9, 2500, 500, A), &[0; 500]);
    // A message that is read, and acknowledged.
    let iov = [RmaIov::new(0x1000, 5000, 1)];
    let read = LongreadRtm {
        msg_id: MsgId(3),
        msg_length: 5000,
        send_id: SendId(7),
        read_iov: RmaIovs::new(&iov).unwrap(),
        options: options(None, Some(A)),
        ..LongreadRtm::default()
    };
    b.send(A, B, &read, b"");
    let eor = Eor {
        send_id: SendId(7),
        recv_id: RecvId(10),
        connid: connid(B),
        flags: UniversalFlags::empty(),
    };
    b.send(B, A, &eor, b"");
    // A read, answered in two parts.
    let rtr = Rtr {
        kind: RtrKind::Longcts,
        rma_iov: RmaIovs::new(&iov).unwrap(),
        msg_length: 5000,
        recv_id: RecvId(20),
        recv_length: 5000,
        options: options(None, Some(A)),
    };
    b.send(A, B, &rtr, b"");
    let response = ReadRsp {
        connid: connid(B),
        recv_id: RecvId(20),
        send_id: SendId(21),
        seg_length: 4000,
        flags: UniversalFlags::empty(),
    };
    b.send(B, A, &response, &[0; 4000]);
    b.send(B, A, &data(20, 4000, 1000, B), &[0; 1000]);
    assert_eq!(b.broken(), []);
}

#[test]
fn segments_may_come_in_any_order_but_not_twice_and_not_outside() {
    let medium = |offset| MediumRtm {
        msg_id: MsgId(1),
        msg_length: 300,
        seg_offset: offset,
        options: options(None, Some(A)),
        ..MediumRtm::default()
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &medium(200), &[0; 100]);
    b.send(A, B, &medium(0), &[0; 100]);
    b.send(A, B, &medium(100), &[0; 100]);
    assert_eq!(b.broken(), []);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &medium(0), &[0; 100]);
    b.send(A, B, &medium(50), &[0; 100]);
    assert_eq!(b.broken(), [("segment-overlap", 9), ("message-whole", 9)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &medium(250), &[0; 100]);
    assert_eq!(b.broken(), [("segment-bounds", 7), ("message-whole", 7)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &medium(0), &[0; 100]);
    let other = MediumRtm {
        msg_length: 400,
        ..medium(100)
    };
    b.send(A, B, &other, &[0; 100]);
    assert_eq!(b.broken()[0], ("segment-agreement", 9));
}

#[test]
fn message_ids_are_unique_without_gaps_and_wrap() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(2, None, Some(A)), b"");
    b.send(A, B, &eager(1, None, Some(A)), b"");
    assert_eq!(b.broken(), []);
    b.send(A, B, &eager(1, None, Some(A)), b"");
    assert_eq!(b.broken(), [("msg-id-once", 11)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(3, None, Some(A)), b"");
    assert_eq!(b.broken(), [("msg-id-gap", 7)]);

    let mut b = Builder::new();
    b.send(A, B, &eager(u32::MAX, Some(A), None), b"");
    b.send(A, B, &eager(0, Some(A), None), b"");
    assert_eq!(b.broken(), []);
}

#[test]
fn senders_say_who_they_are_and_say_it_truly() {
    let mut b = Builder::new();
    b.send(A, B, &eager(0, None, None), b"");
    assert_eq!(b.broken(), [("raw-address-first", 1)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(1, Some(A), None), b"");
    assert_eq!(b.broken(), [("raw-address-last", 7)]);
    // A peer may ask for headers of constant length.
    let mut b = Builder::acquainted(ExtraFeatures::all());
    b.send(A, B, &eager(1, Some(A), None), b"");
    assert_eq!(b.broken(), []);

    let mut b = Builder::new();
    b.send(A, B, &eager(0, Some(B), None), b"");
    let broken = b.broken();
    assert!(broken.contains(&("raw-address-true", 1)), "{broken:?}");

    let mut b = Builder::new();
    b.send(A, B, &eager(0, Some(A), Some(A)), b"");
    assert_eq!(b.broken(), [("one-identity", 1)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(1, None, Some(B)), b"");
    assert_eq!(b.broken(), [("connid-true", 7)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(1, None, Some(A)), b"");
    for frame in &mut b.capture.frames[6..] {
        frame.header.qkey = Qkey(5);
    }
    assert_eq!(b.broken(), [("qkey-true", 7)]);
}

#[test]
fn handshakes_are_sent_once_and_not_forgotten() {
    let mut b = Builder::acquainted(all());
    b.send(B, A, &handshake(all(), B), b"");
    assert_eq!(b.broken(), [("handshake-once", 7)]);

    let mut b = Builder::new();
    b.send(A, B, &eager(0, Some(A), None), b"");
    b.send(B, A, &eager(0, Some(B), None), b"");
    assert_eq!(b.broken(), [("handshake-answer", 3)]);
}

#[test]
fn features_need_an_announcement() {
    let dc = EagerRtm {
        receipt: Some(SendId(4)),
        ..eager(1, None, Some(A))
    };
    let mut b = Builder::acquainted(ExtraFeatures::empty());
    b.send(A, B, &dc, b"");
    assert_eq!(b.broken(), [("feature-announced", 7)]);

    let dc = EagerRtm {
        receipt: Some(SendId(4)),
        ..eager(0, Some(A), None)
    };
    let mut b = Builder::new();
    b.send(A, B, &dc, b"");
    assert_eq!(b.broken(), [("feature-early", 1)]);
}

#[test]
fn a_new_endpoint_on_an_old_queue_pair_begins_anew() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &long_cts(1, 3000, 7), &[0; 1000]);
    b.send(B, A, &cts(7, 9, 2000, B), b"");
    // The endpoint ends in the middle of that; another one gets its queue pair.
    let restarted = RawAddress {
        qkey: Qkey(0x7777),
        ..address(A)
    };
    let first = EagerRtm {
        options: ReqOptions {
            raw_address: Some(RawAddressHeader::new(restarted)),
            ..ReqOptions::default()
        },
        ..eager(0, None, None)
    };
    b.send(A, B, &first, b"");
    assert_eq!(b.broken(), [("message-whole", 7)]);
    // A late packet of the one that is gone.
    b.send(A, B, &eager(2, None, Some(A)), b"");
    let broken = b.broken();
    assert!(broken.contains(&("connid-true", 13)), "{broken:?}");
}

#[test]
fn windows_are_filled_exactly() {
    let start = || {
        let mut b = Builder::acquainted(all());
        b.send(A, B, &long_cts(1, 3000, 7), &[0; 1000]);
        b
    };
    let mut b = start();
    b.send(B, A, &cts(7, 9, 0, B), b"");
    assert_eq!(b.broken(), [("message-whole", 7), ("cts-positive", 9)]);

    let mut b = start();
    b.send(B, A, &cts(7, 9, 2001, B), b"");
    b.send(A, B, &data(9, 1000, 2000, A), &[0; 2000]);
    assert_eq!(b.broken(), [("cts-window", 9)]);

    let mut b = start();
    b.send(B, A, &cts(7, 9, 1000, B), b"");
    b.send(A, B, &data(9, 1000, 1500, A), &[0; 1500]);
    assert_eq!(b.broken(), [("message-whole", 7), ("cts-window", 11)]);

    let mut b = start();
    b.send(B, A, &cts(8, 9, 2000, B), b"");
    assert_eq!(b.broken(), [("answer-names-request", 9)]);

    let mut b = start();
    b.send(A, B, &data(9, 1000, 1500, A), &[0; 1500]);
    assert_eq!(b.broken(), [("ctsdata-names-cts", 9)]);

    // The request of a read opens the first window.
    let iov = [RmaIov::new(0x1000, 100, 1)];
    let rtr = Rtr {
        kind: RtrKind::Longcts,
        rma_iov: RmaIovs::new(&iov).unwrap(),
        msg_length: 100,
        recv_id: RecvId(3),
        recv_length: 50,
        options: options(None, Some(A)),
    };
    let response = ReadRsp {
        connid: connid(B),
        recv_id: RecvId(3),
        send_id: SendId(4),
        seg_length: 60,
        flags: UniversalFlags::empty(),
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &rtr, b"");
    b.send(B, A, &response, &[0; 60]);
    assert_eq!(b.broken(), [("cts-window", 9), ("message-whole", 9)]);
}

#[test]
fn answers_name_requests_and_come_once() {
    let dc = EagerRtm {
        receipt: Some(SendId(4)),
        ..eager(1, None, Some(A))
    };
    let receipt = |send_id| Receipt {
        send_id: SendId(send_id),
        msg_id: MsgId(1),
        connid: connid(B),
        flags: UniversalFlags::empty(),
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &dc, b"");
    b.send(B, A, &receipt(4), b"");
    assert_eq!(b.broken(), []);
    b.send(B, A, &receipt(4), b"");
    assert_eq!(b.broken(), [("one-answer", 11)]);

    // A late packet of the same message announces nothing new.
    let part = |offset| MediumRtm {
        msg_id: MsgId(1),
        msg_length: 20,
        seg_offset: offset,
        receipt: Some(SendId(4)),
        options: options(None, Some(A)),
        ..MediumRtm::default()
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &part(0), &[0; 10]);
    b.send(B, A, &receipt(4), b"");
    b.send(A, B, &part(10), &[0; 10]);
    b.send(B, A, &receipt(4), b"");
    assert_eq!(b.broken(), [("one-answer", 13)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &dc, b"");
    b.send(B, A, &receipt(5), b"");
    assert_eq!(b.broken(), [("answer-names-request", 9)]);

    let atomic = AtomRsp {
        connid: connid(B),
        recv_id: RecvId(3),
        seg_length: 8,
        flags: UniversalFlags::empty(),
    };
    let mut b = Builder::acquainted(all());
    b.send(B, A, &atomic, &[0; 8]);
    assert_eq!(b.broken(), [("answer-names-request", 7)]);
    let iov = [RmaIov::new(0x1000, 8, 1)];
    let fetch = Rta {
        kind: RtaKind::Fetch(RecvId(3)),
        msg_id: MsgId(1),
        atomic_datatype: AtomicDatatype(7),
        atomic_op: AtomicOp(2),
        rma_iov: RmaIovs::new(&iov).unwrap(),
        options: options(None, Some(A)),
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &fetch, &[0; 8]);
    b.send(B, A, &atomic, &[0; 8]);
    assert_eq!(b.broken(), []);
}

#[test]
fn remote_memory_is_as_long_as_its_data() {
    let iov = [RmaIov::new(0x1000, 8, 1)];
    let write = EagerRtw {
        rma_iov: RmaIovs::new(&iov).unwrap(),
        options: options(None, Some(A)),
        ..EagerRtw::default()
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &write, &[0; 9]);
    assert_eq!(b.broken(), [("iov-length", 7)]);

    // Each packet of a runt says where the rest is.
    let memory = |length| [RmaIov::new(0x1000, length, 1)];
    let (right, wrong) = (memory(100), memory(99));
    let runt = RuntreadRtm {
        msg_id: MsgId(1),
        msg_length: 100,
        runt_length: 20,
        send_id: SendId(4),
        read_iov: RmaIovs::new(&right).unwrap(),
        options: options(None, Some(A)),
        ..RuntreadRtm::default()
    };
    let rest = RuntreadRtm {
        seg_offset: 10,
        read_iov: RmaIovs::new(&wrong).unwrap(),
        ..runt
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &runt, &[0; 10]);
    b.send(A, B, &rest, &[0; 10]);
    assert_eq!(b.broken(), [("iov-length", 9)]);
}

#[test]
fn packets_without_form_are_named() {
    let mut b = Builder::acquainted(all());
    b.send_bytes(A, B, vec![200, 4, 0, 0]);
    b.send_bytes(A, B, vec![64, 4, 0, 0, 1]);
    assert_eq!(b.broken(), [("packet-form", 7), ("packet-form", 9)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(1, None, Some(A)), b"");
    for frame in &mut b.capture.frames[6..] {
        // REQ_MSG
        frame.payload[2] &= !0x4;
    }
    assert_eq!(b.broken(), [("req-flags", 7)]);
}

/// A send_id that is given to another operation too early does not change where the data of the first
/// one belongs: that is by recv_id.
#[test]
fn data_belongs_to_the_operation_that_its_cts_answered() {
    let mut b = Builder::acquainted(all());
    let long = LongctsRtm {
        msg_id: MsgId(1),
        msg_length: 100,
        send_id: SendId(7),
        options: options(None, Some(A)),
        ..LongctsRtm::default()
    };
    b.send(A, B, &long, &[0; 20]);
    b.send(B, A, &cts(7, 3, 80, B), b"");
    let other = EagerRtm {
        receipt: Some(SendId(7)),
        ..eager(2, None, Some(A))
    };
    b.send(A, B, &other, &[0; 10]);
    b.send(A, B, &data(3, 20, 80, A), &[0; 80]);
    assert_eq!(b.broken(), []);
    b.send(A, B, &data(3, 90, 20, A), &[0; 20]);
    assert_eq!(b.broken(), [("segment-bounds", 15)]);
}

#[test]
fn what_arrives_is_what_was_sent() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(1, None, Some(A)), b"payload");
    let last = b.capture.frames.last_mut().unwrap();
    last.payload[4] = 9;
    let violations = check(&b.capture).violations;
    assert_eq!(violations.len(), 1);
    let text = violations[0].to_string();
    assert!(
        text.starts_with(
            "packet 8 (EAGER_MSGRTM): copies-agree: field `msg_id` (spec section 3.2, table 3.3): \
             expected 1 as sent in packet 7, actual 9"
        ),
        "{text}"
    );
}

#[test]
fn one_sided_captures_and_refused_sends_are_understood() {
    // Only host b was captured: a's packets appear as they arrive.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(1, None, Some(A)), b"");
    b.capture.frames.retain(|frame| frame.interface == 1);
    assert_eq!(b.broken(), []);

    // A HANDSHAKE that met no receive buffer is sent again.
    let mut b = Builder::acquainted(all());
    b.send(B, A, &handshake(all(), B), b"");
    let first = b.capture.frames[2].clone();
    let mut refusal = first.clone();
    refusal.source = first.destination;
    refusal.destination = first.source;
    refusal.header.source_qpn = first.header.destination_qpn;
    refusal.header.destination_qpn = first.header.source_qpn;
    refusal.header.kind = Kind::Response(Status::RemoteRnr);
    refusal.payload = Vec::new();
    b.capture.frames.insert(4, refusal.clone());
    assert_eq!(b.broken(), []);

    // The device sends one again by itself; what arrives in the end counts, and counts once.
    let mut b = Builder::acquainted(all());
    b.send(B, A, &eager(0, None, Some(B)), b"");
    let again: Vec<CapturedPacket> = b.capture.frames[2..4]
        .iter()
        .cloned()
        .map(|mut frame| {
            frame.header.retransmission = true;
            frame
        })
        .collect();
    b.capture.frames.insert(4, refusal);
    assert_eq!(b.broken(), [("handshake-answer", 7)]);
    b.capture.frames.splice(5..5, again.clone());
    assert_eq!(b.broken(), []);
    b.capture.frames.splice(7..7, again);
    assert_eq!(b.broken(), []);
}

#[test]
fn every_rule_can_be_broken() {
    // Each rule's id must be asserted somewhere above.
    let source = include_str!("tests.rs");
    for rule in RULES {
        assert!(
            source.contains(&format!("(\"{}\"", rule.id))
                || source.contains(&format!(": {}: ", rule.id)),
            "{}",
            rule.id
        );
    }
}
