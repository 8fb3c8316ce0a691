use std::time::Duration;

use efa_capture::Direction;
use efa_capture::frame::{self, FrameKind, Rdma};
use efa_device_model::link::RemoteRange;
use efa_wire::Status;
use efa_wire::address::{Qkey, RawAddress};
use efa_wire::rules::{self, Chapter, Rule};
use efa_wire::{
    AtomicDatatype, AtomicOp, Cts, CtsFlags, EagerRtm, EagerRtw, Eor, ExtraFeatures, ExtraInfo,
    Handshake, LongctsRtm, LongreadRtm, MediumRtm, MsgId, OpeType, PacketType, PeerError,
    RawAddressHeader, RecvId, Repr, ReqFlags, ReqOptions, RmaIov, RmaIovs, Rta, RtaKind, Rtr,
    RtrKind, RuntreadRtm, SendId,
};
use efa_wireshark::talk::End::{self, A, B, C};

use super::*;
use crate::capture::{Capture, CapturedPacket};
use mutations::traffic::first_packet;

mod kept;
mod misuse;
mod mutations;

/// Builds captures packet by packet; every packet is captured at both ends unless stated otherwise.
struct Builder {
    capture: Capture,
    /// The next number of each host's queue pair.
    sequences: [u32; 3],
}

impl Builder {
    fn new() -> Self {
        Builder {
            capture: Capture {
                path: "test.pcapng".into(),
                interfaces: vec!["a".into(), "b".into()],
                frames: Vec::new(),
                damage: Vec::new(),
                lossy: Vec::new(),
            },
            sequences: [0; 3],
        }
    }

    /// A conversation after both handshakes: packets 1 to 6.
    fn acquainted(features: ExtraFeatures) -> Self {
        let mut builder = Builder::new();
        builder.send(A, B, &eager(0, Some(A), None), b"first");
        builder.send(B, A, &B.handshake(features), b"");
        builder.send(A, B, &A.handshake(features), b"");
        builder
    }

    fn send(&mut self, from: End, to: End, repr: &impl Repr, payload: &[u8]) {
        self.send_bytes(from, to, repr.to_packet(payload));
    }

    /// An RDMA read of `length` bytes at the start of a region of `to`, with its answer.
    fn rdma_read(&mut self, from: End, to: End, region: RmaIov, length: u32) {
        self.rdma_request(from, to, region, length);
        self.rdma_answer(from, to, region, length);
    }

    fn rdma_request(&mut self, from: End, to: End, region: RmaIov, length: u32) {
        self.send_bytes(from, to, Vec::new());
        let rdma = rdma(region, length);
        self.change_last(|header| header.kind = FrameKind::RdmaReadRequest(rdma));
    }

    /// The answer to the last request.
    fn rdma_answer(&mut self, from: End, to: End, region: RmaIov, length: u32) {
        self.answer_frame(from, to);
        let rdma = rdma(region, length);
        self.change_last(|header| {
            header.kind = FrameKind::RdmaReadResponse(rdma);
            header.payload_length = length;
        });
    }

    /// The answer of the receiver's device to the last request.
    fn answer(&mut self, from: End, to: End, status: Status) {
        self.answer_frame(from, to);
        self.change_last(|header| header.kind = FrameKind::Response(status));
    }

    /// A frame without data that repeats the number of the last request.
    fn answer_frame(&mut self, from: End, to: End) {
        let sequence = self.sequences[from as usize] - 1;
        self.send_bytes(to, from, Vec::new());
        self.sequences[to as usize] -= 1;
        self.change_last(|header| header.sequence = sequence);
    }

    /// Changes the headers of the last packet.
    fn change_last(&mut self, change: impl Fn(&mut frame::Repr)) {
        for frame in self.capture.frames.iter_mut().rev().take(2) {
            change(&mut frame.header);
        }
    }

    fn send_bytes(&mut self, from: End, to: End, payload: Vec<u8>) {
        for direction in [Direction::Outbound, Direction::Inbound] {
            let host = match direction {
                Direction::Outbound => from,
                Direction::Inbound => to,
            };
            let frames = &mut self.capture.frames;
            frames.push(CapturedPacket {
                number: frames.len() as u64 + 1,
                interface: host as usize,
                time: Duration::from_micros(frames.len() as u64),
                direction: Some(direction),
                comments: Vec::new(),
                source: from.address().gid,
                destination: to.address().gid,
                header: frame::Repr {
                    source_qpn: from.address().qpn,
                    destination_qpn: to.address().qpn,
                    qkey: to.address().qkey,
                    sequence: self.sequences[from as usize],
                    ..frame::Repr::new(FrameKind::Send, payload.len())
                },
                headerless: false,
                payload: payload.clone(),
                cut_off: 0,
            });
        }
        self.sequences[from as usize] += 1;
    }

    /// The rules that are broken, and the packets that show it.
    fn broken(&self) -> Vec<(&'static str, u64)> {
        self.found(|finding| finding.severity == finding.rule.severity)
    }

    /// The rules that may be broken, without proof in the capture.
    fn suspected(&self) -> Vec<(&'static str, u64)> {
        self.found(|finding| finding.severity < finding.rule.severity)
    }

    fn found(&self, is_it: impl Fn(&Finding) -> bool) -> Vec<(&'static str, u64)> {
        let checked = check(&self.capture);
        let findings = checked.findings.iter().filter(|finding| is_it(finding));
        findings.map(|f| (f.rule.id, f.packet)).collect()
    }
}

fn options(raw: Option<End>, id: Option<End>) -> ReqOptions {
    ReqOptions {
        raw_address: raw.map(|host| RawAddressHeader::new(host.address())),
        connid: id.map(End::connid),
        ..ReqOptions::default()
    }
}

fn eager(msg_id: u32, raw: Option<End>, id: Option<End>) -> EagerRtm {
    EagerRtm::new(MsgId(msg_id), options(raw, id))
}

fn rdma(region: RmaIov, length: u32) -> Rdma {
    Rdma {
        remote: RemoteRange::new(region.addr(), region.key() as u32),
        total_length: length,
        offset: 0,
    }
}

fn all() -> ExtraFeatures {
    ExtraFeatures::all()
        .difference(ExtraFeatures::CONSTANT_HEADER_LENGTH)
        .difference(ExtraFeatures::USER_RECV_QP)
}

#[test]
fn an_orderly_conversation_breaks_no_rule() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.eager(1), b"second");
    // A long message in two windows.
    b.send(A, B, &A.long_cts(2, 3000, 7), &[0; 1000]);
    b.send(B, A, &B.cts(7, 9, 1500), b"");
    b.send(A, B, &A.data(9, 1000, 1000), &[0; 1000]);
    b.send(A, B, &A.data(9, 2000, 500), &[0; 500]);
    b.send(B, A, &B.cts(7, 9, 500), b"");
    b.send(A, B, &A.data(9, 2500, 500), &[0; 500]);
    // A message by RDMA read, acknowledged.
    let iov = [RmaIov::new(0x1000, 5000, 1)];
    let read = A.long_read(3, 7, iov[0]);
    b.send(A, B, &read, b"");
    b.rdma_read(B, A, iov[0], 5000);
    b.send(B, A, &B.eor(7), b"");
    // A read, answered in two parts.
    let rtr = A.long_rtr(20, 5000, iov[0]);
    b.send(A, B, &rtr, b"");
    let response = B.read_rsp(20, 21, 4000);
    b.send(B, A, &response, &[0; 4000]);
    b.send(B, A, &B.data(20, 4000, 1000), &[0; 1000]);
    assert_eq!(b.broken(), []);
}

