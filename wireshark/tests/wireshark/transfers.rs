//! The results of following conversations: the packets of a transfer, the links between them,
//! reassembled data, and breaches of the rules in `docs/rules.md`.
//!
//! Needs `tshark`; without it the tests say so and pass.

use std::collections::BTreeSet;

use efa_capture::Reader;
use efa_capture::frame::{FrameKind, Rdma};
use efa_core::address::Qkey;
use efa_core::nic::Status;
use efa_core::rules::{Chapter, RULES};
use efa_core::wire::{
    AtomicDatatype, AtomicOp, Cts, CtsFlags, EagerRtm, EagerRtw, ExtraFeatures, Handshake, Header,
    LongctsRtm, LongreadRtw, MediumRtm, MsgId, RecvId, Repr as _, ReqFlags, RmaIov, RmaIovs, Rta,
    RtaKind, RuntreadRtm, SendId, UserRecvQp,
};
use efa_device_model::link::RemoteRange;
use efa_testing::pattern;

use efa_wireshark::talk::{End, Talk};
use efa_wireshark::{DissectedFrame, Tshark};

/// The features with a name; unnamed ones cause a note.
const ALL: ExtraFeatures =
    ExtraFeatures::from_bits_retain((ExtraFeatures::PEER_ERROR.bits() << 1) - 1);

struct Followed(Vec<DissectedFrame>);

impl Followed {
    fn new(tshark: &Tshark, talk: Talk) -> Followed {
        Followed(tshark.dissect_twice(&talk.capture()))
    }

    fn frame(&self, number: u32) -> &DissectedFrame {
        &self.0[number as usize - 1]
    }

    fn value(&self, number: u32, name: &str) -> &str {
        self.frame(number).one(&format!("efa_rdm.{name}"))
    }

    /// The frames are one transfer, by this subprotocol, and linked in this order.
    fn is_transfer(&self, subprotocol: &str, frames: &[u32]) {
        for (at, number) in frames.iter().enumerate() {
            let shown = self.frame(*number);
            let link = |name: &str, target: Option<u32>| {
                let name = format!("efa_rdm.transfer.{name}");
                let expected = target.map(|target| target.to_string());
                let found = shown.has(&name).then(|| shown.one(&name).to_owned());
                assert_eq!(found, expected, "{name} of frame {number}");
            };
            assert_eq!(
                self.value(*number, "transfer"),
                self.value(frames[0], "transfer"),
                "frame {number}"
            );
            assert_eq!(self.value(*number, "transfer.subprotocol"), subprotocol);
            link(
                "previous_in",
                at.checked_sub(1).map(|before| frames[before]),
            );
            link("next_in", frames.get(at + 1).copied());
            link("first_in", (at > 0).then(|| frames[0]));
            link(
                "last_in",
                (at + 1 < frames.len()).then(|| frames[frames.len() - 1]),
            );
        }
        let first = self.value(frames[0], "transfer");
        let count = self.0.iter().filter(|shown| {
            shown.has("efa_rdm.transfer") && shown.one("efa_rdm.transfer") == first
        });
        assert_eq!(count.count(), frames.len(), "frames of transfer {first}");
        if frames.len() > 1 {
            let duration: f64 = self
                .value(frames[frames.len() - 1], "transfer.duration")
                .parse()
                .unwrap();
            let expected = f64::from(frames[frames.len() - 1] - frames[0]) * 1e-6;
            assert!((duration - expected).abs() < 1e-9, "{duration}");
        }
    }

    fn is_response(&self, response: u32, request: u32) {
        assert_eq!(
            self.value(response, "transfer.request_in"),
            request.to_string()
        );
        let time: f64 = self
            .value(response, "transfer.response_time")
            .parse()
            .unwrap();
        assert!(
            (time - f64::from(response - request) * 1e-6).abs() < 1e-9,
            "{time}"
        );
    }

