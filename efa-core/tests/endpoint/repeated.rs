//! Every packet of a peer in every subprotocol, once and twice, and with any operation ids.
//!
//! A duplicate has no effect. Wherever the protocol lets an endpoint recognise a duplicate, it is
//! refused, counted and reported. Operation ids of peers are opaque 32-bit numbers: libfabric 2.7
//! puts the generation of a slot into them.

use efa_core::endpoint::*;
use efa_core::nic::Access;
use efa_core::wire::{
    AtomRsp, AtomicDatatype, AtomicOp, Cts, CtsData, EagerRtw, Eor, ExtraFeatures, Header,
    LongctsRtm, LongctsRtw, LongreadRtm, LongreadRtw, MediumRtm, MsgId, ReadNack, ReadRsp, Receipt,
    RecvId, Repr, ReqFlags, RmaIov, RmaIovs, Rta, RtaKind, Rtr, RtrKind, RuntreadRtm, SendId,
};

use crate::script::{MODERN, Script, config, memory, peer_memory, sum, traits, traits_with};
use efa_testing::nic::{DeviceTraits, MEMORY};

/// Operation ids: dense ones, as in libfabric up to 2.6, and ids of 2.7, with the index in bits
/// 21:0 and the generation in 29:22. No release uses the others yet.
const IDS: [u32; 6] = [0, 1, 0x3fc0_0007, 0x2abf_ffff, 0x7fff_ffff, u32::MAX];

/// A peer whose operations have this id, and whose packets come once or twice.
struct Peer {
    script: Script,
    peer: PeerId,
    key: u64,
    id: u32,
    twice: bool,
}

/// The outcome of a duplicate packet.
enum DuplicateOutcome {
    Refused(PacketError),
    /// The protocol has no means to recognise the duplicate: it is treated as another request.
    Unknown,
}
use DuplicateOutcome::{Refused, Unknown};

impl Peer {
    fn new(id: u32, twice: bool) -> Self {
        Peer::with(id, twice, MODERN, traits())
    }

    fn with(id: u32, twice: bool, features: ExtraFeatures, traits: DeviceTraits) -> Self {
        let mut script = Script::with(config(), traits);
        let peer = script.insert_peer();
        script.shake_hands(features);
        // The peer repeats its HANDSHAKE.
        script.shake_hands(features);
        script.expect_handshake();
        script.expect_silence();
        let memory = memory(0, 1 << 15).memory;
        let key = script.dut.register(memory, Access::all());
        Peer {
            key: key.map_or(0, |region| region.remote_key.0),
            script,
            peer,
            id,
            twice,
        }
    }

    /// A packet arrives, and perhaps again before anything else happens.
    fn says(&mut self, header: &impl Repr, payload: &[u8], second: DuplicateOutcome) {
        let packet = header.to_packet(payload);
        for _ in 0..1 + usize::from(self.twice) {
            let source = self.script.source();
            assert!(self.script.network.inject(0, source, &packet));
        }
        let before = self.script.dut.statistics().packets_refused;
        self.script.progress();
        if let (Refused(reason), true) = (second, self.twice) {
            self.script.expect_refusal(reason);
            let refused = self.script.dut.statistics().packets_refused - before;
            assert_eq!(refused, 1);
        }
        assert_eq!(self.script.dut.poll_event(), None);
    }

    fn iov(&self, length: u64) -> RmaIovs {
        RmaIovs::new(&[RmaIov::new(MEMORY, length, self.key)]).unwrap()
    }

    fn received(&mut self, length: u64) {
        assert_eq!(self.script.completion().length, length);
        self.script.expect_no_completion();
    }

    /// The endpoint under test has released all state of its operations.
    fn ends(mut self) {
        self.script.expect_silence();
        self.script.expect_no_completion();
        let usage = self.script.dut.usage();
        let left = (usage.inbound, usage.outbound, usage.assemblies);
        assert_eq!(left, (0, 0, 0), "{usage:?}");
    }

    fn takes_receipt(&mut self, message: u32) {
        let Receipt {
            send_id: id,
            msg_id,
            ..
        } = self.script.expect_header();
        assert_eq!((id, msg_id), (SendId(self.id), MsgId(message)));
    }

    fn takes_eor(&mut self) {
        let id = self.script.expect_header::<Eor>().send_id;
        assert_eq!(id, SendId(self.id));
    }