#[test]
fn segments_reorder_but_neither_repeat_nor_overrun() {
    let medium = |offset| A.medium(1, offset);
    let mut b = Builder::acquainted(all());
    b.send(A, B, &medium(200), &[0; 100]);
    b.send(A, B, &medium(0), &[0; 100]);
    b.send(A, B, &medium(100), &[0; 100]);
    assert_eq!(b.broken(), []);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &medium(0), &[0; 100]);
    b.send(A, B, &medium(50), &[0; 100]);
    assert_eq!(b.broken(), [("segment-overlap", 9)]);
    assert_eq!(b.suspected(), [("message-whole", 9)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &medium(250), &[0; 100]);
    assert_eq!(b.broken(), [("segment-bounds", 7)]);

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
    b.send(A, B, &A.eager(2), b"");
    b.send(A, B, &A.eager(1), b"");
    assert_eq!(b.broken(), []);
    b.send(A, B, &A.eager(1), b"");
    assert_eq!(b.broken(), [("msg-id-once", 11)]);

    // So far the capture may have ended before message 2.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.eager(1), b"");
    b.send(A, B, &A.eager(3), b"");
    assert_eq!(
        (b.broken(), b.suspected()),
        (vec![], vec![("msg-id-gap", 9)])
    );
    for msg_id in 4..8 {
        b.send(A, B, &A.eager(msg_id), b"");
    }
    assert_eq!(b.broken(), [("msg-id-gap", 9)]);
    b.send(A, B, &A.eager(2), b"");
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));

    let mut b = Builder::new();
    for msg_id in 1..6 {
        b.send(A, B, &eager(msg_id, Some(A), None), b"");
    }
    b.send(B, A, &B.handshake(all()), b"");
    b.send(A, B, &A.handshake(all()), b"");
    assert_eq!(b.broken(), [("msg-id-first", 1)]);
    b.send(A, B, &eager(0, Some(A), None), b"");
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));

    // A capture that begins later, at a wrap.
    let mut b = Builder::new();
    b.sequences = [1000; 3];
    for msg_id in [u32::MAX - 1, u32::MAX, 0, 1] {
        b.send(A, B, &eager(msg_id, Some(A), None), b"");
    }
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
    b.send(A, B, &eager(u32::MAX, Some(A), None), b"");
    b.send(B, A, &B.handshake(all()), b"");
    assert_eq!(b.broken(), [("msg-id-once", 9)]);
}

#[test]
fn senders_identify_themselves_and_truthfully() {
    let mut b = Builder::new();
    b.send(A, B, &eager(0, None, None), b"");
    // No arrivals at A were captured, so it may have a HANDSHAKE.
    assert_eq!(b.broken(), []);
    b.send(B, A, &B.handshake(all()), b"");
    assert_eq!(b.broken(), [("raw-address-first", 1)]);

    // The arrival of the HANDSHAKE at the device does not prove that the software has processed it;
    // a request without the address does.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &eager(1, Some(A), None), b"");
    b.send(A, B, &A.eager(2), b"");
    assert_eq!(b.broken(), []);
    b.send(A, B, &eager(3, Some(A), None), b"");
    assert_eq!(b.broken(), [("raw-address-last", 11)]);
    // A peer may request headers of constant length.
    let constant = all().union(ExtraFeatures::CONSTANT_HEADER_LENGTH);
    let mut b = Builder::acquainted(constant);
    b.send(A, B, &eager(1, Some(A), None), b"");
    assert_eq!(b.broken(), []);
    b.send(A, B, &A.eager(2), b"");
    assert_eq!(b.broken(), [("constant-header", 9)]);

    // Only a peer that requests connids receives them in requests.
    let mut b = Builder::acquainted(all().difference(ExtraFeatures::CONNID_HEADER));
    b.send(A, B, &eager(1, None, None), b"");
    assert_eq!(b.broken(), []);
    b.send(A, B, &A.eager(2), b"");
    assert_eq!(b.broken(), [("connid-unasked", 9)]);

    let mut b = Builder::new();
    b.send(A, B, &eager(0, Some(B), None), b"");
    let broken = b.broken();
    assert!(broken.contains(&("raw-address-true", 1)), "{broken:?}");

    let mut b = Builder::new();
    b.send(A, B, &eager(0, Some(A), Some(A)), b"");
    assert_eq!(b.broken(), [("one-identity", 1)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &B.eager(1), b"");
    assert_eq!(b.broken(), [("connid-true", 7)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.eager(1), b"");
    for frame in &mut b.capture.frames[6..] {
        frame.header.qkey = Qkey(5);
    }
    assert_eq!(b.broken(), [("qkey-true", 7)]);
}

#[test]
fn handshakes_are_sent_once_and_not_forgotten() {
    let mut b = Builder::acquainted(all());
    b.send(B, A, &B.handshake(all()), b"");
    assert_eq!(b.broken(), [("handshake-once", 7)]);

    let mut b = Builder::new();
    b.send(A, B, &eager(0, Some(A), None), b"");
    b.send(B, A, &eager(0, Some(B), None), b"");
    assert_eq!(
        (b.broken(), b.suspected()),
        (vec![], vec![("handshake-answer", 3)])
    );
    // An answer proves that the first packet was processed.
    let mut b = Builder::new();
    let dc = EagerRtm {
        receipt: Some(SendId(4)),
        ..eager(0, Some(A), None)
    };
    b.send(A, B, &dc, b"");
    b.send(B, A, &B.receipt(4, 0), b"");
    assert_eq!(b.broken(), [("feature-early", 1), ("handshake-answer", 3)]);
}

#[test]
fn handshakes_have_a_form_that_older_releases_take() {
    let words = [all().bits(); 5];
    let with = |count| Handshake {
        extra_info: ExtraInfo::new(&words[..count]).unwrap(),
        ..B.handshake(all())
    };
    for (count, broken) in [(4, vec![]), (5, vec![("handshake-form", 3)])] {
        let mut b = Builder::new();
        b.send(A, B, &eager(0, Some(A), None), b"");
        b.send(B, A, &with(count), b"");
        assert_eq!(b.broken(), broken);
    }
    let wants_qp = all().union(ExtraFeatures::USER_RECV_QP);
    let qp = efa_wire::UserRecvQp {
        qpn: 9,
        qkey: Qkey(1),
    };
    for (user_recv_qp, broken) in [(Some(qp), vec![]), (None, vec![("handshake-form", 3)])] {
        let mut b = Builder::new();
        b.send(A, B, &eager(0, Some(A), None), b"");
        let handshake = Handshake {
            user_recv_qp,
            ..B.handshake(wants_qp)
        };
        b.send(B, A, &handshake, b"");
        assert_eq!(b.broken(), broken);
    }
    // An endpoint with READ_NACK reads the device version.
    let mut b = Builder::new();
    b.send(A, B, &eager(0, Some(A), None), b"");
    b.send(B, A, &B.handshake(all()), b"");
    let handshake = Handshake {
        device_version: None,
        ..A.handshake(all())
    };
    b.send(A, B, &handshake, b"");
    assert_eq!(b.broken(), [("device-version", 5)]);
}

#[test]
fn features_need_an_announcement() {
    let dc = A.dc_eager(1, 4);
    let mut b = Builder::acquainted(ExtraFeatures::CONNID_HEADER);
    b.send(A, B, &dc, b"");
    assert_eq!(b.broken(), [("feature-announced", 7)]);

    let dc = EagerRtm {
        receipt: Some(SendId(4)),
        ..eager(0, Some(A), None)
    };
    let mut b = Builder::new();
    b.send(A, B, &dc, b"");
    b.send(B, A, &B.handshake(all()), b"");
    assert_eq!(b.broken(), [("feature-early", 1)]);
}

#[test]
fn a_new_endpoint_starts_afresh() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
    b.send(B, A, &B.cts(7, 9, 2000), b"");
    // The endpoint ends in the middle of the message; another endpoint gets its queue pair.
    let restarted = RawAddress {
        qkey: Qkey(0x7777),
        ..A.address()
    };
    let first = EagerRtm {
        options: ReqOptions::with_raw_address(restarted),
        ..eager(0, None, None)
    };
    // As long as the numbers of the queue pair go on, it has not been replaced.
    let numbers = b.sequences;
    b.send(A, B, &first, b"");
    assert!(b.broken().contains(&("connid-true", 11)));
    b.capture.frames.truncate(10);
    b.sequences = numbers;
    b.sequences[A as usize] = 0;
    b.send(A, B, &first, b"");
    assert_eq!(
        (b.broken(), b.suspected()),
        (vec![], vec![("message-whole", 7)])
    );
    // A late packet of the endpoint that has ended.
    b.send(A, B, &A.eager(2), b"");
    b.send(B, A, &B.handshake(all()), b"");
    b.change_last(|header| header.qkey = restarted.qkey);
    assert_eq!(b.broken(), [("late-packet", 13)]);
}

#[test]
fn windows_are_filled_exactly() {
    let start = || {
        let mut b = Builder::acquainted(all());
        b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
        b
    };
    let mut b = start();
    b.send(B, A, &B.cts(7, 9, 0), b"");
    assert_eq!(b.broken(), [("cts-positive", 9)]);

    let mut b = start();
    b.send(B, A, &B.cts(7, 9, 2001), b"");
    b.send(A, B, &A.data(9, 1000, 2000), &[0; 2000]);
    assert_eq!(b.broken(), [("cts-window", 9)]);

    let mut b = start();
    b.send(B, A, &B.cts(7, 9, 1000), b"");
    b.send(A, B, &A.data(9, 1000, 1500), &[0; 1500]);
    assert_eq!(b.broken(), [("cts-window", 11)]);

    let mut b = start();
    b.send(B, A, &B.cts(8, 9, 2000), b"");
    assert_eq!(b.broken(), [("answer-names-request", 9)]);

    let mut b = start();
    b.send(A, B, &A.data(9, 1000, 1500), &[0; 1500]);
    assert_eq!(b.broken(), [("ctsdata-names-cts", 9)]);

    // The request of a read opens the first window.
    let iov = [RmaIov::new(0x1000, 100, 1)];
    let rtr = A.long_rtr(3, 50, iov[0]);
    let response = B.read_rsp(3, 4, 60);
    let mut b = Builder::acquainted(all());
    b.send(A, B, &rtr, b"");
    b.send(B, A, &response, &[0; 60]);
    assert_eq!(b.broken(), [("cts-window", 9)]);

    // The next window opens when the last one is filled.
    let mut b = start();
    b.send(B, A, &B.cts(7, 9, 1000), b"");
    b.send(A, B, &A.data(9, 1000, 900), &[0; 900]);
    b.send(B, A, &B.cts(7, 9, 1000), b"");
    assert_eq!(b.broken(), [("cts-early", 13)]);

    let mut b = start();
    b.send(B, A, &B.cts(7, 9, 1000), b"");
    b.send(A, B, &A.data(9, 1000, 1000), &[0; 1000]);
    b.send(B, A, &B.cts(7, 10, 1000), b"");
    assert_eq!(b.broken(), [("answer-names-request", 13)]);

    // Data is sent after the HANDSHAKE has arrived.
    let mut b = Builder::new();
    let unknown = LongctsRtm {
        options: A.unknown(),
        ..A.long_cts(0, 2000, 7)
    };
    b.send(A, B, &unknown, &[0; 1000]);
    b.send(B, A, &B.cts(7, 9, 1000), b"");
    b.send(A, B, &A.data(9, 1000, 1000), &[0; 1000]);
    assert!(b.broken().contains(&("ctsdata-early", 5)));
}

#[test]
fn answers_name_requests_and_are_unique() {
    let dc = A.dc_eager(1, 4);
    let mut b = Builder::acquainted(all());
    b.send(A, B, &dc, b"");
    b.send(B, A, &B.receipt(4, 1), b"");
    assert_eq!(b.broken(), []);
    b.send(B, A, &B.receipt(4, 1), b"");
    assert_eq!(b.broken(), [("one-answer", 11)]);

    // A late packet of the same message does not announce anything new.
    let part = |offset| MediumRtm {
        msg_length: 20,
        receipt: Some(SendId(4)),
        ..A.medium(1, offset)
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &part(0), &[0; 10]);
    b.send(B, A, &B.receipt(4, 1), b"");
    b.send(A, B, &part(10), &[0; 10]);
    b.send(B, A, &B.receipt(4, 1), b"");
    assert_eq!(b.broken(), [("receipt-early", 9), ("one-answer", 13)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &dc, b"");
    b.send(B, A, &B.receipt(5, 1), b"");
    assert_eq!(b.broken(), [("answer-names-request", 9)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &dc, b"");
    b.send(B, A, &B.eor(4), b"");
    assert_eq!(b.broken(), [("answer-names-request", 9)]);

    let atomic = B.atom_rsp(3, 8);
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
        options: A.known(),
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
        options: A.known(),
        ..EagerRtw::default()
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &write, &[0; 9]);
    assert_eq!(b.broken(), [("iov-length", 7)]);

    // Each packet of a runt contains the address of the rest.
    let memory = |length| [RmaIov::new(0x1000, length, 1)];
    let (right, wrong) = (memory(100), memory(99));
    let runt = RuntreadRtm {
        msg_id: MsgId(1),
        msg_length: 100,
        runt_length: 20,
        send_id: SendId(4),
        read_iov: RmaIovs::new(&right).unwrap(),
        options: A.known(),
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

    // The EOR answers the request as it is: its sender is not to blame.
    let nowhere = RuntreadRtm {
        read_iov: RmaIovs::default(),
        ..runt
    };
    let mut b = Builder::acquainted(all());
    b.send(A, B, &nowhere, &[0; 20]);
    b.send(B, A, &B.eor(4), b"");
    assert_eq!(b.broken(), [("iov-length", 7)]);
}

#[test]
fn packets_without_form_are_named() {
    let mut b = Builder::acquainted(all());
    b.send_bytes(A, B, vec![200, 4, 0, 0]);
    b.send_bytes(A, B, vec![64, 4, 0, 0, 1]);
    assert_eq!(b.broken(), [("packet-form", 7), ("packet-form", 9)]);

    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.eager(1), b"");
    for frame in &mut b.capture.frames[6..] {
        // REQ_MSG
        frame.payload[2] &= !0x4;
    }
    assert_eq!(b.broken(), [("req-flags", 7)]);
}

/// A send_id that is reused too early does not change the operation of the first one's data: that
/// is found by recv_id.
#[test]
fn data_must_follow_its_operations_cts() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 100, 7), &[0; 20]);
    b.send(B, A, &B.cts(7, 3, 80), b"");
    let other = A.dc_eager(2, 7);
    b.send(A, B, &other, &[0; 10]);
    b.send(A, B, &A.data(3, 20, 80), &[0; 80]);
    assert_eq!(b.broken(), [("id-in-use", 11)]);
    b.send(A, B, &A.data(3, 90, 20), &[0; 20]);
    assert_eq!(b.broken(), [("id-in-use", 11), ("segment-bounds", 15)]);
}

