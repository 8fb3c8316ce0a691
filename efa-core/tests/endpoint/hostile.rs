//! Stale, contradictory, malformed and made-up packets.

use efa_core::endpoint::*;
use efa_core::nic::{Domain, Status};
use efa_core::wire::fields::fields_of;
use efa_core::wire::{
    AtomRsp, Connid, Cts, CtsData, EagerRtm, EagerRtw, Eor, ExtraFeatures, LongctsRtm, MediumRtm,
    MsgId, OpeType, PeerError, ReadNack, ReadRsp, Receipt, RecvId, Repr, ReqOptions, RmaIov,
    RmaIovs, RuntreadRtm, SendId,
};

use crate::abandoned::{PEER_ERRORS, Subprotocol};
use crate::script::{MODERN, Script, connected, memory, peer_memory, traits};
use efa_testing::nic::{DeviceTraits, MEMORY};

#[test]
fn packets_for_unknown_operations_are_refused() {
    let (mut script, _) = connected();
    let connid = script.connid();
    let ids = [0, 1, 0x0010_0000, u32::MAX];
    for id in ids {
        let (send_id, recv_id) = (SendId(id), RecvId(id));
        let packets = [
            Cts {
                connid,
                send_id,
                recv_length: 1,
                ..Cts::default()
            }
            .to_packet(&[]),
            CtsData {
                connid,
                recv_id,
                ..CtsData::default()
            }
            .to_packet(&[]),
            ReadRsp {
                connid,
                recv_id,
                ..ReadRsp::default()
            }
            .to_packet(&[]),
            Eor {
                connid,
                send_id,
                ..Eor::default()
            }
            .to_packet(&[]),
            AtomRsp {
                connid,
                recv_id,
                ..AtomRsp::default()
            }
            .to_packet(&[]),
            Receipt {
                connid,
                send_id,
                ..Receipt::default()
            }
            .to_packet(&[]),
            ReadNack {
                connid,
                send_id,
                ..ReadNack::default()
            }
            .to_packet(&[]),
            PeerError {
                connid,
                op_id: id,
                emitter_ope_type: OpeType::RXE,
                ..PeerError::default()
            }
            .to_packet(&[]),
        ];
        for packet in packets {
            script.inject(&packet);
            assert_eq!(
                script.refusal(),
                PacketError::StaleOperation { id },
                "{packet:?}"
            );
        }
    }
    // EOR of libfabric 1.11 ends before the connection id.
    let eor = Eor {
        send_id: SendId(5),
        ..Eor::default()
    }
    .to_packet(&[]);
    script.inject(&eor[..12]);
    script.expect_refusal(PacketError::StaleOperation { id: 5 });
}

#[test]
fn operations_reject_other_peers_and_stale_packets() {
    let (mut script, peer) = connected();
    script.send_message(peer, 3000, 1);
    let send_id = script.expect_header::<LongctsRtm>().send_id;
    // Another endpoint of the same host guesses the id.
    let other = script.insert_other_peer();
    let address = script.dut.lookup_address(other).unwrap();
    let mut source = script.source();
    source.qpn = address.qpn;
    let guess = Cts {
        connid: Some(address.qkey.into()),
        ..script.cts(send_id, 3, 100)
    };
    script.inject_from(source, &guess.to_packet(&[]));
    script.expect_refusal(PacketError::StaleOperation { id: send_id.0 });
    // The right one requests more than there is, or nothing.
    for recv_length in [0, 3001, u64::MAX] {
        script.grant(send_id, 3, recv_length);
        script.expect_refusal(PacketError::SizeMismatch);
    }
    // Handshakes of the other peer are not tested here.
    script.expect_handshake();
    let mut left = 3000 - 1024 + u64::from(script.long_cts_header());
    while left > 0 {
        let window = left.min(500);
        script.grant(send_id, 3, window);
        let data = script.expect_header::<CtsData>();
        assert_eq!(data.seg_offset, 3000 - left);
        assert_eq!(data.recv_id, RecvId(3));
        assert_eq!(data.connid.map(|connid| connid.0), Some(0x1111_1111));
        let length = data.seg_length;
        assert_eq!(length, window);
        left -= window;
    }
    assert_eq!(script.completion().context, 1);
    // The same when another operation has reused its slot.
    for _ in 0..2 {
        script.grant(send_id, 3, 100);
        script.expect_refusal(PacketError::StaleOperation { id: send_id.0 });
        let none = OperationFlags::empty();
        script.try_send(peer, 3000, none, 2).unwrap();
    }
}

impl Script {
    /// Length of the header of an untagged LONGCTS request with a connection id.
    fn long_cts_header(&self) -> u16 {
        let header = LongctsRtm {
            options: ReqOptions::with_connid(Connid(0)),
            ..LongctsRtm::default()
        };
        header.header_len() as u16
    }
}