    /// The rules that frames break.
    fn broken_rules(&self) -> Vec<(u32, String)> {
        let frames = (1..).zip(&self.0);
        let broken =
            frames.flat_map(|(number, it)| it.broken_rules().map(move |rule| (number, rule)));
        broken.collect()
    }

    /// The data frames that the frame `granted` permits.
    fn is_window(&self, granted: u32, data: &[u32]) {
        assert_eq!(self.value(granted, "transfer.data_in"), data[0].to_string());
        for frame in data {
            let grant = self.value(*frame, "transfer.granted_in");
            assert_eq!(grant, granted.to_string(), "frame {frame}");
        }
    }

    fn is_flawless(&self) {
        assert_eq!(self.broken_rules(), []);
    }

    fn data(&self, number: u32) -> Vec<u8> {
        let text = self.value(number, "transfer.data").replace(':', "");
        let digits: Vec<_> = text
            .chars()
            .map(|c| c.to_digit(16).unwrap() as u8)
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()
    }
}

fn rdma(memory: RmaIov, offset: u32) -> Rdma {
    Rdma {
        remote: RemoteRange::new(memory.addr(), memory.key() as u32),
        total_length: memory.len() as u32,
        offset,
    }
}

/// B reads memory of A. Returns the frames of the request and of the responses with these parts.
fn read<const N: usize>(talk: &mut Talk, memory: RmaIov, parts: [&[u8]; N]) -> (u32, [u32; N]) {
    let sequence = talk.next_sequence(End::B);
    let request = FrameKind::RdmaReadRequest(rdma(memory, 0));
    let request = talk.request(End::B, request, sequence, false, b"");
    let mut offset = 0;
    let responses = parts.map(|part| {
        let response = FrameKind::RdmaReadResponse(rdma(memory, offset));
        offset += part.len() as u32;
        talk.request(End::A, response, sequence, false, part)
    });
    (request, responses)
}

#[test]
fn long_cts_messages_are_followed_to_the_end() {
    let Some(tshark) = Tshark::find() else { return };
    let message = pattern(300, 0);
    let mut talk = Talk::new();
    let request = LongctsRtm {
        options: End::A.unknown(),
        tag: Some(0xcafe),
        ..End::A.long_cts(0, 300, 7)
    };
    let rtm = talk.packet(End::A, &request, &message[..100]);
    let from_b = talk.handshake(End::B, ALL);
    let first_cts = talk.packet(End::B, &End::B.cts(7, 9, 150), b"");
    let from_a = talk.handshake(End::A, ALL);
    let late = talk.packet(End::A, &End::A.data(9, 200, 50), &message[200..250]);
    let early = talk.packet(End::A, &End::A.data(9, 100, 100), &message[100..200]);
    let next = talk.packet(End::A, &End::A.eager(1), b"another message");
    let second_cts = talk.packet(End::B, &End::B.cts(7, 9, 50), b"");
    let last = talk.packet(End::A, &End::A.data(9, 250, 50), &message[250..]);

    let followed = Followed::new(&tshark, talk);
    followed.is_transfer(
        "Long-CTS message",
        &[rtm, first_cts, late, early, second_cts, last],
    );
    followed.is_transfer("Handshake", &[from_b, from_a]);
    followed.is_transfer("Eager message", &[next]);
    followed.is_response(first_cts, rtm);
    assert_eq!(
        followed.value(rtm, "transfer.response_in"),
        first_cts.to_string()
    );
    followed.is_window(first_cts, &[late, early]);
    followed.is_window(second_cts, &[last]);
    assert!(!followed.frame(rtm).has("efa_rdm.transfer.acknowledged_in"));
    assert_eq!(followed.value(rtm, "transfer.length"), "300");
    assert_eq!(followed.data(last), message);
    assert_eq!(
        followed.value(from_b, "sender_version"),
        "as libfabric 2.7 or later"
    );
    followed.is_flawless();
}