#[test]
fn arriving_packets_equal_the_sent_ones() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.eager(1), b"payload");
    let last = b.capture.frames.last_mut().unwrap();
    last.payload[4] = 9;
    assert_eq!(b.broken(), [("copies-agree", 8)]);
    let text = check(&b.capture).findings[0].to_string();
    assert!(
        text.starts_with(
            "error: packet 8 (EAGER_MSGRTM): copies-agree: field `msg_id` (spec section 3.2, \
             table 3.3): expected 1 as sent in packet 7, actual 9"
        ),
        "{text}"
    );
}

#[test]
fn one_sided_captures_and_refused_sends_are_understood() {
    // Only host b was captured: a's packets appear as they arrive.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.eager(1), b"");
    b.capture.frames.retain(|frame| frame.interface == 1);
    assert_eq!(b.broken(), []);

    // A HANDSHAKE that found no receive buffer is sent again.
    let mut b = Builder::acquainted(all());
    b.send(B, A, &B.handshake(all()), b"");
    let first = b.capture.frames[2].clone();
    let mut refusal = first.clone();
    refusal.source = first.destination;
    refusal.destination = first.source;
    refusal.header.source_qpn = first.header.destination_qpn;
    refusal.header.destination_qpn = first.header.source_qpn;
    refusal.header.kind = FrameKind::Response(Status::RemoteRnr);
    refusal.direction = Some(Direction::Inbound);
    refusal.time = b.capture.frames[3].time;
    refusal.payload = Vec::new();
    b.capture.frames.insert(4, refusal.clone());
    assert_eq!(b.broken(), []);
    // The same after any other refusal; but without an answer the receiver may have it.
    b.capture.frames[4].header.kind = FrameKind::Response(Status::RemoteAbort);
    assert_eq!(b.broken(), []);
    b.capture.frames[4].header.kind = FrameKind::Response(Status::LocalUnresponsiveRemote);
    assert_eq!(b.broken(), [("handshake-once", 7)]);

    // The device repeats one; the attempt that arrives counts, and counts once.
    let mut b = Builder::acquainted(all());
    b.send(B, A, &B.eager(0), b"");
    let again: Vec<CapturedPacket> = b.capture.frames[2..4]
        .iter()
        .cloned()
        .map(|mut frame| {
            frame.header.retransmission = true;
            frame
        })
        .collect();
    b.capture.frames.insert(4, refusal);
    assert_eq!(b.broken(), []);
    b.capture.frames.splice(5..5, again.clone());
    assert_eq!(b.broken(), []);
    b.capture.frames.splice(7..7, again);
    assert_eq!(b.broken(), []);
}