#[test]
fn data_that_was_not_granted_ends_the_receive() {
    let (mut script, _) = connected();
    let receive = |script: &mut Script, msg_id| {
        script.recv(0, 4096, 7);
        script.send(
            &LongctsRtm {
                msg_id: MsgId(msg_id),
                msg_length: 4096,
                send_id: SendId(77),
                options: script.by_connid(),
                ..LongctsRtm::default()
            },
            &[1; 96],
        );
        let cts = script.expect_header::<Cts>();
        assert_eq!(cts.send_id, SendId(77));
        assert_eq!(cts.recv_length, 2 * (1024 - 32));
        assert!(cts.flags.is_empty());
        cts.recv_id
    };
    // One byte more than was granted.
    let recv_id = receive(&mut script, 0);
    script.send_data(recv_id, 96, &[2; 992]);
    script.send_data(recv_id, 96 + 992, &[2; 500]);
    script.send_data(recv_id, 96 + 1492, &[2; 493]);
    script.expect_refusal(PacketError::SizeMismatch);
    assert_eq!(script.error().failure.errno, Errno::EIO);
    // Beyond the end of the message.
    let recv_id = receive(&mut script, 1);
    script.send_data(recv_id, 4000, &[2; 97]);
    script.expect_refusal(PacketError::SizeMismatch);
    assert_eq!(script.error().failure.errno, Errno::EIO);
    // The old operation has ended.
    script.send_data(recv_id, 96, &[2; 8]);
    script.expect_refusal(PacketError::StaleOperation { id: recv_id.0 });
}

/// Packets of one message that contradict each other about the lengths that are sent and read.
#[test]
fn a_message_both_sent_and_read_fails() {
    let source = [RmaIov::new(0x5000, 1000, 9)];
    let runt = |script: &Script, msg_id, runt_length| RuntreadRtm {
        msg_id: MsgId(msg_id),
        msg_length: 1000,
        send_id: SendId(5),
        runt_length,
        read_iov: RmaIovs::new(&source).unwrap(),
        options: script.raw_address(),
        ..RuntreadRtm::default()
    };
    let (mut script, _) = connected();
    for (msg_id, all_in_packets) in [(0, true), (1, false)] {
        script.recv(0, 1000, 7);
        let first = match all_in_packets {
            true => runt(&script, msg_id, 1000).to_packet(&[1; 900]),
            false => MediumRtm {
                msg_id: MsgId(msg_id),
                msg_length: 1000,
                options: script.raw_address(),
                ..MediumRtm::default()
            }
            .to_packet(&[1; 900]),
        };
        script.inject(&first);
        let second = runt(&script, msg_id, 800);
        script.send(&second, &[2; 50]);
        script.expect_refusal(PacketError::SizeMismatch);
        assert_eq!(script.error().failure.errno, Errno::EIO);
        script.expect_silence();
    }
    assert_eq!(script.dut.usage().inbound, 0);
}

#[test]
fn malformed_and_unsupported_packets_are_events() {
    let (mut script, _) = connected();
    for (bytes, packet_type) in [
        (&[][..], 0),
        (&[64, 4][..], 64),
        (&[64, 3, 0, 0, 0, 0, 0, 0][..], 64),
        (&[200, 4, 0, 0][..], 200),
        (&[1, 4, 0, 0][..], 1),
        (&[6, 4, 0, 0][..], 6),
        (&[70, 4, 0, 0, 5, 0, 0, 0][..], 70),
        (&[9, 4, 0, 0, 2, 0, 0, 0][..], 9),
    ] {
        script.inject(bytes);
        match script.dut.poll_event() {
            Some(Event::PacketRefused {
                packet_type: found,
                reason: PacketError::Malformed(_),
                ..
            }) => assert_eq!(found, packet_type),
            other => panic!("{bytes:?}: {other:?}"),
        }
    }
    // Packets that no release of libfabric sends.
    for bytes in [
        vec![131, 4, 0, 0],
        [vec![142, 4, 0, 0], vec![0; 36]].concat(),
        [vec![147, 4, 0, 0], vec![0; 36]].concat(),
    ] {
        script.inject(&bytes);
        assert_eq!(script.refusal(), PacketError::UnsupportedType, "{bytes:?}");
    }
    script.expect_silence();
}

/// The operation in progress when a PEER_ERROR arrives.
#[derive(Clone, Copy, Debug)]
enum RunningOperation {
    /// A message of the peer: no receive has taken it, one has, the application has claimed it, or
    /// it waits for an earlier one.
    Unmatched,
    Matched,
    Claimed,
    Early,
    /// A message to the peer: its packets are in flight, or have arrived.
    Leaving,
    Sent,
    /// A write, a read and an atomic of the peer's memory, and a write of the peer.
    OneSided,
}

