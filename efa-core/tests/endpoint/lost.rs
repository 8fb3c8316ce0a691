//! Requests that the device loses: the peer must not wait forever for a message that will not come.

use efa_core::endpoint::*;
use efa_core::nic::Status;
use efa_core::wire::{AtomicOp, EagerRtm, Header, MediumRtm, MsgId, Packet, Rta, RtaKind};

use crate::script::{Script, connected};

fn msg_id(bytes: &[u8]) -> u32 {
    match Packet::parse(bytes).unwrap().header {
        Header::EagerRtm(EagerRtm { msg_id, .. })
        | Header::MediumRtm(MediumRtm { msg_id, .. })
        | Header::Rta(Rta { msg_id, .. }) => msg_id.0,
        other => panic!("{other:?}"),
    }
}

fn send(script: &mut Script, peer: PeerId, context: u64) {
    script.send_message(peer, 10, context);
}

#[test]
fn packets_refused_with_rnr_are_resent() {
    let (mut script, peer) = connected();
    send(&mut script, peer, 1);
    send(&mut script, peer, 2);
    let bytes = script.network.in_flight()[0].bytes.clone();
    for _ in 0..3 {
        script.network.fail(0, Status::RemoteBadAddress);
        script.expect_no_completion();
        // It is the last one now.
        assert_eq!(script.network.in_flight()[1].bytes, bytes);
        script.network.swallow(0);
        script.progress();
        assert_eq!(script.completion().context, 2);
        send(&mut script, peer, 2);
    }
    script.network.swallow(0);
    script.progress();
    assert_eq!(script.completion().context, 1);
}

#[test]
fn endless_rnr_fails_messages_and_frees_the_id() {
    let (mut script, peer) = connected();
    send(&mut script, peer, 1);
    assert_eq!(msg_id(&script.sent()), 0);
    script.completion();
    send(&mut script, peer, 2);
    for _ in 0..4 {
        script.expect_no_completion();
        script.network.fail(0, Status::RemoteBadAddress);
    }
    script.progress();
    assert_eq!(script.error().failure.errno, Errno::EINVAL);
    script.expect_silence();
    send(&mut script, peer, 3);
    assert_eq!(msg_id(&script.sent()), 1);
    assert_eq!(script.dut.poll_event(), None);
}

/// Otherwise the peer would wait forever: it processes no packet after a missing message.
#[test]
fn an_empty_atomic_fills_a_lost_messages_place() {
    let (mut script, peer) = connected();
    for context in 0..3 {
        send(&mut script, peer, context);
    }
    script.network.fail(1, Status::LocalInvalidLkey);
    script.progress();
    assert_eq!(script.error().context, 1);
    let filler = script.network.in_flight()[2].bytes.clone();
    let packet = Packet::parse(&filler).unwrap();
    let Header::Rta(rta) = packet.header else {
        panic!("{packet:?}");
    };
    assert_eq!((rta.kind, rta.msg_id), (RtaKind::Write, MsgId(1)));
    assert_eq!(rta.atomic_op, AtomicOp::ATOMIC_WRITE);
    assert_eq!(
        (rta.rma_iov.as_slice().len(), packet.payload.length),
        (0, 0)
    );
    // It is lost as well, although the peer is there.
    script.network.fail(2, Status::LocalInvalidLkey);
    script.progress();
    assert!(matches!(
        script.dut.poll_event(),
        Some(Event::SendingFailed { peer: other, .. }) if other == peer
    ));
}

#[test]
fn losses_are_repaired_when_the_peer_returns() {
    let (mut script, peer) = connected();
    for context in 0..2 {
        send(&mut script, peer, context);
    }
    script.network.fail(0, Status::RemoteBadDestQpn);
    script.progress();
    assert_eq!(script.error().context, 0);
    // The peer has ended, so no PEER_ERROR is sent.
    assert_eq!(script.network.flights(), 1);
    send(&mut script, peer, 2);
    script.progress();
    let ids: Vec<u32> = script
        .network
        .in_flight()
        .iter()
        .map(|flight| msg_id(&flight.bytes))
        .collect();
    assert_eq!(ids, [1, 2, 0]);
}