/// A packet of A that B's device answers with `status`, and that A sends as `again` after the
/// HANDSHAKE of B has arrived: packet 13.
fn sent_again(
    first: &impl Repr,
    data: &[u8],
    status: Status,
    again: &impl Repr,
    other: &[u8],
) -> Builder {
    let mut b = Builder::new();
    b.send(A, B, &eager(0, Some(A), None), b"first");
    b.answer(A, B, Status::Ok);
    b.send(A, B, first, data);
    b.answer(A, B, status);
    b.send(B, A, &B.handshake(all()), b"");
    b.send(A, B, &A.handshake(all()), b"");
    b.send(A, B, again, other);
    b
}

#[test]
fn a_refused_packet_may_return_with_another_header() {
    // With completion data, which is between raw address and connection id.
    let with = |options| ReqOptions {
        cq_data: Some(0x1122),
        ..options
    };
    let requests = PacketType::ALL.iter().filter(|known| known.is_req());
    for &request in requests.filter(|known| known.has_header()) {
        let (first, data) = first_packet(request, with(A.unknown()));
        let (again, _) = first_packet(request, with(A.known()));
        // Two writes without ids may be equal.
        let is_write = request.name().ends_with("_RTW");
        for status in [Status::RemoteRnr, Status::RemoteAbort] {
            let found = |b: &Builder| {
                b.found(|finding| finding.packet == 13 && finding.rule.id != "cq-data-place")
            };
            let itself = sent_again(&first, &data, status, &again, &data);
            assert_eq!(found(&itself), [], "{request}, {status:?}");
            // A packet that was not refused is not sent again.
            let taken = found(&sent_again(&first, &data, Status::Ok, &again, &data));
            let is_eager_write = request == PacketType::EagerRtw;
            assert!(!taken.is_empty() || is_eager_write, "{request}, taken");
            let Some((last, rest)) = data.split_last() else {
                continue;
            };
            let changed = [rest, &[last ^ 1]].concat();
            let other = found(&sent_again(&first, &data, status, &again, &changed));
            assert!(
                !other.is_empty() || is_write,
                "{request}, {status:?}, other data"
            );
        }
    }
}

#[test]
fn a_repeated_packet_must_be_equal() {
    let first = eager(1, Some(A), None);
    let again = A.eager(1);
    let other_data = EagerRtm {
        options: ReqOptions {
            cq_data: Some(1),
            ..again.options
        },
        ..again
    };
    let tagged = EagerRtm {
        tag: Some(1),
        ..again
    };
    let long = [5; 2000];
    let mut changed = long;
    changed[1999] = 6;
    let broken = |status, again: &EagerRtm, data: &[u8]| {
        sent_again(&first, &long, status, again, data).broken()
    };
    for (again, data) in [
        (&again, &changed[..]),
        (&again, &long[..1999]),
        (&other_data, &long),
        (&tagged, &long),
    ] {
        let rnr = broken(Status::RemoteRnr, again, data);
        assert_eq!(rnr, [("msg-id-once", 13)]);
        // If the device has given up, the sender may have aborted: then another message has the id.
        let aborted = broken(Status::RemoteAbort, again, data);
        assert_eq!(aborted, [("msg-id-again", 13)]);
        // Without an answer the receiver may have it.
        let unknown = broken(Status::LocalUnresponsiveRemote, again, data);
        assert_eq!(unknown, [("msg-id-once", 13)]);
    }
    // It is sent again once, and then arrives.
    let mut b = sent_again(&first, &long, Status::RemoteRnr, &again, &long);
    b.answer(A, B, Status::Ok);
    b.send(A, B, &again, &long);
    assert_eq!(b.broken(), [("msg-id-once", 17)]);
    let mut b = sent_again(&first, &long, Status::RemoteAbort, &again, &changed);
    b.answer(A, B, Status::Ok);
    b.send(A, B, &tagged, &long);
    assert_eq!(b.broken(), [("msg-id-again", 13), ("msg-id-once", 17)]);
}

#[test]
fn a_failed_message_is_abandoned_whole() {
    let medium = |offset, options| MediumRtm {
        options,
        ..A.medium(1, offset)
    };
    let (raw, connid) = (A.unknown(), A.known());
    // The rest of the message continues, and the packet is sent again.
    let mut b = sent_again(
        &medium(0, raw),
        &[1; 100],
        Status::RemoteAbort,
        &medium(100, connid),
        &[2; 200],
    );
    b.send(A, B, &medium(0, connid), &[1; 100]);
    assert_eq!(b.broken(), []);
    // None of its packets arrived: another message may have its id, even an equal one.
    let mut b = sent_again(
        &medium(0, raw),
        &[1; 100],
        Status::RemoteAbort,
        &medium(0, connid),
        &[3; 200],
    );
    b.send(A, B, &medium(200, connid), &[3; 100]);
    assert_eq!(b.broken(), [("msg-id-again", 13)]);
    // The first packet had arrived: no other message has its id.
    let mut b = sent_again(
        &medium(0, raw),
        &[1; 100],
        Status::Ok,
        &medium(100, connid),
        &[2; 200],
    );
    b.answer(A, B, Status::RemoteAbort);
    b.send(A, B, &medium(100, connid), &[4; 200]);
    assert_eq!(b.broken(), [("msg-id-once", 17)]);
}

#[test]
fn reads_end_before_they_are_acknowledged() {
    let iov = [RmaIov::new(0x1000, 5000, 1)];
    let long_read = |msg_id, send_id| A.long_read(msg_id, send_id, iov[0]);
    let mut b = Builder::acquainted(all());
    b.send(A, B, &long_read(1, 7), b"");
    b.send(B, A, &B.eor(7), b"");
    assert_eq!(b.broken(), [("eor-early", 9)]);

    // A tap does not capture the reads that its host's device serves.
    b.capture.frames.retain(|frame| frame.interface == 0);
    assert_eq!(b.broken(), [("eor-early", 10)]);
    for frame in &mut b.capture.frames {
        if frame.direction == Some(Direction::Inbound) {
            frame.header.sequence |= frame::header::FIRST_TAPPED_SEQUENCE;
        }
    }
    assert_eq!(b.broken(), []);

    // The read is in progress.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &long_read(1, 7), b"");
    b.rdma_request(B, A, iov[0], 5000);
    b.send(B, A, &B.eor(7), b"");
    b.sequences[B as usize] -= 1;
    b.rdma_answer(B, A, iov[0], 5000);
    assert_eq!(b.broken(), [("eor-early", 11)]);

    // A receive that is too small reads only its own length.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &long_read(1, 7), b"");
    b.rdma_read(B, A, iov[0], 100);
    b.send(B, A, &B.eor(7), b"");
    assert_eq!(b.broken(), []);

    // For two messages from the same memory it is not clear which one is read.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &long_read(1, 7), b"");
    b.send(A, B, &long_read(2, 8), b"");
    b.rdma_read(B, A, iov[0], 5000);
    b.send(B, A, &B.eor(7), b"");
    b.rdma_read(B, A, iov[0], 5000);
    b.send(B, A, &B.eor(8), b"");
    assert_eq!(b.broken(), []);

    // With swapped ids it refers to no operation.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &long_read(1, 7), b"");
    b.rdma_read(B, A, iov[0], 5000);
    let swapped = Eor {
        send_id: SendId(10),
        recv_id: RecvId(7),
        ..B.eor(0)
    };
    b.send(B, A, &swapped, b"");
    assert_eq!(b.broken(), [("answer-names-request", 13)]);
}

