//! Operations that one side gives up: what the other side is told, and what becomes of messages of which
//! the rest will not come.

use efa_core::endpoint::*;
use efa_core::nic::{DeviceCaps, Status};
use efa_core::wire::{
    Cts, ExtraFeatures, Header, LongctsRtm, LongreadRtm, MediumRtm, MsgId, PeerError,
    PeerErrorRefKind, RecvId, RmaIov, RmaIovs, SendId,
};

use crate::script::{MODERN, Script, config, memory, traits};

const ABORTED: Failure = Failure {
    errno: Errno::ECANCELED,
    provider: ProviderError::PeerAborted,
};

/// A script whose peer has announced these features beside the usual ones.
fn connected_to(more: ExtraFeatures) -> (Script, PeerId) {
    let mut script = Script::with(config(), traits());
    let peer = script.insert_peer();
    script.shake_hands(MODERN | more);
    script.expect_handshake();
    (script, peer)
}

impl Script {
    fn abandon(&mut self, op_id: u32, ref_kind: PeerErrorRefKind) {
        let connid = self.connid();
        self.send(
            &PeerError {
                op_id,
                ref_kind,
                prov_errno: 7,
                connid,
                ..PeerError::default()
            },
            &[],
        );
    }

    /// A segment of 100 bytes of an untagged message of 300.
    fn segment(&mut self, msg_id: u32, seg_offset: u64) {
        let options = self.by_connid();
        self.send(
            &MediumRtm {
                msg_id: MsgId(msg_id),
                msg_length: 300,
                seg_offset,
                options,
                ..MediumRtm::default()
            },
            &[7; 100],
        );
    }

    /// A long-read message, whose read the device refuses.
    fn refuse_read(&mut self) {
        self.recv(0, 4000, 7);
        let options = self.by_connid();
        self.send(
            &LongreadRtm {
                msg_id: MsgId(0),
                msg_length: 4000,
                send_id: SendId(77),
                read_iov: RmaIovs::new(&[RmaIov::new(0x5000, 4000, 9)]).unwrap(),
                options,
                ..LongreadRtm::default()
            },
            &[],
        );
        self.progress();
        assert_eq!(self.network.flights(), 1, "the read");
        self.network.fail(0, Status::RemoteBadAddress);
        self.progress();
        let failure = self.error().failure;
        assert_eq!(failure, Failure::from(Status::RemoteBadAddress));
    }

    /// Posts a receive for a claimed message, which fails.
    fn fail_to_receive(&mut self, claim: ClaimId, context: u64) -> ErrorEntry {
        let args = ClaimedRecvArgs {
            claim,
            buffer: &[memory(0, 300)],
            flags: OperationFlags::COMPLETION,
            context,
        };
        self.dut.recv_claimed(args).unwrap();
        self.error()
    }

    /// The endpoint learns that the peer's queue pair does not exist any more.
    fn peer_ends(&mut self, peer: PeerId) {
        self.try_send(peer, 8, OperationFlags::empty(), 99).unwrap();
        self.progress();
        self.network.fail(0, Status::RemoteBadDestQpn);
        self.progress();
        assert_eq!(self.error().context, 99);
        self.progress();
    }
}

#[test]
fn a_read_that_fails_is_told_to_a_peer_that_understands_it() {
    let (mut script, _) = connected_to(ExtraFeatures::PEER_ERROR);
    script.refuse_read();
    script.expect(|packet| match &packet.header {
        Header::PeerError(error) => {
            let named = (error.op_id, error.ref_kind, error.prov_errno);
            let code = ProviderError::RemoteBadAddress.code();
            assert_eq!(named, (77, PeerErrorRefKind::OPERATION, code));
            assert_eq!(error.connid.map(|connid| connid.0), Some(0x1111_1111));
        }
        other => panic!("{other:?}"),
    });
    script.expect_silence();

    let (mut script, _) = connected_to(ExtraFeatures::empty());
    script.refuse_read();
    script.expect_silence();
}