    /// Sends the granted data in segments of 300 bytes, from `offset` to `end`. The second segment
    /// of each window comes first.
    fn fills_windows(&mut self, mut offset: u64, end: u64) {
        while offset < end {
            let Cts {
                send_id,
                recv_id,
                recv_length: window,
                ..
            } = self.script.expect_header();
            assert_eq!(send_id, SendId(self.id));
            let starts: Vec<u64> = (offset..offset + window).step_by(300).collect();
            let mut order: Vec<u64> = starts.clone();
            let pair = order.len().min(2);
            order[..pair].reverse();
            for (count, start) in (1..).zip(order) {
                let length = 300.min(offset + window - start);
                let data = self.script.data(recv_id, start, length);
                let bytes = pattern(start, length);
                let is_last = count == starts.len() && offset + window == end;
                self.says(
                    &data,
                    &bytes,
                    Refused(match is_last {
                        true => PacketError::StaleOperation { id: recv_id.0 },
                        false => PacketError::RepeatedData { offset: start },
                    }),
                );
            }
            offset += window;
        }
        let received = self.script.network.memory(0, MEMORY, end as usize);
        assert_eq!(received, pattern(0, end));
    }

    /// Receives the data of an operation whose request carried `sent` bytes, granting 1000 bytes at
    /// a time.
    fn grants(&mut self, send_id: SendId, mut sent: u64, length: u64) {
        while sent < length {
            let window = 1000.min(length - sent);
            let cts = self.script.cts(send_id, self.id, window);
            let reason = PacketError::UnexpectedWindow { id: send_id.0 };
            self.says(&cts, &[], Refused(reason));
            let end = sent + window;
            while sent < end {
                let CtsData {
                    recv_id,
                    seg_offset: offset,
                    seg_length: length,
                    ..
                } = self.script.expect_header();
                assert_eq!((recv_id, offset), (RecvId(self.id), sent));
                sent += length;
            }
            assert_eq!(sent, end);
        }
    }
}

fn pattern(offset: u64, length: u64) -> Vec<u8> {
    efa_testing::pattern((offset + length) as usize, 0).split_off(offset as usize)
}

/// A message is past when all of it was received.
fn past(msg_id: u32) -> DuplicateOutcome {
    Refused(PacketError::AlreadyProcessed { msg_id })
}

fn for_each(look: impl Fn(Peer)) {
    for id in IDS {
        for twice in [false, true] {
            look(Peer::new(id, twice));
        }
    }
}

#[test]
fn eager_messages() {
    for_each(|mut peer| {
        peer.script.recv(0, 100, 1);
        let message = peer.script.eager(0);
        peer.says(&message, &[7; 100], past(0));
        peer.received(100);
        // An unexpected one, and an earlier one.
        let mut message = peer.script.eager(2);
        message.receipt = Some(SendId(peer.id));
        // Its second copy waits with it, and is refused when its turn has come.
        let packet = message.to_packet(&[8; 50]);
        for _ in 0..1 + usize::from(peer.twice) {
            peer.script.inject(&packet);
        }
        let message = peer.script.eager(1);
        let twice = core::mem::take(&mut peer.twice);
        if twice {
            peer.script.send(&message, &[9; 60]);
            peer.script
                .expect_refusal(PacketError::AlreadyProcessed { msg_id: 2 });
        } else {
            peer.says(&message, &[9; 60], Unknown);
        }
        peer.twice = twice;
        for (length, is_answered) in [(60, false), (50, true)] {
            peer.script.recv(0, 100, 1);
            peer.received(length);
            if is_answered {
                peer.takes_receipt(2);
            }
        }
        peer.ends();
    });
}

/// Segments that come in any order, for a receive that waits and for one that is posted later.
#[test]
fn medium_messages() {
    for_each(|mut peer| {
        for (msg_id, posted_after) in [(0, 0), (1, 1), (2, 3)] {
            let segments = [(400, 200), (0, 400), (600, 300)];
            for (count, (start, length)) in segments.into_iter().enumerate() {
                if posted_after == count {
                    peer.script.recv(0, 1000, 1);
                }
                let header = MediumRtm {
                    receipt: Some(SendId(peer.id)),
                    ..peer.script.medium(msg_id, 900, start)
                };
                let bytes = pattern(start, length);
                peer.says(
                    &header,
                    &bytes,
                    match (count, posted_after) {
                        (2, 0..=2) => past(msg_id),
                        _ => Refused(PacketError::RepeatedData { offset: start }),
                    },
                );
            }
            if posted_after == 3 {
                peer.script.recv(0, 1000, 1);
            }
            peer.received(900);
            assert_eq!(peer.script.network.memory(0, MEMORY, 900), pattern(0, 900));
            peer.takes_receipt(msg_id);
        }
        peer.ends();
    });
}