#[test]
fn refused_reads_go_on_in_windows() {
    let iov = [RmaIov::new(0x1000, 300, 1)];
    let runt = |offset| RuntreadRtm {
        msg_id: MsgId(1),
        msg_length: 300,
        runt_length: 200,
        seg_offset: offset,
        send_id: SendId(7),
        read_iov: RmaIovs::new(&iov).unwrap(),
        options: A.known(),
        ..RuntreadRtm::default()
    };
    let nack = B.read_nack(7, 3);
    let again = |payload: usize| {
        let mut request = A.long_cts(1, 300, 7);
        request.options.flags = ReqFlags::READ_NACK;
        (request, vec![0; payload])
    };
    let play = |nack_after: usize, payload: usize, is_refused: bool| {
        let mut b = Builder::acquainted(all());
        b.send(A, B, &runt(0), &[0; 100]);
        if nack_after == 1 {
            b.send(B, A, &nack, b"");
        }
        b.send(A, B, &runt(100), &[0; 100]);
        if nack_after == 2 && is_refused {
            b.send(B, A, &nack, b"");
        }
        let (request, data_in_it) = again(payload);
        b.send(A, B, &request, &data_in_it);
        b.send(B, A, &B.cts(7, 3, 100), b"");
        b.send(A, B, &A.data(3, 200, 100), &[0; 100]);
        b.broken()
    };
    assert_eq!(play(2, 0, true), []);
    assert_eq!(play(1, 0, true), [("nack-runt", 9)]);
    assert_eq!(play(2, 10, true), [("read-nack", 13)]);
    assert_eq!(play(2, 0, false), [("read-nack", 11)]);
    // A read that was not offered cannot be refused.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
    b.send(B, A, &nack, b"");
    assert_eq!(b.broken(), [("read-nack", 9)]);
}

#[test]
fn rdma_needs_announcements() {
    let region = RmaIov::new(0x5000, 64, 9);
    let write = |b: &mut Builder, immediate| {
        b.send_bytes(A, B, Vec::new());
        b.change_last(|header| {
            header.kind = FrameKind::RdmaWrite(rdma(region, 64));
            header.payload_length = 64;
            header.immediate = immediate;
        });
    };
    let mut b = Builder::acquainted(all());
    b.rdma_read(A, B, region, 64);
    write(&mut b, Some(5));
    assert_eq!(b.broken(), []);

    let mut b = Builder::acquainted(all().difference(ExtraFeatures::RDMA_READ));
    b.rdma_read(A, B, region, 64);
    assert_eq!(b.broken(), [("rdma-announced", 7)]);

    let mut b = Builder::acquainted(all().difference(ExtraFeatures::RDMA_WRITE));
    write(&mut b, None);
    assert_eq!(b.broken(), [("rdma-announced", 7)]);

    let mut b = Builder::new();
    let unlike = all().difference(ExtraFeatures::UNSOLICITED_WRITE_RECV);
    b.send(A, B, &eager(0, Some(A), None), b"first");
    b.send(B, A, &B.handshake(unlike), b"");
    b.send(A, B, &A.handshake(all()), b"");
    write(&mut b, None);
    assert_eq!(b.broken(), []);
    write(&mut b, Some(5));
    assert_eq!(b.broken(), [("unsolicited-write", 9)]);
}

#[test]
fn zero_copy_receivers_get_messages_elsewhere() {
    let mut b = Builder::new();
    b.send(A, B, &eager(0, Some(A), None), b"first");
    let handshake = Handshake {
        user_recv_qp: Some(efa_wire::UserRecvQp {
            qpn: 9,
            qkey: Qkey(1),
        }),
        ..B.handshake(all().union(ExtraFeatures::USER_RECV_QP))
    };
    b.send(B, A, &handshake, b"");
    // The software may not have processed the HANDSHAKE yet.
    b.send(A, B, &eager(1, Some(A), None), b"");
    assert_eq!(b.broken(), []);
    b.send(A, B, &A.eager(2), b"");
    assert_eq!(b.broken(), [("user-recv-qp", 7)]);
}

#[test]
fn completion_data_has_its_place() {
    let with_data = |cq_data| ReqOptions {
        cq_data,
        ..A.known()
    };
    let iov = [RmaIov::new(0x1000, 100, 1)];
    let rtr = |cq_data| Rtr {
        kind: RtrKind::Short,
        rma_iov: RmaIovs::new(&iov).unwrap(),
        msg_length: 100,
        recv_id: RecvId(3),
        recv_length: 100,
        options: with_data(cq_data),
    };
    for (data, broken) in [(None, vec![]), (Some(5), vec![("cq-data-place", 7)])] {
        let mut b = Builder::acquainted(all());
        b.send(A, B, &rtr(data), b"");
        assert_eq!(b.broken(), broken);
    }
    let part = |offset, cq_data| MediumRtm {
        msg_length: 20,
        options: with_data(cq_data),
        ..A.medium(1, offset)
    };
    for (data, broken) in [(Some(5), vec![]), (None, vec![("cq-data-agreement", 9)])] {
        let mut b = Builder::acquainted(all());
        b.send(A, B, &part(0, Some(5)), &[0; 10]);
        b.send(A, B, &part(10, data), &[0; 10]);
        assert_eq!(b.broken(), broken);
    }
}

#[test]
fn atomics_can_be_carried_out() {
    let iov = |length| [RmaIov::new(0x1000, length, 1)];
    let (whole, odd) = (iov(8), iov(6));
    let rta = |kind, operation, datatype, iov| Rta {
        kind,
        msg_id: MsgId(1),
        atomic_datatype: AtomicDatatype(datatype),
        atomic_op: AtomicOp(operation),
        rma_iov: RmaIovs::new(iov).unwrap(),
        options: A.known(),
    };
    let compare = RtaKind::Compare(RecvId(3));
    let fetch = RtaKind::Fetch(RecvId(3));
    for (rta, payload, is_right) in [
        (rta(RtaKind::Write, 2, 7, &whole), 8, true),
        (rta(fetch, 10, 7, &whole), 8, true),
        (rta(compare, 12, 7, &whole), 16, true),
        // Compare and swap without a comparand; a sum with one; reading without an answer.
        (rta(RtaKind::Write, 12, 7, &whole), 8, false),
        (rta(compare, 2, 7, &whole), 16, false),
        (rta(RtaKind::Write, 10, 7, &whole), 8, false),
        // Unknown numbers.
        (rta(fetch, 20, 7, &whole), 8, false),
        (rta(fetch, 2, 20, &whole), 8, false),
        // A part of an element.
        (rta(fetch, 2, 5, &odd), 6, false),
    ] {
        let mut b = Builder::acquainted(all());
        b.send(A, B, &rta, &vec![0; payload]);
        let expected = if is_right {
            vec![]
        } else {
            vec![("atomic-operand", 7)]
        };
        assert_eq!(b.broken(), expected, "{rta:?}");
    }
    let mut b = Builder::acquainted(all());
    b.send(A, B, &rta(fetch, 2, 7, &whole), &[0; 8]);
    let short = B.atom_rsp(3, 4);
    b.send(B, A, &short, &[0; 4]);
    assert_eq!(b.broken(), [("answer-length", 9)]);
}

#[test]
fn an_abandoned_message_owes_nothing() {
    let features = all() | ExtraFeatures::PEER_ERROR;
    for op_id in [PeerError::NO_OP, 9] {
        for abort in [true, false] {
            // Message 1 is sent in windows, message 2 never, and message 3 in part.
            let mut b = Builder::acquainted(features);
            b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
            b.send(B, A, &B.cts(7, 9, 1000), b"");
            if abort {
                b.send(A, B, &A.peer_error(1, op_id, OpeType::TXE), b"");
                let none = PeerError::NO_OP;
                b.send(A, B, &A.peer_error(2, none, OpeType::TXE), b"");
            }
            b.send(A, B, &A.medium(3, 0), &[0; 100]);
            if abort {
                b.send(A, B, &A.peer_error(3, PeerError::NO_OP, OpeType::TXE), b"");
            }
            for number in 0..5 {
                b.send(A, B, &A.dc_eager(4 + number, 20 + number), b"");
                b.send(B, A, &B.receipt(20 + number, 4 + number), b"");
            }
            let is_whole = b.broken().is_empty() && b.suspected().is_empty();
            assert_eq!(is_whole, abort, "{:?} {:?}", b.broken(), b.suspected());
        }
    }
    // The receiver aborts the message that it was to read.
    for (msg_id, op_id) in [(1, 7), (1, PeerError::NO_OP), (5, 99)] {
        let mut b = Builder::acquainted(features);
        let iov = [RmaIov::new(0x1000, 5000, 5)];
        let long_read = A.long_read(1, 7, iov[0]);
        b.send(A, B, &long_read, b"");
        b.send(B, A, &B.peer_error(msg_id, op_id, OpeType::RXE), b"");
        let missing = match msg_id {
            1 => vec![],
            _ => vec![("answer-missing", 8)],
        };
        assert_eq!((b.broken(), b.suspected()), (vec![], missing));
    }
}