const MOMENTS: [RunningOperation; 7] = [
    RunningOperation::Unmatched,
    RunningOperation::Matched,
    RunningOperation::Claimed,
    RunningOperation::Early,
    RunningOperation::Leaving,
    RunningOperation::Sent,
    RunningOperation::OneSided,
];

/// The peer's announced features when it sends PEER_ERROR; `None` before its HANDSHAKE.
const ANNOUNCED: [Option<ExtraFeatures>; 3] = [
    None,
    Some(ExtraFeatures::RDMA_READ),
    Some(PEER_ERRORS.union(MODERN)),
];

impl RunningOperation {
    /// Lets it come. Returns the ids that the peer may know.
    fn arrange(
        self,
        subprotocol: Subprotocol,
        announced: Option<ExtraFeatures>,
    ) -> (Script, PeerId, Vec<u32>) {
        let few = DeviceTraits {
            recv_depth: 16,
            send_depth: 16,
            ..traits()
        };
        let mut script = Script::with(subprotocol.config(), few);
        let peer = script.insert_peer();
        if let Some(features) = announced {
            script.shake_hands(features);
            script.expect_handshake();
        }
        match self {
            RunningOperation::Unmatched => script.begin(subprotocol, 0),
            RunningOperation::Matched => {
                script.recv(0, 4000, 7);
                script.begin(subprotocol, 0);
            }
            RunningOperation::Claimed => {
                script.begin(subprotocol, 0);
                script.dut.claim(SourceFilter::Any, None).unwrap();
            }
            RunningOperation::Early => {
                script.recv(0, 4000, 7);
                script.begin(subprotocol, 1);
            }
            RunningOperation::Leaving | RunningOperation::Sent => {
                // Not all of them are possible with every peer.
                let (length, flags) = subprotocol.message();
                let _ = script.try_send(peer, length, flags, 1);
            }
            RunningOperation::OneSided => {
                let remote = [peer_memory(0x7000, 2000, 5)];
                let flags = OperationFlags::COMPLETION;
                let _ = script.dut.write(WriteArgs {
                    peer,
                    data: &[memory(0, 2000)],
                    remote: &remote,
                    cq_data: None,
                    flags,
                    context: 1,
                });
                let _ = script.dut.read(ReadArgs {
                    peer,
                    buffer: &[memory(0, 2000)],
                    remote: &remote,
                    flags,
                    context: 2,
                });
            }
        }
        script.progress();
        let mut ids = Vec::new();
        for flight in script.network.in_flight() {
            let fields = fields_of(&flight.bytes).into_iter().flatten();
            let named =
                fields.filter(|field| ["send_id", "recv_id"].contains(&field.descriptor.name));
            ids.extend(named.filter_map(|field| Some(field.value.as_u64()? as u32)));
        }
        if let RunningOperation::Sent | RunningOperation::OneSided = self {
            script.swallow_all();
        }
        while script.dut.poll_event().is_some() {}
        (script, peer, ids)
    }
}

impl Script {
    /// Another peer is not affected.
    fn expect_others_served(&mut self, what: &str) {
        let other = self.insert_other_peer();
        let address = self.dut.lookup_address(other).unwrap();
        self.post_recv(SourceFilter::Peer(other), Some(42), memory(0, 16), 4242)
            .unwrap();
        let eager = EagerRtm {
            tag: Some(42),
            ..EagerRtm::new(MsgId(0), ReqOptions::with_connid(address.qkey.into()))
        };
        let mut source = self.source();
        source.qpn = address.qpn;
        self.inject_from(source, &eager.to_packet(b"fine"));
        assert_eq!(self.completion().context, 4242, "{what}");
    }

    /// Another peer is served normally, and all state of this one has been released.
    fn expect_no_harm(&mut self, peer: PeerId, what: &str) {
        while self.dut.poll_completion().is_some() {}
        self.expect_others_served(what);
        self.dut.remove_address(peer).unwrap();
        self.dut.cancel_context(7);
        while self.network.flights() > 0 {
            self.network.fail(0, Status::RemoteBadDestQpn);
            self.progress();
        }
        let usage = self.dut.usage();
        let expected = Usage {
            peers: usage.peers,
            ..Usage::default()
        };
        assert_eq!(usage, expected, "{what}");
    }
}