#[test]
fn a_send_ends_when_the_peer_abandons_it_and_the_next_one_is_not_affected() {
    let (mut script, peer) = connected_to(ExtraFeatures::PEER_ERROR);
    script
        .try_send(peer, 3000, OperationFlags::empty(), 1)
        .unwrap();
    let send_id = script.expect(|packet| match packet.header {
        Header::LongctsRtm(long) => long.send_id,
        other => panic!("{other:?}"),
    });
    // The device is done with the packet.
    script.network.deliver_all();
    script.progress();
    script.abandon(send_id.0, PeerErrorRefKind::OPERATION);
    let entry = script.error();
    assert_eq!((entry.context, entry.failure), (1, ABORTED));
    script.abandon(send_id.0, PeerErrorRefKind::OPERATION);
    assert_eq!(
        script.refusal(),
        PacketError::StaleOperation { id: send_id.0 }
    );
    script
        .try_send(peer, 8, OperationFlags::empty(), 2)
        .unwrap();
    let next = script.expect(|packet| match &packet.header {
        Header::EagerRtm(eager) => eager.msg_id,
        other => panic!("{other:?}"),
    });
    assert_eq!(next, MsgId(1));
    assert_eq!(script.completion().context, 2);
    script.expect_silence();
}

#[test]
fn a_receive_in_windows_ends_when_the_peer_abandons_it() {
    let (mut script, _) = connected_to(ExtraFeatures::PEER_ERROR);
    script.recv(0, 4096, 7);
    let options = script.by_connid();
    script.send(
        &LongctsRtm {
            msg_id: MsgId(0),
            msg_length: 4096,
            send_id: SendId(77),
            options,
            ..LongctsRtm::default()
        },
        &[1; 96],
    );
    let recv_id = script.expect(|packet| match packet.header {
        Header::Cts(Cts { recv_id, .. }) => recv_id,
        other => panic!("{other:?}"),
    });
    script.abandon(recv_id.0, PeerErrorRefKind::OPERATION);
    assert_eq!(script.error().failure, ABORTED);
    script.expect_silence();
    assert_eq!(script.dut.usage().inbound, 0);
    script.abandon(recv_id.0, PeerErrorRefKind::OPERATION);
    let reason = PacketError::StaleOperation { id: recv_id.0 };
    assert_eq!(script.refusal(), reason);
}

/// The ids of both kinds are told apart, because a PEER_ERROR names either.
#[test]
fn operations_in_both_directions_have_different_ids() {
    let (mut script, peer) = connected_to(ExtraFeatures::PEER_ERROR);
    script
        .try_send(peer, 3000, OperationFlags::empty(), 1)
        .unwrap();
    let send_id = script.expect(|packet| match packet.header {
        Header::LongctsRtm(long) => long.send_id,
        other => panic!("{other:?}"),
    });
    script.recv(0, 4096, 7);
    let options = script.by_connid();
    let long = LongctsRtm {
        msg_id: MsgId(0),
        msg_length: 4096,
        send_id: SendId(77),
        options,
        ..LongctsRtm::default()
    };
    script.send(&long, &[1; 96]);
    let RecvId(recv_id) = script.expect(|packet| match packet.header {
        Header::Cts(Cts { recv_id, .. }) => recv_id,
        other => panic!("{other:?}"),
    });
    assert_ne!(send_id.0, recv_id);
    script.abandon(send_id.0, PeerErrorRefKind::OPERATION);
    assert_eq!(script.error().context, 1);
    assert_eq!(script.dut.usage().inbound, 1, "the receive goes on");
}

#[test]
fn a_message_that_the_peer_abandons_ends_its_receive_or_is_dropped() {
    let (mut script, _) = connected_to(ExtraFeatures::PEER_ERROR);
    // A receive has it.
    script.recv(0, 300, 7);
    script.segment(0, 0);
    script.abandon(0, PeerErrorRefKind::MSG_ID);
    assert_eq!(script.error().failure, ABORTED);
    // No receive has it.
    script.segment(1, 0);
    assert_eq!(script.dut.usage().unexpected, 1);
    script.abandon(1, PeerErrorRefKind::MSG_ID);
    assert_eq!(script.dut.usage(), peers(1));
    // The application has claimed it.
    script.segment(2, 0);
    let (claim, _) = script.dut.claim(SourceFilter::Any, None).unwrap();
    script.abandon(2, PeerErrorRefKind::MSG_ID);
    assert_eq!(script.dut.usage().held_packets, 0);
    let entry = script.fail_to_receive(claim, 8);
    assert_eq!((entry.context, entry.failure), (8, ABORTED));
    // It was whole before.
    script.recv(0, 300, 9);
    for offset in [0, 100, 200] {
        script.segment(3, offset);
    }
    script.abandon(3, PeerErrorRefKind::MSG_ID_SKIP);
    assert_eq!(script.completion().context, 9);
    script.expect_silence();
    assert_eq!(script.dut.usage(), peers(1));
}