/// Keeps one copy of the packets that both ends captured: the copy of `host`.
fn seen_by(mut b: Builder, host: End) -> Builder {
    let frames = &mut b.capture.frames;
    frames.retain(|frame| frame.interface == host as usize);
    for (number, frame) in (1..).zip(frames) {
        frame.number = number;
    }
    b
}

/// A request without raw address after a HANDSHAKE, without directions and on two clocks. The
/// clock of B is behind, so its copies of the packets of A come first.
#[test]
fn packets_captured_at_one_end_are_unordered() {
    let play = |is_handshake_there: bool, kept: &dyn Fn(&CapturedPacket) -> bool| {
        let mut b = Builder::new();
        b.send(A, B, &eager(0, Some(A), None), b"first");
        if is_handshake_there {
            b.send(B, A, &B.handshake(all()), b"");
        }
        b.send(A, B, &A.eager(1), b"");
        b.send(B, A, &eager(0, Some(B), None), b"");
        b.send(A, B, &A.handshake(all()), b"");
        b.send(B, A, &B.eager(1), b"");
        let frames = &mut b.capture.frames;
        frames.retain(kept);
        for frame in frames {
            frame.direction = None;
            frame.time += Duration::from_secs(1 - frame.interface as u64);
        }
        b.broken()
    };
    let sent = |frame: &CapturedPacket| frame.direction == Some(Direction::Outbound);
    let all = |_: &CapturedPacket| true;
    let but_sent_by_b = |frame: &CapturedPacket| frame.interface == 0 || !sent(frame);
    let at_a = |frame: &CapturedPacket| frame.interface == 0;
    let wrong = ("raw-address-first", 4);
    assert_eq!(play(true, &but_sent_by_b), []);
    assert_eq!(play(true, &sent), []);
    assert_eq!(play(true, &all), []);
    assert_eq!(play(true, &at_a), []);
    // The order is known if both copies are there, or one host's only.
    assert_eq!(play(false, &all), [wrong]);
    assert_eq!(play(false, &at_a), [("raw-address-first", 3)]);
}

/// The first packet of a queue pair that arrives behind others may be that of its next owner.
#[test]
fn a_later_first_packet_proves_no_complete_capture() {
    let play = |frames: [usize; 4]| {
        let mut b = Builder::new();
        b.send(A, B, &eager(0, Some(A), None), b"");
        b.send(B, A, &B.handshake(all()), b"");
        b.send(B, A, &B.eager(0), b"");
        b.send(A, B, &A.handshake(all()), b"");
        let at_a = frames.map(|at| b.capture.frames[at].clone());
        b.capture.frames = at_a.into();
        for (frame, number) in b.capture.frames.iter_mut().zip(1..) {
            (frame.number, frame.time) = (number, Duration::from_micros(number));
        }
        b.broken()
    };
    assert_eq!(play([0, 3, 5, 6]), [("raw-address-first", 3)]);
    assert_eq!(play([0, 5, 3, 6]), []);
}

/// The network may deliver a PEER_ERROR before earlier packets.
#[test]
fn packets_may_arrive_after_their_message_was_abandoned() {
    let features = all() | ExtraFeatures::PEER_ERROR;
    let given_up = |first: u32| {
        let mut b = Builder::acquainted(features);
        b.send(A, B, &A.eager(first), b"");
        let none = PeerError::NO_OP;
        b.send(A, B, &A.peer_error(first + 1, none, OpeType::TXE), b"");
        b
    };
    // One of the three parts never arrives.
    let mut b = given_up(1);
    b.send(A, B, &A.medium(2, 100), &[0; 100]);
    b.send(A, B, &A.medium(2, 0), &[0; 100]);
    for msg_id in 3..10 {
        b.send(A, B, &A.eager(msg_id), b"");
    }
    let b = seen_by(b, B);
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
    // An aborted message is not answered.
    let dc = A.dc_eager(2, 7);
    let mut b = given_up(1);
    b.send(A, B, &dc, b"");
    for number in 3..8 {
        let dc = A.dc_eager(number, number);
        b.send(A, B, &dc, b"");
        b.send(B, A, &B.receipt(number, number), b"");
    }
    let b = seen_by(b, B);
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
    // Each packet still arrives once.
    let mut b = given_up(1);
    b.send(A, B, &A.medium(2, 0), &[0; 100]);
    b.send(A, B, &A.medium(2, 50), &[0; 100]);
    assert_eq!(seen_by(b, B).broken(), [("segment-overlap", 7)]);
    let mut b = given_up(1);
    b.send(A, B, &A.eager(2), b"");
    b.send(A, B, &A.eager(2), b"");
    assert_eq!(seen_by(b, B).broken(), [("msg-id-once", 7)]);
    // A second abort of a message does not make its packet a second one.
    let mut b = given_up(1);
    let none = PeerError::NO_OP;
    b.send(A, B, &A.peer_error(2, none, OpeType::TXE), b"");
    b.send(A, B, &A.medium(2, 0), &[0; 100]);
    assert_eq!(seen_by(b, B).broken(), []);
    // Enough messages follow the gap: the aborted message is the last one that may wait for it.
    let mut b = Builder::acquainted(features);
    let count = 1 << 16;
    for msg_id in 2..2 + count {
        b.send(A, B, &A.eager(msg_id), b"");
    }
    b.send(A, B, &A.peer_error(2 + count, none, OpeType::TXE), b"");
    assert_eq!(seen_by(b, A).broken(), [("msg-id-gap", 4)]);
}

#[test]
fn peer_errors_name_messages_and_need_support() {
    let features = all() | ExtraFeatures::PEER_ERROR;
    let mut b = Builder::acquainted(features);
    let read = A.long_rtr(9, 10, RmaIov::new(0x1000, 10, 5));
    b.send(A, B, &read, b"");
    b.send(B, A, &B.peer_error(0, 9, OpeType::TXE), b"");
    assert_eq!(b.broken(), [("peer-error-message", 9)]);

    // An id is reused for a read: the aborted message had it before.
    let mut b = Builder::acquainted(features);
    b.send(B, A, &eager(0, Some(B), None), b"");
    b.send(A, B, &read, b"");
    b.send(B, A, &B.peer_error(0, 9, OpeType::TXE), b"");
    assert_eq!(b.broken(), []);

    // Values for neither side of a message.
    for side in [0, 3, u32::MAX] {
        let mut b = Builder::acquainted(features);
        b.send(A, B, &A.medium(1, 0), &[0; 100]);
        b.send(A, B, &A.peer_error(1, PeerError::NO_OP, OpeType(side)), b"");
        assert_eq!(b.broken(), [("peer-error-message", 9)]);
        // The message continues.
        assert_eq!(b.suspected(), [("message-whole", 7)]);
    }

    let mut b = Builder::acquainted(all() - ExtraFeatures::PEER_ERROR);
    b.send(A, B, &A.peer_error(1, PeerError::NO_OP, OpeType::TXE), b"");
    assert_eq!(b.broken(), [("feature-announced", 7)]);
    // With another length it is not a packet.
    let mut b = Builder::acquainted(features);
    for length in [20, 28] {
        let mut bytes = A.peer_error(1, 0, OpeType::TXE).to_packet(&[]);
        bytes.resize(length, 0);
        b.send_bytes(A, B, bytes);
    }
    assert_eq!(b.broken(), [("packet-form", 7), ("packet-form", 9)]);
}