#[test]
fn medium_messages_reorder_and_wait_their_turn() {
    let Some(tshark) = Tshark::find() else { return };
    let message = pattern(250, 0);
    let mut talk = Talk::new();
    let greeting = EagerRtw {
        options: End::A.unknown(),
        ..EagerRtw::default()
    };
    talk.packet(End::A, &greeting, b"");
    talk.handshake(End::B, ALL);
    talk.handshake(End::A, ALL);
    let segment = |offset: usize| -> Header {
        MediumRtm {
            msg_length: 250,
            ..End::B.medium(0, offset as u64)
        }
        .into()
    };
    let ahead = talk.packet(End::B, &End::B.eager(1), b"early");
    // The peer's first message would be number 0 only if the capture has its beginning.
    let second = talk.packet(End::B, &segment(100), &message[100..200]);
    let third = talk.packet(End::B, &segment(200), &message[200..]);
    let first = talk.packet(End::B, &segment(0), &message[..100]);

    let followed = Followed::new(&tshark, talk);
    followed.is_transfer("Medium message", &[second, third, first]);
    assert_eq!(followed.data(first), message);
    assert_eq!(followed.value(ahead, "transfer.order"), "1");
    assert_eq!(
        followed.value(ahead, "transfer.delivered_in"),
        second.to_string()
    );
    assert_eq!(followed.value(second, "transfer.order"), "0");
    assert_eq!(followed.broken_rules(), [(ahead, "msg-id-ahead".into())]);
}

#[test]
fn packets_show_both_ends_announced_features() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Talk::new();
    let first = EagerRtm::new(MsgId(0), End::A.unknown());
    let first = talk.packet(End::A, &first, b"x");
    let of_b = ExtraFeatures::RDMA_READ.union(ExtraFeatures::READ_NACK);
    let from_b = talk.handshake(End::B, of_b);
    let of_a = ExtraFeatures::RDMA_READ.union(ExtraFeatures::RUNTING_READ);
    let from_a = talk.handshake(End::A, of_a);
    let message = talk.packet(End::A, &End::A.eager(1), b"y");
    let (read, []) = read(&mut talk, RmaIov::new(1, 3, 2), []);

    let followed = Followed::new(&tshark, talk);
    let announced = |frame: u32| -> BTreeSet<String> {
        let fields = followed.frame(frame).fields("efa_rdm.negotiated.");
        fields
            .flat_map(|(name, values)| values.iter().map(move |value| format!("{name}={value}")))
            .map(|text| text.trim_start_matches("efa_rdm.negotiated.").to_owned())
            .collect()
    };
    let expect = |frame: u32, expected: &[String]| {
        let expected: BTreeSet<_> = expected.iter().cloned().collect();
        assert_eq!(announced(frame), expected, "frame {frame}");
    };
    let side = |end: &str, frame: u32, version: &str, features: &str| {
        vec![
            format!("{end}_handshake_in={frame}"),
            format!("{end}_version=as libfabric {version}"),
            format!("{end}_features={features}"),
            format!("{end}_device=0x0000efa1"),
        ]
    };
    let both = "features=rdma_read".to_owned();
    expect(first, &[]);
    let b = |end| side(end, from_b, "1.20 or later", "rdma_read, read_nack");
    let a = |end| side(end, from_a, "1.16 or later", "rdma_read, runting_read");
    expect(from_b, &b("sender"));
    expect(
        message,
        &[a("sender"), b("receiver"), vec![both.clone()]].concat(),
    );
    expect(read, &[b("sender"), a("receiver"), vec![both]].concat());
}