#[test]
fn long_cts_messages() {
    for_each(|mut peer| {
        peer.script.recv(0, 5000, 1);
        let request = LongctsRtm {
            msg_length: 5000,
            send_id: SendId(peer.id),
            delivery_complete: true,
            options: peer.script.by_connid(),
            ..LongctsRtm::default()
        };
        peer.says(&request, &pattern(0, 500), past(0));
        peer.fills_windows(500, 5000);
        peer.received(5000);
        peer.takes_receipt(0);
        peer.ends();
    });
}

#[test]
fn messages_that_are_read() {
    for_each(|mut peer| {
        peer.script.recv(0, 5000, 1);
        let request = LongreadRtm {
            msg_length: 5000,
            send_id: SendId(peer.id),
            read_iov: RmaIovs::new(&[RmaIov::new(0x5000, 5000, 9)]).unwrap(),
            options: peer.script.by_connid(),
            ..LongreadRtm::default()
        };
        peer.says(&request, &[], past(0));
        peer.script.network.swallow(0);
        peer.takes_eor();
        peer.received(5000);
        // The first 900 bytes in packets.
        peer.script.recv(0, 5000, 1);
        for start in [600, 0, 300] {
            let request = RuntreadRtm {
                msg_id: MsgId(1),
                msg_length: 5000,
                send_id: SendId(peer.id),
                seg_offset: start,
                runt_length: 900,
                read_iov: RmaIovs::new(&[RmaIov::new(0x5000, 5000, 9)]).unwrap(),
                options: peer.script.by_connid(),
                ..RuntreadRtm::default()
            };
            let reason = PacketError::RepeatedData { offset: start };
            peer.says(&request, &pattern(start, 300), Refused(reason));
        }
        peer.script.network.swallow(0);
        peer.takes_eor();
        peer.received(5000);
        assert_eq!(peer.script.network.memory(0, MEMORY, 900), pattern(0, 900));
        peer.ends();
    });
}

#[test]
fn messages_that_cannot_be_read() {
    let unable = traits_with(|traits| traits.max_regions = 0);
    for (id, twice) in IDS.into_iter().flat_map(|id| [(id, false), (id, true)]) {
        let mut peer = Peer::with(id, twice, MODERN, unable.clone());
        peer.script.recv(0, 5000, 1);
        let request = LongreadRtm {
            msg_length: 5000,
            send_id: SendId(peer.id),
            read_iov: RmaIovs::new(&[RmaIov::new(0x5000, 5000, 9)]).unwrap(),
            options: peer.script.by_connid(),
            ..LongreadRtm::default()
        };
        peer.says(&request, &[], past(0));
        let send_id = peer.script.expect_header::<ReadNack>().send_id;
        assert_eq!(send_id, SendId(peer.id));
        let mut options = peer.script.by_connid();
        options.flags = ReqFlags::READ_NACK;
        let answer = LongctsRtm {
            msg_length: 5000,
            send_id: SendId(peer.id),
            options,
            ..LongctsRtm::default()
        };
        peer.says(&answer, &[], past(0));
        peer.fills_windows(0, 5000);
        peer.received(5000);
        peer.ends();
    }
}

/// Requests without a `msg_id`: only the sender's operation id identifies a request, and the sender
/// may reuse it at once. A duplicate is carried out like the original.
#[test]
fn writes() {
    for_each(|mut peer| {
        let request = EagerRtw {
            rma_iov: peer.iov(500),
            receipt: Some(SendId(peer.id)),
            options: peer.script.by_connid(),
        };
        peer.says(&request, &pattern(0, 500), Unknown);
        for _ in 0..1 + usize::from(peer.twice) {
            peer.takes_receipt(0);
        }
        assert_eq!(peer.script.network.memory(0, MEMORY, 500), pattern(0, 500));
        peer.script.network.fill(0, MEMORY, &[0; 500]);
        let request = LongreadRtw {
            rma_iov: peer.iov(500),
            msg_length: 500,
            send_id: SendId(peer.id),
            read_iov: RmaIovs::new(&[RmaIov::new(0x5000, 500, 9)]).unwrap(),
            options: peer.script.by_connid(),
        };
        peer.says(&request, &[], Unknown);
        for _ in 0..1 + usize::from(peer.twice) {
            peer.script.network.swallow(0);
        }
        for _ in 0..1 + usize::from(peer.twice) {
            peer.takes_eor();
        }
        let request = LongctsRtw {
            rma_iov: peer.iov(5000),
            msg_length: 5000,
            send_id: SendId(peer.id),
            credit_request: 2,
            delivery_complete: true,
            options: peer.script.by_connid(),
        };
        // Data of one operation does not reach the other: only the first is played.
        let twice = core::mem::take(&mut peer.twice);
        peer.says(&request, &pattern(0, 500), Unknown);
        peer.twice = twice;
        peer.fills_windows(500, 5000);
        peer.takes_receipt(0);
        peer.ends();
    });
}

