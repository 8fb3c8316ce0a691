//! Devices that refuse, peers that are not ready or vanish, endings with work in flight.

use core::time::Duration;

use efa_core::endpoint::*;
use efa_core::nic::Status;
use efa_core::wire::{EagerRtm, Header, LongctsRtm, MsgId, Packet, Repr};

use crate::script::{
    MODERN, Script, config, config_with, connected, connected_with, memory, traits, traits_with,
};
use efa_testing::nic::MEMORY;

#[test]
fn a_device_failure_is_the_sends_error() {
    for (status, errno, provider) in [
        (Status::RemoteBadDestQpn, Errno::ENOTCONN, 9),
        (Status::RemoteAbort, Errno::ECONNABORTED, 8),
        (Status::LocalUnreachableRemote, Errno::EHOSTUNREACH, 15),
        (Status::LocalUnresponsiveRemote, Errno::ECONNABORTED, 4124),
        (Status::RemoteBadLength, Errno::EMSGSIZE, 11),
        (Status::Flushed, Errno::ECANCELED, 1),
    ] {
        let (mut script, peer) = connected();
        script.send_message(peer, 10, 5);
        while script.network.flights() > 0 {
            script.network.fail(0, status);
            script.progress();
        }
        let error = script.error();
        assert_eq!((error.context, error.failure.errno), (5, errno));
        assert_eq!(error.failure.provider.code(), provider);
        assert_eq!(script.dut.usage().outbound, 0);
    }
    // A peer that never sent a packet.
    let mut script = Script::new();
    let peer = script.insert_peer();
    script.send_message(peer, 10, 5);
    script.network.fail(0, Status::LocalUnresponsiveRemote);
    script.progress();
    assert_eq!(script.error().failure.provider.code(), 4126);
}

#[test]
fn a_medium_message_fails_only_once() {
    let (mut script, peer) = connected();
    script.send_message(peer, 1900, 5);
    script.progress();
    assert_eq!(script.network.flights(), 2);
    script.network.fail(0, Status::RemoteBadDestQpn);
    // The memory is the device's until it is done with the other segment too.
    script.expect_no_completion();
    script.network.fail(0, Status::RemoteBadDestQpn);
    script.progress();
    assert_eq!(script.error().context, 5);
    script.expect_no_completion();
}

#[test]
fn refused_packets_wait_twice_as_long_each_time() {
    let (mut script, peer) = connected();
    script.send_message(peer, 10, 5);
    // The first refusal is answered at once.
    script.network.fail(0, Status::RemoteRnr);
    script.progress();
    assert_eq!(script.network.flights(), 1);
    assert_eq!(script.dut.next_timeout(), None);
    let mut waits = Vec::new();
    for _ in 0..24 {
        script.network.fail(0, Status::RemoteRnr);
        script.progress();
        script.expect_silence();
        // No new operation is started meanwhile, not even by a packet that succeeds.
        assert_eq!(
            script.try_send(peer, 10, OperationFlags::empty(), 6),
            Err(EndpointError::TryAgain)
        );
        let until = script.dut.next_timeout().unwrap();
        waits.push(until.0 - script.now.0);
        // Not a moment earlier.
        script.now = Instant(until.0 - Duration::from_nanos(1));
        script.expect_silence();
        script.now = until;
        script.progress();
        assert_eq!(script.network.flights(), 1);
    }
    let first = waits[0];
    assert!((40..=119).contains(&first.as_micros()), "{first:?}");
    for (number, wait) in waits.iter().enumerate() {
        let expected = first
            .saturating_mul(1 << number)
            .min(Duration::from_secs(1));
        assert_eq!(*wait, expected);
    }
    script.network.swallow(0);
    script.progress();
    assert_eq!(script.completion().context, 5);
    assert_eq!(script.dut.next_timeout(), None);
    // The next series starts afresh.
    script.send_message(peer, 10, 7);
    for _ in 0..2 {
        script.network.fail(0, Status::RemoteRnr);
        script.progress();
    }
    let wait = script.dut.next_timeout().unwrap().0 - script.now.0;
    assert!((40..=119).contains(&wait.as_micros()), "{wait:?}");
}