#[test]
fn a_possibly_delivered_message_ends_sending() {
    let (mut script, peer) = connected();
    script.recv(0, 100, 7);
    send(&mut script, peer, 1);
    script.network.fail(0, Status::LocalUnresponsiveRemote);
    script.progress();
    let failure = script.error().failure;
    assert_eq!(
        script.dut.poll_event(),
        Some(Event::SendingFailed { peer, failure })
    );
    let refused = script.try_send(peer, 10, OperationFlags::empty(), 2);
    assert_eq!(refused, Err(EndpointError::PeerFailed(peer)));
    // Messages from the peer still arrive.
    let eager = script.eager(0);
    script.send(&eager, b"there");
    assert_eq!(script.completion().context, 7);
    // The application resumes sending.
    script.dut.remove_address(peer).unwrap();
    let peer = script.insert_peer();
    send(&mut script, peer, 3);
    assert_eq!(script.dut.poll_event(), None);
}

#[test]
fn a_partly_delivered_message_ends_sending() {
    for (first, second) in [(None, Some(())), (Some(()), None), (Some(()), Some(()))] {
        let (mut script, peer) = connected();
        script.send_message(peer, 1900, 5);
        script.progress();
        assert_eq!(script.network.flights(), 2);
        for lost in [first, second] {
            match lost {
                Some(()) => script.network.fail(0, Status::RemoteBadLength),
                None => {
                    script.network.swallow(0);
                }
            }
        }
        script.progress();
        assert_eq!(script.error().failure.errno, Errno::EMSGSIZE);
        match (first, second) {
            // The peer has received no part of it.
            (Some(()), Some(())) => {
                assert_eq!(script.dut.poll_event(), None);
                send(&mut script, peer, 6);
                assert_eq!(msg_id(&script.sent()), 0);
            }
            _ => assert!(matches!(
                script.dut.poll_event(),
                Some(Event::SendingFailed { .. })
            )),
        }
    }
}

/// libfabric 1.11 and 1.17 lose a packet, or abort, that is 16,384 ahead of the one they wait for
/// (D25).
#[test]
fn messages_do_not_run_far_ahead_of_losses() {
    let (mut script, peer) = connected();
    let mut ahead = 0;
    loop {
        match script.try_send(peer, 1, OperationFlags::empty(), ahead) {
            Ok(()) => ahead += 1,
            Err(error) => {
                assert_eq!(error, EndpointError::TryAgain);
                break;
            }
        }
        assert!(ahead < 10_000);
        if ahead > 1 {
            // The first one stays on its way.
            script.network.swallow(1);
            script.progress();
            script.completion();
        }
    }
    assert_eq!(ahead, 8192);
    script.network.swallow(0);
    script.progress();
    script.send_message(peer, 1, ahead);
}

/// The other side of [`an_empty_atomic_fills_a_lost_messages_place`].
#[test]
fn messages_behind_a_lost_one_are_received() {
    let (mut script, _) = connected();
    for context in 0..4 {
        script.recv(100 * context, 100, context);
    }
    // The peer's messages 1 and 2 are here, 0 was lost there.
    for (id, bytes) in [(1, b"one"), (2, b"two")] {
        let eager = script.eager(id);
        script.send(&eager, bytes);
    }
    script.expect_no_completion();
    let filler = Rta {
        options: script.raw_address(),
        atomic_op: AtomicOp::ATOMIC_WRITE,
        atomic_datatype: efa_core::wire::AtomicDatatype::UINT8,
        ..Rta::default()
    };
    script.send(&filler, &[]);
    for context in 0..2 {
        assert_eq!(script.completion().context, context);
    }
    assert_eq!(script.dut.poll_event(), None);
}