#[test]
fn reads() {
    for_each(|mut peer| {
        peer.script.network.fill(0, MEMORY, &pattern(0, 5000));
        for (kind, length) in [(RtrKind::Short, 500), (RtrKind::Longcts, 5000)] {
            let request = Rtr {
                kind,
                rma_iov: peer.iov(length),
                msg_length: length,
                recv_id: RecvId(peer.id),
                recv_length: 500,
                options: peer.script.by_connid(),
            };
            let twice = peer.twice;
            peer.twice &= kind == RtrKind::Short;
            peer.says(&request, &[], Unknown);
            let answers = 1 + usize::from(peer.twice);
            peer.twice = twice;
            for _ in 0..answers {
                let response = peer.script.expect_header::<ReadRsp>();
                let (recv_id, send_id, first) =
                    (response.recv_id, response.send_id, response.seg_length);
                assert_eq!((recv_id, first), (RecvId(peer.id), 500));
                peer.grants(send_id, 500, length);
            }
        }
        peer.ends();
    });
}

#[test]
fn atomics() {
    for_each(|mut peer| {
        let recv_id = RecvId(peer.id);
        let kinds = [
            RtaKind::Write,
            RtaKind::DcWrite(SendId(peer.id)),
            RtaKind::Fetch(recv_id),
            RtaKind::Compare(recv_id),
        ];
        for (msg_id, kind) in (0..).zip(kinds) {
            let request = Rta {
                kind,
                msg_id: MsgId(msg_id),
                atomic_datatype: AtomicDatatype::UINT64,
                atomic_op: match kind {
                    RtaKind::Compare(_) => AtomicOp::CSWAP,
                    _ => AtomicOp::SUM,
                },
                rma_iov: peer.iov(8),
                options: peer.script.by_connid(),
            };
            let operand = match kind {
                RtaKind::Compare(_) => [7_u64, 21].map(u64::to_le_bytes).concat(),
                _ => 7_u64.to_le_bytes().to_vec(),
            };
            peer.says(&request, &operand, past(msg_id));
            match kind {
                RtaKind::Write => {}
                RtaKind::DcWrite(_) => peer.takes_receipt(0),
                RtaKind::Fetch(_) | RtaKind::Compare(_) => {
                    let id = peer.script.expect_header::<AtomRsp>().recv_id;
                    assert_eq!(id, recv_id);
                }
            }
        }
        // Each operand was added once, and the last operation compared with the final sum.
        let value = peer.script.network.memory(0, MEMORY, 8);
        assert_eq!(value, 7_u64.to_le_bytes());
        peer.ends();
    });
}

fn stale(id: u32) -> DuplicateOutcome {
    Refused(PacketError::StaleOperation { id })
}

#[test]
fn answers_to_messages_and_writes() {
    for_each(|mut peer| {
        let connid = peer.script.connid();
        let dc = OperationFlags::DELIVERY_COMPLETE;
        // Eager, medium and long-CTS with a RECEIPT.
        for (msg_id, length) in [(0, 100), (1, 1900), (2, 5000)] {
            peer.script.try_send(peer.peer, length, dc, 1).unwrap();
            let mut sent = 0;
            let mut send_id = SendId(0);
            while sent < length as u64 {
                let (id, is_window) = peer.script.expect(|packet| {
                    sent += packet.payload.length as u64;
                    match packet.header {
                        Header::EagerRtm(eager) => (eager.receipt.unwrap(), false),
                        Header::MediumRtm(medium) => (medium.receipt.unwrap(), false),
                        Header::LongctsRtm(long) => (long.send_id, true),
                        other => panic!("{other:?}"),
                    }
                });
                send_id = id;
                if is_window {
                    peer.grants(id, sent, length as u64);
                    sent = length as u64;
                }
            }
            let receipt = Receipt {
                send_id,
                msg_id: MsgId(msg_id),
                connid,
                ..Receipt::default()
            };
            peer.says(&receipt, &[], stale(send_id.0));
            peer.received(length as u64);
        }
        peer.ends();
    });
}