#[test]
fn missing_answers_are_reported_after_later_ones() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.dc_eager(1, 4), b"");
    b.send(A, B, &A.dc_eager(2, 5), b"");
    // There may be no receive for either.
    assert_eq!(b.broken(), []);
    assert_eq!(
        b.suspected(),
        [("answer-missing", 8), ("answer-missing", 10)]
    );
    // Message 2 was received, so message 1 was received before.
    b.send(B, A, &B.receipt(5, 2), b"");
    assert_eq!(b.broken(), [("answer-missing", 8)]);
    b.send(B, A, &B.receipt(4, 1), b"");
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));

    // An unreceived tag proves nothing about others.
    let mut b = Builder::acquainted(all());
    let tagged = |msg_id, send_id, tag| EagerRtm {
        tag: Some(tag),
        ..A.dc_eager(msg_id, send_id)
    };
    b.send(A, B, &tagged(1, 4, 1), b"");
    b.send(A, B, &tagged(2, 5, 2), b"");
    b.send(B, A, &B.receipt(5, 2), b"");
    assert_eq!(
        (b.broken(), b.suspected()),
        (vec![], vec![("answer-missing", 8)])
    );

    // With an open window the message was received: the next message must arrive.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
    b.send(B, A, &B.cts(7, 9, 1000), b"");
    b.send(A, B, &A.data(9, 1000, 1000), &[0; 1000]);
    b.send(A, B, &A.dc_eager(2, 5), b"");
    b.send(B, A, &B.receipt(5, 2), b"");
    assert_eq!(b.broken(), [("answer-missing", 12)]);
}

#[test]
fn a_read_that_is_over_is_acknowledged() {
    let iov = [RmaIov::new(0x1000, 5000, 1)];
    let long_read = A.long_read(1, 7, iov[0]);
    // Receives with other tags prove nothing about this one, but the endpoint continues.
    let goes_on = |b: &mut Builder, tag: u32| {
        let tagged = EagerRtm {
            tag: Some(tag.into()),
            receipt: Some(SendId(20 + tag)),
            ..A.eager(1 + tag)
        };
        b.send(A, B, &tagged, b"");
        b.send(B, A, &B.receipt(20 + tag, 1 + tag), b"");
    };
    for (read, expected) in [(5000, vec![("answer-missing", 8)]), (4000, vec![])] {
        let mut b = Builder::acquainted(all());
        b.send(A, B, &long_read, b"");
        b.rdma_read(B, A, iov[0], read);
        for tag in 1..=3 {
            goes_on(&mut b, tag);
        }
        assert_eq!(
            (b.broken(), b.suspected()),
            (vec![], vec![("answer-missing", 8)])
        );
        goes_on(&mut b, 4);
        assert_eq!(b.broken(), expected, "{read}");
        b.send(B, A, &B.eor(7), b"");
        assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
    }
}

#[test]
fn captures_that_lack_something_prove_less() {
    // The capture begins late: it lacks the answers' requests.
    let mut b = Builder::new();
    b.sequences = [1000; 3];
    b.send(A, B, &A.eager(17), b"");
    b.send(B, A, &B.receipt(4, 1), b"");
    b.send(B, A, &B.eor(7), b"");
    b.send(A, B, &A.data(3, 0, 10), &[0; 10]);
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));

    // With drops, only rules about a single packet apply.
    let mut b = Builder::acquainted(all());
    b.send(B, A, &B.receipt(4, 1), b"");
    b.send(B, A, &B.cts(7, 9, 0), b"");
    let found = [
        ("answer-names-request", 7),
        ("answer-names-request", 9),
        ("cts-positive", 9),
    ];
    let mut broken = b.broken();
    broken.sort();
    assert_eq!(broken, found);
    b.capture.lossy = vec![1];
    assert_eq!(b.broken(), [("cts-positive", 9)]);
    assert_eq!(check(&b.capture).unproven, 2);

    // Truncated by a snap length.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 3000, 7), b"");
    b.change_last(|header| header.payload_captured = false);
    b.send(B, A, &B.cts(7, 9, 2000), b"");
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
}

/// Two receipts that name no request, at the end of a conversation with four more messages.
fn unnamed_receipts(change: impl Fn(&mut Vec<CapturedPacket>)) -> (Vec<(&'static str, u64)>, u64) {
    let mut b = Builder::acquainted(all());
    for msg_id in 1..5 {
        b.send(A, B, &A.eager(msg_id), b"data");
    }
    b.send(B, A, &B.receipt(4, 1), b"");
    b.send(B, A, &B.receipt(5, 2), b"");
    change(&mut b.capture.frames);
    b.capture.frames.sort_by_key(|frame| frame.time);
    (b.broken(), check(&b.capture).unproven)
}

#[test]
fn gaps_in_request_numbers_count_as_dropped() {
    let is = |frame: &CapturedPacket, host: End, number: u32, direction| {
        let is_request = (frame.source, frame.header.sequence) == (host.address().gid, number);
        is_request && frame.direction == direction
    };
    let (sent, arrived) = (Some(Direction::Outbound), Some(Direction::Inbound));
    let both = vec![("answer-names-request", 15), ("answer-names-request", 17)];
    assert_eq!(unnamed_receipts(|_| {}), (both.clone(), 0));

    let neither = |host, number| {
        move |frames: &mut Vec<CapturedPacket>| {
            let is_copy =
                |frame: &_| is(frame, host, number, sent) || is(frame, host, number, arrived);
            frames.retain(|frame| !is_copy(frame));
        }
    };
    assert_eq!(unnamed_receipts(neither(B, 1)), (vec![], 1));
    // No request after the last one shows that it is missing.
    let first = vec![("answer-names-request", 15)];
    assert_eq!(unnamed_receipts(neither(B, 2)), (first, 0));
    // The requests of A's host say nothing about the capture of B's.
    assert_eq!(unnamed_receipts(neither(A, 3)).0, both);

    // Without directions both copies have to be missing.
    let undirected = |frames: &mut Vec<CapturedPacket>| {
        frames.iter_mut().for_each(|frame| frame.direction = None);
    };
    let (before, _) = unnamed_receipts(undirected);
    assert_eq!(before, both);
    for host in [A, B] {
        let one_copy = |frames: &mut Vec<_>| {
            frames.retain(|frame| !is(frame, host, 1, sent));
            undirected(frames);
        };
        assert_eq!(unnamed_receipts(one_copy).1, 0, "{host:?}");
        let no_copy = |frames: &mut Vec<_>| {
            neither(host, 1)(frames);
            undirected(frames);
        };
        assert_eq!(unnamed_receipts(no_copy).0, [], "{host:?}");
    }

    // A frame that is late closes the gap, and one with number 0 that is captured again opens none.
    let late = |frames: &mut Vec<CapturedPacket>| {
        undirected(frames);
        for number in [0, 2] {
            let again = frames.iter().find(|frame| is(frame, A, number, None));
            let mut again = again.unwrap().clone();
            if number == 2 {
                frames.retain(|frame| !is(frame, A, number, None));
            }
            again.time = Duration::from_secs(1);
            frames.push(again);
        }
    };
    assert_eq!(unnamed_receipts(late), (both, 0));
}

#[test]
fn other_protocols_are_named_and_not_judged() {
    let mut b = Builder::new();
    for number in 0..20_u8 {
        b.send_bytes(A, B, vec![number, 0, 0, 0, 1, 2, 3]);
    }
    assert_eq!(b.broken(), [("not-rdm", 39)]);
    let checked = check(&b.capture);
    assert!(checked.is_empty());
    assert_eq!((checked.foreign, checked.conversations), (20, 0));
    // RDM traffic besides it is judged.
    b.sequences = [0; 3];
    b.send(C, A, &eager(0, None, None), b"");
    b.send(A, C, &A.handshake(all()), b"");
    assert_eq!(b.broken(), [("raw-address-first", 41), ("not-rdm", 39)]);
}

/// Sends of a program that does not use RDM, on the queue pairs of A and B.
fn send_plain(b: &mut Builder, qkey: u32, first: u8, count: u8) {
    for number in 0..count {
        for (from, to) in [(A, B), (B, A)] {
            b.send_bytes(from, to, vec![first, number, 0, 0, 1, 2, 3, 4, 5, 6]);
            b.change_last(|header| header.qkey = Qkey(qkey));
        }
    }
}

#[test]
fn queue_pair_numbers_may_change_their_protocol() {
    let connid_of = |host: End| Qkey(0x8000 + host.connid().0);
    // RDM, then plain SRD; the first send can be read as an RDM packet by chance.
    let mut b = Builder::acquainted(all());
    b.sequences = [0; 3];
    b.send(A, B, &eager(1, None, None), b"data");
    b.change_last(|header| header.qkey = Qkey(0x1111_1111));
    send_plain(&mut b, 0x1111_1111, 0x77, 5);
    assert_eq!(b.broken(), [("not-rdm", 27), ("not-rdm", 28)]);
    let checked = check(&b.capture);
    assert_eq!((checked.packets, checked.foreign), (3, 11));

    // RDM again, with one malformed packet: an error of its sender.
    b.sequences = [0; 3];
    let address = RawAddress {
        qkey: connid_of(A),
        ..A.address()
    };
    let mut first = eager(0, None, None);
    first.options.raw_address = Some(RawAddressHeader::new(address));
    b.send(A, B, &first, b"first");
    b.change_last(|header| header.qkey = connid_of(B));
    b.send_bytes(A, B, vec![65, 3, 0, 0]);
    b.change_last(|header| header.qkey = connid_of(B));
    assert_eq!(
        b.broken(),
        [("packet-form", 31), ("not-rdm", 27), ("not-rdm", 28)]
    );
    assert_eq!(check(&b.capture).packets, 5);

    // Plain SRD first: later RDM traffic does not make it RDM.
    let mut b = Builder::new();
    send_plain(&mut b, 0x1111_1111, 0x77, 5);
    b.sequences = [0; 3];
    b.send(A, B, &eager(0, Some(A), None), b"first");
    b.send(B, A, &B.handshake(all()), b"");
    b.send(A, B, &A.handshake(all()), b"");
    assert_eq!(b.broken(), [("not-rdm", 19), ("not-rdm", 20)]);
    assert_eq!(check(&b.capture).packets, 3);

    // Sends to the Q-keys of the RDM endpoints belong to them.
    let mut b = Builder::acquainted(all());
    b.send_bytes(A, B, vec![0x77, 1, 0, 0]);
    assert_eq!(b.broken(), [("packet-form", 7)]);
}

#[test]
fn the_order_is_that_of_time() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
    b.send(B, A, &B.cts(7, 9, 2000), b"");
    b.send(A, B, &A.data(9, 1000, 2000), &[0; 2000]);
    // Several processes append to one file with delays.
    b.capture.frames.reverse();
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
    let mut judge = Judge::new();
    for frame in &b.capture.frames {
        judge.frame(frame.clone()).unwrap();
    }
    assert_eq!(judge.finish().findings, []);
}