#[test]
fn message_ids_wrap() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Talk::new();
    let frames: Vec<_> = [0xffff_fffe, 0, 0xffff_ffff, 1]
        .into_iter()
        .map(|id| talk.packet(End::B, &End::B.eager(id), b"x"))
        .collect();
    let followed = Followed::new(&tshark, talk);
    let order: Vec<u64> = frames
        .iter()
        .map(|frame| followed.value(*frame, "transfer.order").parse().unwrap())
        .collect();
    assert_eq!(order, [0xffff_fffe, 1 << 32, 0xffff_ffff, (1 << 32) + 1]);
    assert_eq!(
        followed.broken_rules(),
        [(frames[1], "msg-id-ahead".into())]
    );
    assert_eq!(
        followed.value(frames[1], "transfer.delivered_in"),
        frames[2].to_string()
    );
}

#[test]
fn a_long_read_contains_its_rdma_reads() {
    let Some(tshark) = Tshark::find() else { return };
    let message = pattern(200, 0);
    let mut talk = Talk::acquainted(ALL);
    let iov = [RmaIov::new(0x7000_0000_1000, 200, 0x55)];
    let rtm = talk.packet(End::A, &End::A.long_read(0, 3, iov[0]), b"");
    let parts = [&message[..150], &message[150..]];
    let (request, [one, two]) = read(&mut talk, iov[0], parts);
    let eor = talk.packet(End::B, &End::B.eor(3), b"");
    // A read of other memory is no part of it.
    let other = RmaIov::new(0x7000_0000_1000, 200, 0x56);
    let (direct, []) = read(&mut talk, other, []);
    let sequence = talk.next_sequence(End::B) - 1;
    let answer = talk.answer(End::A, sequence, Status::RemoteBadAddress);

    let followed = Followed::new(&tshark, talk);
    followed.is_transfer("Long READ message", &[rtm, request, one, two, eor]);
    followed.is_response(eor, rtm);
    assert_eq!(followed.data(eor), message);
    followed.is_transfer("Direct read", &[direct, answer]);
    assert_eq!(
        followed.frame(one).one("efa.request_in"),
        request.to_string()
    );
    assert_eq!(
        followed.frame(two).one("efa.request_in"),
        request.to_string()
    );
    assert_eq!(
        followed.frame(request).one("efa.response_in"),
        one.to_string()
    );
    assert_eq!(
        followed.frame(answer).one("efa.request_in"),
        direct.to_string()
    );
    assert_eq!(followed.broken_rules(), [(answer, "device-error".into())]);
}

#[test]
fn a_refused_long_read_continues_as_long_cts() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Talk::acquainted(ALL);
    let request = End::A.long_read(0, 3, RmaIov::new(0x1000, 50, 1));
    let rtm = talk.packet(End::A, &request, b"");
    let nack = End::B.read_nack(3, 0);
    let nack = talk.packet(End::B, &nack, b"");
    let mut again = End::A.long_cts(0, 50, 3);
    again.options.flags = ReqFlags::READ_NACK;
    let again = talk.packet(End::A, &again, b"");
    let grant = talk.packet(End::B, &End::B.cts(3, 1, 50), b"");
    let all = talk.packet(End::A, &End::A.data(1, 0, 50), &pattern(50, 0));
    let followed = Followed::new(&tshark, talk);
    followed.is_transfer(
        "Long READ message, continued as long-CTS",
        &[rtm, nack, again, grant, all],
    );
    assert_eq!(followed.broken_rules(), [(nack, "read-refused".into())]);
}

#[test]
fn a_runting_read_is_one_transfer() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Talk::acquainted(ALL);
    let iov = [RmaIov::new(0x1000, 300, 1)];
    let segment = |offset| RuntreadRtm {
        msg_length: 300,
        send_id: SendId(3),
        seg_offset: offset,
        runt_length: 100,
        read_iov: RmaIovs::new(&iov).unwrap(),
        options: End::A.known(),
        ..RuntreadRtm::default()
    };
    let one = talk.packet(End::A, &segment(0), &[1; 60]);
    let two = talk.packet(End::A, &segment(60), &[2; 40]);
    let (read, [rest]) = read(&mut talk, RmaIov::new(0x1000 + 100, 200, 1), [&[3; 200]]);
    let eor = talk.packet(End::B, &End::B.eor(3), b"");
    let followed = Followed::new(&tshark, talk);
    followed.is_transfer("Runting read message", &[one, two, read, rest, eor]);
    assert_eq!(
        followed.data(eor),
        [&[1; 60][..], &[2; 40], &[3; 200]].concat()
    );
    followed.is_flawless();
}