#[test]
fn answers_to_messages_that_are_read() {
    let features = MODERN | ExtraFeatures::RDMA_READ;
    for (id, twice) in IDS.into_iter().flat_map(|id| [(id, false), (id, true)]) {
        let mut peer = Peer::with(id, twice, features, traits());
        let connid = peer.script.connid();
        for refused in [false, true] {
            let length = 20_000;
            let none = OperationFlags::empty();
            peer.script.try_send(peer.peer, length, none, 1).unwrap();
            let send_id = peer.script.expect_header::<LongreadRtm>().send_id;
            if refused {
                let nack = ReadNack {
                    send_id,
                    recv_id: RecvId(id),
                    connid,
                    ..ReadNack::default()
                };
                peer.says(&nack, &[], stale(send_id.0));
                let again = peer.script.expect_header::<LongctsRtm>().send_id;
                peer.grants(again, 0, length as u64);
            } else {
                let eor = Eor {
                    send_id,
                    recv_id: RecvId(id),
                    connid,
                    ..Eor::default()
                };
                peer.says(&eor, &[], stale(send_id.0));
            }
            peer.received(length as u64);
        }
        peer.ends();
    }
}

#[test]
fn answers_to_reads_and_atomics() {
    for_each(|mut peer| {
        let connid = peer.script.connid();
        for length in [500, 5000] {
            peer.script
                .read(
                    peer.peer,
                    memory(0, length),
                    &[peer_memory(0x7000, length as u64, 5)],
                    1,
                )
                .unwrap();
            let rtr = peer.script.expect_header::<Rtr>();
            let (recv_id, granted) = (rtr.recv_id, u64::from(rtr.recv_length));
            let first = granted.min(900);
            let response = ReadRsp {
                connid,
                recv_id,
                send_id: SendId(peer.id),
                seg_length: first,
                ..ReadRsp::default()
            };
            peer.says(&response, &pattern(0, first), stale(recv_id.0));
            // The rest of the first window.
            let mut offset = first;
            while offset < granted {
                let data = peer.script.data(recv_id, offset, 900.min(granted - offset));
                let bytes = pattern(offset, data.seg_length);
                let reason = PacketError::RepeatedData { offset };
                peer.says(&data, &bytes, Refused(reason));
                offset += data.seg_length;
            }
            peer.fills_windows(granted, length as u64);
            peer.received(length as u64);
        }
        let fetch = peer.script.dut.atomic(AtomicArgs {
            kind: AtomicKind::Fetch {
                result: &[memory(64, 8)],
            },
            ..sum(peer.peer, &[memory(0, 8)], &[peer_memory(0x7000, 8, 5)])
        });
        fetch.unwrap();
        let recv_id = peer.script.expect(|packet| match packet.header {
            Header::Rta(Rta {
                kind: RtaKind::Fetch(recv_id),
                ..
            }) => recv_id,
            other => panic!("{other:?}"),
        });
        let response = AtomRsp {
            connid,
            recv_id,
            seg_length: 8,
            ..AtomRsp::default()
        };
        peer.says(&response, &[3; 8], stale(recv_id.0));
        peer.received(8);
        assert_eq!(peer.script.network.memory(0, MEMORY + 64, 8), [3; 8]);
        peer.ends();
    });
}

/// A second copy of a request that opens windows is a second operation of the peer, whose windows
/// have another `recv_id`. The data goes to the first.
#[test]
fn data_stays_with_one_operation_of_a_peer() {
    let mut peer = Peer::new(3, false);
    let none = OperationFlags::empty();
    peer.script.try_send(peer.peer, 3000, none, 1).unwrap();
    let (LongctsRtm { send_id, .. }, sent) = peer.script.expect_carrying();
    let window = peer.script.cts(send_id, 3, 500);
    peer.says(&window, &[], Unknown);
    let data = |peer: &mut Peer| {
        let data = peer.script.expect_header::<CtsData>();
        (data.recv_id, data.seg_offset, data.seg_length)
    };
    assert_eq!(data(&mut peer), (RecvId(3), sent, 500));
    peer.script.grant(send_id, 4, 500);
    peer.script
        .expect_refusal(PacketError::UnexpectedWindow { id: send_id.0 });
    peer.script.expect_silence();
    let rest = 3000 - sent - 500;
    let window = peer.script.cts(send_id, 3, rest);
    peer.says(&window, &[], Unknown);
    let mut at = sent + 500;
    while at < 3000 {
        let (recv_id, offset, length) = data(&mut peer);
        assert_eq!((recv_id, offset), (RecvId(3), at));
        at += length;
    }
    peer.received(3000);
    peer.ends();
}