#[test]
fn the_clocks_of_two_hosts_need_not_agree() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
    b.send(B, A, &B.cts(7, 9, 2000), b"");
    b.send(A, B, &A.data(9, 1000, 2000), &[0; 2000]);
    for frame in b
        .capture
        .frames
        .iter_mut()
        .filter(|frame| frame.interface == 1)
    {
        frame.time += Duration::from_secs(1);
    }
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
}

#[test]
fn several_endpoints_of_one_host_are_distinguished() {
    // Both endpoints are on host a, in one capture.
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
    b.send(B, A, &B.cts(7, 9, 2000), b"");
    b.send(A, B, &A.data(9, 1000, 2000), &[0; 2000]);
    b.send(B, A, &B.receipt(7, 1), b"");
    for frame in &mut b.capture.frames {
        (frame.source, frame.destination) = (A.address().gid, A.address().gid);
        frame.interface = 0;
        if frame.payload.first() == Some(&64) {
            // The raw address of b names host b.
            continue;
        }
    }
    assert_eq!(b.broken(), [("answer-names-request", 13)]);
}

/// The same packets a second later, from the next endpoints of the queue pairs, with other
/// connection ids.
fn second_job(first_job: &[CapturedPacket], offset: usize) -> Vec<CapturedPacket> {
    let again = |frame: &CapturedPacket| {
        let mut frame = frame.clone();
        frame.number += offset as u64;
        frame.time += Duration::from_secs(1);
        frame.header.qkey.0 += 0x5000;
        for (old, new) in [(0x1001_u32, 0x6001_u32), (0x1002, 0x6002)] {
            let (old, new) = (old.to_le_bytes(), new.to_le_bytes());
            while let Some(at) = frame.payload.windows(4).position(|bytes| bytes == old) {
                frame.payload[at..at + 4].copy_from_slice(&new);
            }
        }
        frame
    };
    first_job.iter().map(again).collect()
}

#[test]
fn a_second_job_starts_afresh() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.eager(1), b"");
    let second_job = second_job(&b.capture.frames, b.capture.frames.len());
    b.capture.frames.extend(second_job);
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
}

#[test]
fn a_second_jobs_first_request_is_separate() {
    // The capture begins after the first message of A, with the one of B that crossed it.
    let mut b = Builder::new();
    b.sequences[A as usize] = 1;
    b.send(B, A, &eager(0, Some(B), None), b"");
    b.send(A, B, &A.handshake(all()), b"");
    for msg_id in 1..8 {
        b.send(A, B, &A.eager(msg_id), b"");
    }
    let mut first_job = seen_by(b, A).capture.frames;
    let mut b = Builder::acquainted(all());
    let second_job = second_job(&b.capture.frames, first_job.len());
    b.capture.frames.clear();
    b.capture.frames.append(&mut first_job);
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
    b.capture.frames.extend(second_job);
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
}

/// One copy of each frame, without directions and with one clock.
fn undirected(frames: &mut Vec<CapturedPacket>) {
    frames.retain(|frame| frame.direction == Some(Direction::Outbound));
    for frame in frames {
        (frame.direction, frame.interface) = (None, 0);
    }
}

#[test]
fn a_later_connid_does_not_join_two_jobs() {
    let mut b = Builder::new();
    b.sequences = [1; 3];
    for msg_id in [2, 3] {
        b.send(A, B, &eager(msg_id, None, None), b"");
    }
    let mut first_job = b.capture.frames;
    let mut b = Builder::new();
    b.sequences = [3; 3];
    let unnamed = Handshake {
        connid: None,
        ..B.handshake(all())
    };
    b.send(B, A, &unnamed, b"");
    b.send(A, B, &A.handshake(all()), b"");
    b.send(A, B, &eager(2, None, None), b"");
    let second_job = second_job(&b.capture.frames, first_job.len());
    first_job.extend(second_job);
    b.capture.frames = first_job;
    undirected(&mut b.capture.frames);
    assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
    // The connection ids of one job: the message is sent twice.
    for frame in &mut b.capture.frames[..2] {
        frame.header.qkey.0 += 0x5000;
    }
    assert_eq!(b.broken(), [("msg-id-once", 9)]);
}

#[test]
fn late_undirected_requests_may_be_copies() {
    let broken = |numbers: [u32; 3]| {
        let mut b = Builder::new();
        b.sequences = [14; 3];
        b.send(B, A, &B.eager(9), b"");
        for (msg_id, number) in [(4, numbers[0]), (5, numbers[1]), (4, numbers[2])] {
            b.sequences[A as usize] = number;
            b.send(A, B, &A.eager(msg_id), b"");
        }
        undirected(&mut b.capture.frames);
        b.broken()
    };
    assert_eq!(broken([14, 15, 16]), [("msg-id-once", 7)]);
    assert_eq!(broken([15, 14, 16]), []);
}

#[test]
fn an_earlier_refusal_does_not_hide_later_packets() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.eager(1), b"");
    let orderly = b.capture.frames;
    // The first message of the first job is refused, and its endpoints end. The first message of
    // the second job has the same sequence number, and may have the same bytes.
    for data in [b"first", b"other"] {
        let mut b = Builder::new();
        b.send(A, B, &eager(0, Some(A), None), data);
        b.answer(A, B, Status::RemoteRnr);
        let second_job = second_job(&orderly, b.capture.frames.len());
        b.capture.frames.extend(second_job);
        assert_eq!(b.broken(), []);
    }
}

#[test]
fn every_rule_can_be_broken() {
    // Each rule's id must be asserted somewhere.
    let source = [include_str!("tests.rs"), include_str!("tests/misuse.rs")].concat();
    let has_frames = |rule: &&Rule| rule.is_checked() && rule.chapter != Chapter::TagMatching;
    for rule in rules::RULES.iter().filter(has_frames) {
        assert!(source.contains(&format!("(\"{}\"", rule.id)), "{}", rule.id);
    }
}