#[test]
fn emulated_reads_and_atomics_lead_to_their_responses() {
    let Some(tshark) = Tshark::find() else { return };
    let memory = pattern(120, 0);
    let mut talk = Talk::acquainted(ALL);
    let iov = [RmaIov::new(0x1000, 120, 1)];
    let request = End::A.long_rtr(4, 80, iov[0]);
    let rtr = talk.packet(End::A, &request, b"");
    let response = End::B.read_rsp(4, 5, 50);
    let readrsp = talk.packet(End::B, &response, &memory[..50]);
    let window = talk.packet(End::B, &End::B.data(4, 50, 30), &memory[50..80]);
    let window_of_read = Cts {
        flags: CtsFlags::EMULATED_READ,
        ..End::A.cts(5, 4, 40)
    };
    let grant = talk.packet(End::A, &window_of_read, b"");
    let last = talk.packet(End::B, &End::B.data(4, 80, 40), &memory[80..]);

    let atomic = |kind, msg_id| -> Header {
        Rta {
            kind,
            msg_id: MsgId(msg_id),
            atomic_datatype: AtomicDatatype::UINT64,
            atomic_op: AtomicOp::CSWAP,
            rma_iov: RmaIovs::new(&iov[..1]).unwrap(),
            options: End::A.known(),
        }
        .into()
    };
    let compare = talk.packet(End::A, &atomic(RtaKind::Compare(RecvId(6)), 0), &[0; 240]);
    let old = End::B.atom_rsp(6, 8);
    let old = talk.packet(End::B, &old, &[0; 8]);
    let dc = talk.packet(End::A, &atomic(RtaKind::DcWrite(SendId(6)), 1), &[0; 120]);
    let receipt = End::B.receipt(6, 0);
    let receipt = talk.packet(End::B, &receipt, b"");

    let followed = Followed::new(&tshark, talk);
    followed.is_transfer(
        "Emulated long-CTS read",
        &[rtr, readrsp, window, grant, last],
    );
    followed.is_response(readrsp, rtr);
    followed.is_window(rtr, &[readrsp, window]);
    followed.is_window(grant, &[last]);
    assert_eq!(followed.data(last), memory);
    followed.is_transfer("Emulated compare atomic", &[compare, old]);
    followed.is_response(old, compare);
    followed.is_transfer("Emulated DC atomic", &[dc, receipt]);
    followed.is_response(receipt, dc);
    assert_eq!(
        followed.value(dc, "transfer.acknowledged_in"),
        receipt.to_string()
    );
    followed.is_flawless();
}

#[test]
fn writes_and_their_rdma_are_followed() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Talk::new();
    let trigger = EagerRtw {
        options: End::A.unknown(),
        ..EagerRtw::default()
    };
    let trigger = talk.packet(End::A, &trigger, b"");
    talk.handshake(End::B, ALL);
    talk.handshake(End::A, ALL);
    let target = [RmaIov::new(0x9000, 64, 2)];
    let source = [RmaIov::new(0x4000, 64, 3)];
    let request = LongreadRtw {
        rma_iov: RmaIovs::new(&target).unwrap(),
        msg_length: 64,
        send_id: SendId(8),
        read_iov: RmaIovs::new(&source).unwrap(),
        options: End::A.known(),
    };
    let rtw = talk.packet(End::A, &request, b"");
    let (read, [response]) = read(&mut talk, source[0], [&[1; 64]]);
    let eor = talk.packet(End::B, &End::B.eor(8), b"");
    let sequence = talk.next_sequence(End::A);
    let written = RmaIov::new(0x4000, 100, 3);
    let write = |offset| FrameKind::RdmaWrite(rdma(written, offset));
    let one = talk.request(End::A, write(0), sequence, false, &[1; 60]);
    let two = talk.request(End::A, write(60), sequence, false, &[2; 40]);

    let followed = Followed::new(&tshark, talk);
    followed.is_transfer("Request for a handshake", &[trigger]);
    followed.is_transfer("Emulated long-read write", &[rtw, read, response, eor]);
    followed.is_transfer("Direct write", &[one, two]);
    assert_eq!(followed.data(two), [&[1; 60][..], &[2; 40]].concat());
    followed.is_flawless();
}