fn peers(peers: usize) -> Usage {
    Usage {
        peers,
        ..Usage::default()
    }
}

#[test]
fn a_message_that_never_comes_keeps_no_others_back() {
    for ref_kind in [PeerErrorRefKind::MSG_ID_SKIP, PeerErrorRefKind::MSG_ID] {
        let (mut script, _) = connected_to(ExtraFeatures::PEER_ERROR);
        script.recv(0, 8, 7);
        let mut next = script.eager(2);
        next.options = script.by_connid();
        script.send(&next, b"next");
        // The news of two messages in the wrong order.
        script.abandon(1, ref_kind);
        script.expect_no_completion();
        script.abandon(0, ref_kind);
        assert_eq!(script.completion().length, 4);
        assert_eq!(script.dut.usage(), peers(1));
        script.expect_silence();
    }
}

#[test]
fn messages_that_a_peer_cannot_finish_any_more_are_dropped_and_whole_ones_stay() {
    let (mut script, peer) = connected_to(ExtraFeatures::empty());
    for offset in [0, 100, 200] {
        script.segment(0, offset);
    }
    script.segment(1, 0);
    // A message behind one that has not come.
    script.segment(3, 0);
    let usage = script.dut.usage();
    assert_eq!((usage.unexpected, usage.held_packets), (2, 5));
    script.peer_ends(peer);
    let usage = script.dut.usage();
    assert_eq!((usage.unexpected, usage.held_packets), (1, 3), "{usage:?}");
    script.recv(0, 300, 7);
    let entry = script.completion();
    assert_eq!((entry.context, entry.length), (7, 300));
    // The next receive is for somebody else's message.
    script.recv(0, 300, 8);
    script.expect_no_completion();
    assert_eq!(script.dut.usage().assemblies, 0);
}

#[test]
fn a_claimed_message_that_a_peer_cannot_finish_any_more_fails_its_receive() {
    let (mut script, peer) = connected_to(ExtraFeatures::empty());
    script.segment(0, 0);
    let (claim, _) = script.dut.claim(SourceFilter::Any, None).unwrap();
    script.peer_ends(peer);
    assert_eq!(script.dut.usage().held_packets, 0);
    let entry = script.fail_to_receive(claim, 8);
    let failure = Failure::from(Status::RemoteBadDestQpn);
    assert_eq!((entry.context, entry.failure), (8, failure));
}

/// A message of which the peer has a part, and whose rest the device cannot deliver.
#[test]
fn a_message_that_breaks_off_is_told_to_a_peer_that_understands_it() {
    let bare = efa_testing::nic::Traits {
        caps: DeviceCaps::empty(),
        ..traits()
    };
    let mut script = Script::with(config(), bare);
    let peer = script.insert_peer();
    script.shake_hands(MODERN | ExtraFeatures::PEER_ERROR);
    script.expect_handshake();
    script
        .try_send(peer, 1900, OperationFlags::empty(), 1)
        .unwrap();
    script.progress();
    // The first segment arrives, the second one does not.
    let msg_id = script.expect(|packet| match &packet.header {
        Header::MediumRtm(medium) => medium.msg_id,
        other => panic!("{other:?}"),
    });
    script.network.fail(0, Status::RemoteBadLength);
    script.progress();
    assert_eq!(script.error().context, 1);
    script.expect(|packet| match &packet.header {
        Header::PeerError(error) => {
            let named = (error.op_id, error.ref_kind);
            assert_eq!(named, (msg_id.0, PeerErrorRefKind::MSG_ID));
        }
        other => panic!("{other:?}"),
    });
    // The peer's order is whole, so messages go on.
    assert_eq!(script.dut.poll_event(), None);
    script
        .try_send(peer, 8, OperationFlags::empty(), 2)
        .unwrap();
    script.expect(|packet| match &packet.header {
        Header::EagerRtm(eager) => assert_eq!(eager.msg_id, msg_id.next()),
        other => panic!("{other:?}"),
    });
}