/// A peer that is never ready takes no more than its share of the buffers.
#[test]
fn rnr_leaves_buffers_for_others() {
    let (mut script, peer) = connected_with(config(), traits_with(|traits| traits.send_depth = 8));
    for context in 0..8 {
        script.network.fill(0, MEMORY, &[context as u8; 100]);
        script
            .try_send(peer, 100, OperationFlags::INJECT, context)
            .unwrap();
    }
    for _ in 0..2 {
        for _ in 0..8 {
            script.network.fail(0, Status::RemoteRnr);
        }
        script.progress();
    }
    script.expect_silence();
    assert_eq!(script.dut.nic().free_buffers(), 6);
    // Another peer is served.
    let other = script.insert_other_peer();
    for _ in 0..3 {
        script.send_message(other, 10, 20);
        script.sent();
        script.completion();
    }
    // And the packets that waited are sent as they were.
    let mut ids = Vec::new();
    while let Some(timeout) = script.dut.next_timeout() {
        script.now = timeout;
        script.progress();
        while script.network.flights() > 0 {
            let bytes = script.sent();
            let packet = Packet::parse(&bytes).unwrap();
            let Header::EagerRtm(eager) = packet.header else {
                panic!("{packet:?}");
            };
            assert_eq!(packet.payload.of(&bytes), [eager.msg_id.0 as u8; 100]);
            ids.push(eager.msg_id.0);
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..8).collect::<Vec<_>>());
    assert_eq!(script.dut.nic().free_buffers(), 8);
}

/// A packet that was moved out of its buffer must not wait for an earlier packet that waits for a
/// buffer while other packets have all of them.
#[test]
fn copied_packets_do_not_block_buffered_ones() {
    let small = traits_with(|traits| traits.send_depth = 2);
    let (mut script, peer) = connected_with(config(), small);
    let send = |script: &mut Script, context| {
        script.send_message(peer, 10, context);
    };
    // The first one is refused twice, so it waits outside of its buffer.
    send(&mut script, 1);
    for _ in 0..2 {
        script.network.fail(0, Status::RemoteRnr);
        script.progress();
    }
    // To another peer two go out, and both are refused while the first one's wait ends.
    let other = script.insert_other_peer();
    for context in [2, 3] {
        script.send_message(other, 10, context);
    }
    script.now = script.dut.next_timeout().unwrap();
    script.progress();
    for _ in 0..2 {
        script.network.fail(0, Status::RemoteRnr);
    }
    for _ in 0..3 {
        script.sent();
    }
    let contexts: Vec<u64> = (0..3).map(|_| script.completion().context).collect();
    assert_eq!(contexts, [2, 3, 1]);
    assert!(!script.dut.has_packets_in_flight());
}

#[test]
fn a_full_device_returns_eagain_without_a_gap() {
    let (mut script, peer) = connected_with(config(), traits_with(|traits| traits.send_depth = 3));
    for context in 0..3 {
        script.send_message(peer, 1, context);
    }
    for _ in 0..5 {
        assert_eq!(
            script.try_send(peer, 1, OperationFlags::empty(), 9),
            Err(EndpointError::TryAgain)
        );
    }
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(msg_id(&mut script));
    }
    script.send_message(peer, 1, 9);
    ids.push(msg_id(&mut script));
    assert_eq!(ids, [0, 1, 2, 3]);
    assert_eq!(script.dut.nic().free_buffers(), 3);
}

fn msg_id(script: &mut Script) -> u32 {
    script.expect_header::<EagerRtm>().msg_id.0
}

#[test]
fn duplicate_completions_are_only_counted() {
    let (mut script, peer) = connected();
    script.send_message(peer, 1, 1);
    let before = script.dut.nic().free_buffers();
    script.network.repeat_completion(0);
    script.progress();
    assert_eq!(script.completion().context, 1);
    script.expect_no_completion();
    assert_eq!(script.dut.statistics().stray_completions, 1);
    assert_eq!(script.dut.nic().free_buffers(), before + 1);
}