#[test]
fn a_refused_packet_is_linked_to_its_retry() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Talk::acquainted(ALL);
    let packet = End::A.eager(0).to_packet(b"");
    let sequence = talk.next_sequence(End::A);
    let first = talk.request(End::A, FrameKind::Send, sequence, false, &packet);
    let refusal = talk.answer(End::B, sequence, Status::RemoteRnr);
    let second = talk.request(End::A, FrameKind::Send, sequence, false, &packet);
    let third = talk.request(End::A, FrameKind::Send, sequence, true, &packet);
    let next = talk.packet(End::A, &End::A.eager(1), b"");

    let followed = Followed::new(&tshark, talk);
    followed.is_transfer("Eager message", &[first, refusal, second, third]);
    followed.is_transfer("Eager message", &[next]);
    for retry in [second, third] {
        assert_eq!(followed.frame(retry).one("efa.retry_of"), first.to_string());
        assert_eq!(followed.value(retry, "transfer.retries"), "2");
    }
    assert_eq!(
        followed.broken_rules(),
        [
            (refusal, "receiver-not-ready".into()),
            (third, "retransmission".into())
        ]
    );
}

#[test]
fn retransmissions_are_not_second_messages() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Talk::acquainted(ALL);
    let first = talk.packet(End::A, &End::A.eager(0), b"x");
    // The device repeats it, and then fails.
    let sequence = talk.next_sequence(End::A) - 1;
    let refusal = talk.answer(End::B, sequence, Status::RemoteRnr);
    let again = talk.packet(End::A, &End::A.eager(0), b"x");
    let next = talk.packet(End::A, &End::A.eager(1), b"x");
    // Two windows of the same size are not retries of each other.
    let long = End::A.long_cts(2, 60, 7);
    let rtm = talk.packet(End::A, &long, &[0; 20]);
    let window = End::B.cts(7, 1, 20);
    let first_window = talk.packet(End::B, &window, b"");
    let second_window = talk.packet(End::B, &window, b"");

    let followed = Followed::new(&tshark, talk);
    followed.is_transfer("Eager message", &[first, refusal, again]);
    followed.is_transfer("Eager message", &[next]);
    followed.is_transfer("Long-CTS message", &[rtm, first_window, second_window]);
    assert_eq!(followed.frame(again).one("efa.retry_of"), first.to_string());
    assert!(!followed.frame(second_window).has("efa.retry_of"));
    assert_eq!(
        followed.broken_rules(),
        [(refusal, "receiver-not-ready".into())]
    );
}

#[test]
fn user_receive_queue_pairs_get_headerless_messages() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Talk::new();
    let handshake = Handshake {
        extra_info: ALL.into(),
        device_version: Some(0xefa1),
        user_recv_qp: Some(UserRecvQp {
            qpn: 77,
            qkey: Qkey(1),
        }),
        ..Handshake::default()
    };
    talk.packet(End::B, &handshake, b"");
    let header = efa_capture::frame::Repr {
        destination_qpn: efa_core::address::Qpn(77),
        qkey: Qkey(1),
        ..talk.header(End::A, FrameKind::Send, 5)
    };
    let plain = talk.frame(End::A, header, b"A\x04\x00\x00!");
    let followed = Followed::new(&tshark, talk);
    followed.is_transfer("Message without header", &[plain]);
    assert!(!followed.frame(plain).has("efa_rdm.type"));
    assert_eq!(followed.frame(plain).one("efa.data"), "41:04:00:00:21");
}