/// A PEER_ERROR of another length has no effect, whatever its sender and time.
#[test]
fn peer_errors_of_wrong_length_are_counted() {
    for subprotocol in Subprotocol::ALL {
        for (moment, announced) in MOMENTS
            .into_iter()
            .flat_map(|moment| ANNOUNCED.map(|announced| (moment, announced)))
        {
            let (mut script, peer, ids) = moment.arrange(subprotocol, announced);
            let what = format!("{subprotocol:?} {moment:?} {announced:?}");
            let before = (script.dut.usage(), script.network.flights());
            let refused = script.dut.statistics().packets_refused;
            let connid = script.connid();
            for length in (4..=64).filter(|length| *length != 24) {
                let mut bytes = PeerError {
                    op_id: ids.first().copied().unwrap_or(PeerError::NO_OP),
                    emitter_ope_type: OpeType(1 + length % 2),
                    connid,
                    ..PeerError::default()
                }
                .to_packet(&[]);
                bytes.resize(length as usize, 0);
                script.inject(&bytes);
                assert!(matches!(script.refusal(), PacketError::Malformed(_)));
                let after = (script.dut.usage(), script.network.flights());
                assert_eq!(after, before, "{what}: {length} bytes");
            }
            let now = script.dut.statistics().packets_refused;
            assert_eq!(now - refused, 60, "{what}");
            script.expect_no_harm(peer, &what);
        }
    }
}

/// All combinations of valid and stale ids, at every moment.
#[test]
fn a_peer_error_about_anything_does_no_harm() {
    for subprotocol in Subprotocol::ALL {
        for (moment, announced) in MOMENTS
            .into_iter()
            .flat_map(|moment| ANNOUNCED.map(|announced| (moment, announced)))
        {
            let (.., ids) = moment.arrange(subprotocol, announced);
            let unknown = [PeerError::NO_OP, 0, 0x8000_0000, u32::MAX];
            for op_id in ids.into_iter().chain(unknown) {
                for msg_id in [0, 1, 2, 5000, 0x8000_0000, u32::MAX] {
                    for side in 0..4 {
                        let (mut script, peer, _) = moment.arrange(subprotocol, announced);
                        let error = PeerError {
                            msg_id: MsgId(msg_id),
                            op_id,
                            emitter_ope_type: OpeType(side),
                            prov_errno: op_id,
                            connid: script.connid(),
                            ..PeerError::default()
                        };
                        // Twice, because the first one may have ended its operation.
                        script.send(&error, &[]);
                        script.send(&error, &[]);
                        let what = format!("{subprotocol:?} {moment:?} {announced:?} {error:?}");
                        script.expect_no_harm(peer, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn protected_memory_is_not_touched() {
    use efa_core::nic::Access;
    let (mut script, _) = connected();
    let open = script
        .dut
        .register(
            memory(0, 64).memory,
            Access::REMOTE_WRITE | Access::LOCAL_WRITE,
        )
        .unwrap();
    let closed = script
        .dut
        .register(memory(64, 64).memory, Access::LOCAL_WRITE)
        .unwrap();
    let behind_our_back = script
        .dut
        .nic_mut()
        .register(memory(128, 64).memory, Access::all())
        .unwrap();
    let write = |script: &mut Script, address, length: usize, key: u64| {
        let iovs = [RmaIov::new(address, length as u64, key)];
        let header = EagerRtw {
            rma_iov: RmaIovs::new(&iovs).unwrap(),
            options: ReqOptions {
                connid: script.connid(),
                ..ReqOptions::default()
            },
            ..EagerRtw::default()
        };
        script.send(&header, &vec![0xBB; length]);
    };
    for (address, length, key) in [
        (MEMORY, 65, open.remote_key.0),
        (MEMORY + 60, 5, open.remote_key.0),
        (MEMORY - 1, 2, open.remote_key.0),
        (u64::MAX, 2, open.remote_key.0),
        (MEMORY + 64, 8, closed.remote_key.0),
        (MEMORY + 128, 8, behind_our_back.remote_key.0),
        (MEMORY, 8, 0xFFFF_FFFF_FFFF),
    ] {
        write(&mut script, address, length, key);
        match script.dut.poll_event() {
            Some(Event::RemoteOperationFailed { failure, .. }) => {
                assert_eq!(failure.provider, ProviderError::RmaAddress);
            }
            other => panic!("{address:#x}+{length} by {key:#x}: {other:?}"),
        }
    }
    assert_eq!(script.network.memory(0, MEMORY, 192), [0; 192]);
    write(&mut script, MEMORY + 56, 8, open.remote_key.0);
    assert_eq!(
        script.network.memory(0, MEMORY + 56, 9),
        [0xBB, 0xBB, 0xBB, 0xBB, 0xBB, 0xBB, 0xBB, 0xBB, 0]
    );
    script.dut.deregister(open).unwrap();
    write(&mut script, MEMORY, 8, open.remote_key.0);
    assert!(matches!(
        script.dut.poll_event(),
        Some(Event::RemoteOperationFailed { .. })
    ));
}