#[test]
fn removing_a_peer_cancels_after_device_completion() {
    let (mut script, peer) = connected();
    // A send whose packet is out, one that waits for CTS, a directed receive, a transfer, an
    // unexpected message, a read.
    script.send_message(peer, 10, 1);
    script.send_message(peer, 5000, 2);
    script
        .post_recv(SourceFilter::Peer(peer), Some(1), memory(0, 16), 3)
        .unwrap();
    script.recv(0, 64, 4);
    let mut eager = script.eager(0);
    eager.tag = Some(99);
    script.send(&eager, b"unexpected");
    let long = LongctsRtm {
        msg_id: MsgId(1),
        msg_length: 5000,
        options: script.raw_address(),
        ..LongctsRtm::default()
    };
    script.send(&long, &[0; 10]);
    script.send(&script.eager(3), b"early");
    script.recv(64, 64, 5);
    script.dut.remove_address(peer).unwrap();
    let mut contexts = Vec::new();
    while let Some(entry) = script.dut.poll_completion() {
        let error = entry.unwrap_err();
        assert_eq!(error.failure.errno, Errno::ECANCELED);
        contexts.push(error.context);
    }
    contexts.sort_unstable();
    // The packets of the sends are still the device's.
    assert_eq!(contexts, [3, 4]);
    while script.network.flights() > 0 {
        script.network.swallow(0);
    }
    script.progress();
    let mut contexts = [script.error().context, script.error().context];
    contexts.sort_unstable();
    assert_eq!(contexts, [1, 2]);
    assert_eq!(
        script.dut.usage(),
        Usage {
            inbound: 1,
            ..Usage::default()
        }
    );
    assert_eq!(
        script.try_send(peer, 1, OperationFlags::empty(), 0),
        Err(EndpointError::UnknownPeer(peer))
    );
    // The conversation with the same address continues after the two messages.
    let again = script.insert_peer();
    assert_ne!(again, peer);
    script.send_message(again, 1, 0);
    assert_eq!(msg_id(&mut script), 2);
}

#[test]
fn removal_during_back_off_cancels_waiting_sends() {
    let (mut script, peer) = connected();
    script.send_message(peer, 10, 1);
    for _ in 0..2 {
        script.network.fail(0, Status::RemoteRnr);
        script.progress();
    }
    assert!(script.dut.next_timeout().is_some());
    script.dut.remove_address(peer).unwrap();
    assert_eq!(script.error().failure.errno, Errno::ECANCELED);
    assert!(!script.dut.has_packets_in_flight());
    script.now = script.dut.next_timeout().unwrap_or(script.now);
    script.expect_no_completion();
    assert_eq!(script.dut.next_timeout(), None);
}

#[test]
fn closing_in_flight_reports_nothing_and_deregisters() {
    let (mut script, peer) = connected();
    script.shake_hands(MODERN);
    script.send_message(peer, 10, 1);
    script.send_message(peer, 5000, 2);
    script.recv(0, 16, 3);
    let gid = script.peer_address().gid;
    let nic = script.dut.close();
    assert_eq!(script.network.ahn(0, gid), None);
    assert_eq!(script.network.regions(0), 0);
    drop(nic);
    while script.network.flights() > 0 {
        script.network.deliver(0);
    }
}

#[test]
fn unread_completions_stop_polling() {
    let mut script = Script::with(
        EndpointConfig {
            completion_queue: 4,
            poll_batch: 1,
            ..config()
        },
        traits(),
    );
    for number in 0..8 {
        script.recv(number, 1, number);
    }
    for number in 0..8 {
        let packet = script.eager(number).to_packet(b"x");
        let source = script.source();
        assert!(script.network.inject(0, source, &packet));
    }
    for _ in 0..100 {
        script.dut.progress(script.now);
    }
    for number in 0..8 {
        assert_eq!(script.completion().context, number);
        script.dut.progress(script.now);
    }
}

#[test]
fn unread_events_are_dropped_and_counted() {
    let mut script = Script::with(config_with(|config| config.max_events = 3), traits());
    for code in 200..210 {
        script.inject(&[code, 4, 0, 0]);
    }
    let mut types = Vec::new();
    while let Some(Event::PacketRefused { packet_type, .. }) = script.dut.poll_event() {
        types.push(packet_type);
    }
    assert_eq!(types, [207, 208, 209]);
    assert_eq!(script.dut.statistics().events_dropped, 7);
}