#[test]
fn both_ends_of_merged_captures_are_separate() {
    let Some(tshark) = Tshark::find() else { return };
    // The same message at its sender and, a little later, at its receiver: no id is repeated.
    use efa_capture::frame::{Frame, Repr};
    use efa_capture::{CaptureTap, Direction, Interface, InterfaceId, Writer};
    let mut writer = Writer::new(Vec::new()).unwrap();
    for (end, host) in [(End::A, "a"), (End::B, "b")] {
        let gid = end.address().gid;
        writer
            .add_interface(&Interface::new(host, "t", gid))
            .unwrap();
    }
    let (a, b) = (End::A.address(), End::B.address());
    for id in 0..3_u32 {
        let packet = End::A.eager(id).to_packet(b"");
        let header = Repr {
            source_qpn: a.qpn,
            destination_qpn: b.qpn,
            qkey: b.qkey,
            // Not the first messages of their queue pair: the capture begins later.
            sequence: 1000 + id,
            ..Repr::new(FrameKind::Send, packet.len())
        };
        let frame = Frame {
            source: a.gid,
            destination: b.gid,
            header,
            payload: &packet,
        };
        for (interface, direction) in [(0, Direction::Outbound), (1, Direction::Inbound)] {
            let time = std::time::Duration::from_nanos(u64::from(2 * id + interface));
            writer.frame(InterfaceId(interface), time, direction, &frame);
        }
    }
    let capture = writer.finish(std::time::Duration::ZERO).unwrap();
    let followed = Followed(tshark.dissect_twice(&capture));
    let transfers: BTreeSet<_> = (1..=6)
        .map(|frame| followed.value(frame, "transfer"))
        .collect();
    assert_eq!(transfers.len(), 6);
    for frame in 1..=6 {
        assert_eq!(followed.frame(frame).one("efa.conversation"), "0");
    }
    followed.is_flawless();
}

/// A conversation that breaks each rule at least once; the comments of a frame are the rules that
/// it breaks. `mergecap -a` appends frames to it, `editcap -a FRAME:RULE` adds a comment.
const RULES_BROKEN: &[u8] = include_bytes!("../captures/rules-broken.pcapng");

/// The frames of [`RULES_BROKEN`], and the rules that they break.
fn rules_broken() -> Vec<(u32, String)> {
    let mut reader = Reader::new(RULES_BROKEN, "rules-broken").unwrap();
    let (mut broken, mut number) = (Vec::new(), 0);
    while let Some(frame) = reader.next_frame().unwrap() {
        number += 1;
        broken.extend(frame.comments.iter().map(|rule| (number, rule.to_string())));
    }
    broken
}

#[test]
fn every_rule_is_broken_and_found_once() {
    let Some(tshark) = Tshark::find() else { return };
    let followed = Followed(tshark.dissect_twice(RULES_BROKEN));
    let mut expected = rules_broken();
    expected.sort();
    let mut found = followed.broken_rules();
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn every_rule_of_the_dissector_is_tested() {
    // The rules of tag matching are tested in `tag_matching`.
    let ids: BTreeSet<_> = RULES
        .iter()
        .filter(|rule| rule.is_dissected() && rule.chapter != Chapter::TagMatching)
        .map(|rule| rule.id)
        .collect();
    let broken = rules_broken();
    let mut tested: BTreeSet<_> = broken.iter().map(|(_, rule)| rule.as_str()).collect();
    // Frames that the writer of captures cannot make; tested with mutated frames.
    tested.insert("transport-form");
    assert_eq!(ids, tested);
}
