//! Order of messages, matching, truncation, and the handling of packets that must wait.

use efa_core::endpoint::*;
use efa_core::wire::{EagerRtm, ExtraFeatures, MsgId, PacketType};

use crate::script::{Script, config, config_with, memory, traits, traits_with};
use efa_testing::nic::MEMORY;

fn received(script: &mut Script) -> Vec<(u64, Vec<u8>)> {
    let mut entries = Vec::new();
    while let Some(entry) = script.dut.poll_completion() {
        let entry = entry.unwrap();
        let bytes = script
            .network
            .memory(0, MEMORY + entry.context, entry.length as usize);
        entries.push((entry.context, bytes));
    }
    entries
}

#[test]
fn messages_are_ordered_across_wraparound() {
    let first = u32::MAX - 2;
    for order in [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 0, 5, 1, 4, 2]] {
        let mut script = Script::with(config_with(|config| config.first_msg_id = first), traits());
        for number in 0..6 {
            script.recv(number * 16, 16, number * 16);
        }
        for number in order {
            let msg_id = first.wrapping_add(number);
            script.send(&script.eager(msg_id), &[number as u8]);
        }
        let expected: Vec<_> = (0..6)
            .map(|number| (number * 16, vec![number as u8]))
            .collect();
        assert_eq!(received(&mut script), expected, "{order:?}");
        assert_eq!(script.dut.usage().deferred_packets, 0);
    }
}

#[test]
fn own_message_ids_wrap_without_a_gap() {
    let mut script = Script::with(
        config_with(|config| config.first_msg_id = u32::MAX - 1),
        traits(),
    );
    let peer = script.insert_peer();
    let ids: Vec<u32> = (0..4)
        .map(|number| {
            script.send_message(peer, 1, number);
            script.expect_header::<EagerRtm>().msg_id.0
        })
        .collect();
    assert_eq!(ids, [u32::MAX - 1, u32::MAX, 0, 1]);
}

#[test]
fn a_duplicate_message_is_refused() {
    let mut script = Script::new();
    script.send(&script.eager(0), b"a");
    script.send(&script.eager(0), b"a");
    script.expect_refusal(PacketError::AlreadyProcessed { msg_id: 0 });
    // Twice before its turn: only one is accepted.
    script.send(&script.eager(2), b"c");
    script.send(&script.eager(2), b"c");
    script.send(&script.eager(1), b"b");
    script.expect_refusal(PacketError::AlreadyProcessed { msg_id: 2 });
    assert_eq!(script.dut.usage().unexpected, 3);
    assert_eq!(script.dut.usage().deferred_packets, 3);
}

#[test]
fn early_messages_beyond_the_window_give_up_peers() {
    let window = 256;
    let mut script = Script::with(
        config_with(|config| config.reorder_window = window),
        traits(),
    );
    for msg_id in 1..window {
        script.send(&script.eager(msg_id), &msg_id.to_le_bytes());
    }
    assert_eq!(script.dut.usage().deferred_packets, window as usize - 1);
    // The missing one comes after all.
    script.send(&script.eager(0), &0_u32.to_le_bytes());
    assert_eq!(script.dut.usage().unexpected, window as usize);
    for number in 0..window {
        script.recv(0, 4, 0);
        script.completion();
        assert_eq!(script.network.memory(0, MEMORY, 4), number.to_le_bytes());
    }

    let peer = script.dut.find_address(&script.peer_address()).unwrap();
    script.send(&script.eager(window + 1), b"early");
    script.send(&script.eager(2 * window), b"too early");
    script.expect_refusal(PacketError::BeyondWindow {
        msg_id: 2 * window,
        expected: window,
    });
    assert!(matches!(
        script.dut.poll_event(),
        Some(Event::PeerFailed { peer: other, .. }) if other == peer
    ));
    assert_eq!(script.dut.usage().deferred_packets, 0);
    // The peer's packets are dropped, and sends to it fail.
    script.send(&script.eager(window), b"x");
    assert_eq!(script.dut.statistics().from_failed_peers, 1);
    assert_eq!(
        script.try_send(peer, 1, OperationFlags::empty(), 0),
        Err(EndpointError::PeerFailed(peer))
    );
    // Its address is removed and inserted again.
    script.dut.remove_address(peer).unwrap();
    let peer = script.insert_peer();
    script.send_message(peer, 1, 0);
}

#[test]
fn next_messages_of_given_up_peers_are_dropped() {
    let mut script = Script::with(config(), traits());
    script.send(&script.eager(0), b"in its turn");
    let beyond = script.dut.config().reorder_window + 1;
    script.send(&script.eager(beyond), b"too early");
    assert!(matches!(
        script.refusal(),
        PacketError::BeyondWindow { expected: 1, .. }
    ));
    let kept = script.dut.usage();
    // The next one in order; none waits for it.
    script.send(&script.eager(1), b"x");
    assert_eq!(script.dut.usage(), kept);
    assert_eq!(script.dut.statistics().from_failed_peers, 1);
}

#[test]
fn early_packets_do_not_exhaust_receive_buffers() {
    let mut script = Script::with(config(), traits_with(|traits| traits.recv_depth = 8));
    let data = [7; 500];
    for msg_id in 1..200 {
        script.send(&script.eager(msg_id), &data);
        assert!(script.network.receives_posted(0) >= 6, "message {msg_id}");
    }
    script.send(&script.eager(0), &data);
    assert_eq!(script.dut.usage().unexpected, 200);
    for _ in 0..200 {
        script.recv(0, 500, 0);
        assert_eq!(script.completion().length, 500);
        assert_eq!(script.network.memory(0, MEMORY, 500), data);
    }
    script.progress();
    assert_eq!(script.network.receives_posted(0), 8);
}

#[test]
fn memory_for_waiting_packets_is_bounded() {
    let mut script = Script::with(
        config_with(|config| config.deferred_bytes = 4 * 128),
        traits_with(|traits| traits.recv_depth = 8),
    );
    // Two in buffers and four copies; the others stay in buffers until there are none left.
    for msg_id in 0..12 {
        script.send(&script.eager(msg_id), &[1; 10]);
    }
    let source = script.source();
    assert!(!script.network.inject(0, source, b"no buffer is left"));
    // Receives make room.
    for _ in 0..12 {
        script.recv(0, 16, 0);
        script.completion();
    }
    script.progress();
    assert_eq!(script.network.receives_posted(0), 8);
    assert_eq!(script.dut.usage().deferred_packets, 0);
}

fn tagged(script: &Script, msg_id: u32, tag: u64) -> EagerRtm {
    EagerRtm {
        tag: Some(tag),
        ..script.eager(msg_id)
    }
}

fn recv_tagged(script: &mut Script, filter: TagFilter, context: u64) -> ReceiveId {
    script
        .dut
        .recv(RecvArgs {
            tag: Some(filter),
            ..RecvArgs::new(SourceFilter::Any, &[memory(context, 16)], context)
        })
        .unwrap()
}

#[test]
fn tags_and_masks_match_as_in_libfabric() {
    let mut script = Script::new();
    let mask = |tag, ignore| TagFilter { tag, ignore };
    recv_tagged(&mut script, mask(0x1000, 0xFF), 0);
    recv_tagged(&mut script, TagFilter::exact(0x1005), 16);
    script.recv(32, 16, 32);
    // The older receive with a mask wins over the exact one; untagged messages are apart.
    script.send(&tagged(&script, 0, 0x1005), b"a");
    script.send(&tagged(&script, 1, 0x1005), b"b");
    script.send(&tagged(&script, 2, 0x2000), b"c");
    script.send(&script.eager(3), b"d");
    assert_eq!(
        received(&mut script),
        [(0, b"a".to_vec()), (16, b"b".to_vec()), (32, b"d".to_vec())]
    );
    // The unexpected one, by any tag.
    recv_tagged(&mut script, mask(0, u64::MAX), 48);
    let entry = script.completion();
    assert_eq!((entry.context, entry.tag), (48, 0x2000));
    assert_eq!(entry.flags, CompletionFlags::TAGGED | CompletionFlags::RECV);
}

#[test]
fn cq_data_and_selective_completion() {
    let mut script = Script::new();
    let with_data = |script: &Script, msg_id| {
        let mut eager = script.eager(msg_id);
        eager.options.cq_data = Some(0xDEAD_BEEF_0000_0001);
        eager
    };
    for flags in [OperationFlags::empty(), OperationFlags::COMPLETION] {
        script
            .dut
            .recv(RecvArgs {
                flags,
                ..RecvArgs::new(SourceFilter::Any, &[memory(0, 16)], flags.bits())
            })
            .unwrap();
    }
    script.send(&with_data(&script, 0), b"silent");
    script.expect_no_completion();
    assert_eq!(script.network.memory(0, MEMORY, 6), b"silent");
    script.send(&with_data(&script, 1), b"x");
    let entry = script.completion();
    assert_eq!(entry.data, 0xDEAD_BEEF_0000_0001);
    assert!(entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA));
}

#[test]
fn truncation_does_not_affect_the_next_message() {
    for expected in [true, false] {
        let mut script = Script::new();
        if expected {
            script.recv(0, 4, 1);
        }
        script.send(&script.eager(0), b"too long");
        if !expected {
            script.recv(0, 4, 1);
        }
        let error = script.error();
        assert_eq!(error.failure.errno, Errno::ETRUNC);
        assert_eq!(
            (error.context, error.length, error.overflow_length),
            (1, 4, 4)
        );
        // Not a byte beyond the buffer.
        assert_eq!(script.network.memory(0, MEMORY, 6), b"too \0\0");
        script.recv(0, 16, 2);
        script.send(&script.eager(1), b"fits");
        assert_eq!(script.completion().context, 2);
    }
}

#[test]
fn segments_come_in_any_order_and_split() {
    let data: Vec<u8> = (0..30).collect();
    let segments: [(usize, usize); 3] = [(0, 7), (7, 20), (20, 30)];
    for posted_after in 0..=3 {
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let mut script = Script::new();
            for (count, segment) in order.into_iter().enumerate() {
                if posted_after == count {
                    script.recv(0, 30, 9);
                }
                let (start, end) = segments[segment];
                // The second message, so that its packets also come before its turn.
                script.send(&script.medium(1, 30, start as u64), &data[start..end]);
                if count == 0 {
                    script.send(&tagged(&script, 0, 0), b"first");
                }
            }
            if posted_after == 3 {
                script.recv(0, 30, 9);
            }
            assert_eq!(script.completion().length, 30, "{order:?} {posted_after}");
            assert_eq!(script.network.memory(0, MEMORY, 30), data);
            assert_eq!(script.dut.usage().assemblies, 0);
            assert_eq!(script.dut.usage().deferred_packets, 1);
            assert_eq!(script.dut.poll_event(), None);
        }
    }
}

#[test]
fn contradictory_segments_fail_the_receive() {
    for (length, offset) in [(31, 8), (30, 25), (30, u64::MAX), (30, 23)] {
        let mut script = Script::new();
        script.recv(0, 64, 9);
        script.send(&script.medium(0, 30, 0), &[1; 8]);
        script.send(&script.medium(0, length, offset), &[2; 8]);
        script.expect_refusal(PacketError::SizeMismatch);
        let error = script.error();
        assert_eq!(error.failure.errno, Errno::EIO);
        assert_eq!(error.failure.provider, ProviderError::RequestSizeMismatch);
        // Late segments match no message; the next message is received.
        script.send(&script.medium(0, 30, 8), &[3; 8]);
        script.expect_refusal(PacketError::AlreadyProcessed { msg_id: 0 });
        script.recv(0, 64, 10);
        script.send(&script.eager(1), b"x");
        assert_eq!(script.completion().context, 10);
        assert_eq!(script.dut.usage().assemblies, 0);
    }
}

#[test]
fn unreachable_memory_fails_only_its_receive() {
    let mut script = Script::new();
    let wild = memory(1 << 40, 16);
    let receive = |script: &mut Script, buffer, context| {
        script
            .dut
            .recv(RecvArgs::new(SourceFilter::Any, &[buffer], context))
            .unwrap();
    };
    receive(&mut script, wild, 1);
    script.send(&script.eager(0), b"x");
    let error = script.error();
    assert_eq!(error.failure.errno, Errno::EFAULT);
    // And of a send.
    let peer = script.dut.find_address(&script.peer_address()).unwrap();
    let refused = script.dut.send(SendArgs::new(peer, &[wild], 0));
    assert_eq!(refused.unwrap_err().errno(), Errno::EFAULT);
    script.expect_handshake();
    script.shake_hands(ExtraFeatures::CONNID_HEADER);
    script.send_message(peer, 1, 2);
    let (packet_type, msg_id) = script.expect(|packet| match packet.header {
        efa_core::wire::Header::EagerRtm(eager) => (packet.base.packet_type, eager.msg_id),
        other => panic!("{other:?}"),
    });
    assert_eq!((packet_type, msg_id), (PacketType::EagerMsgRtm, MsgId(0)));
}

#[test]
fn cancelled_receives_take_nothing() {
    let mut script = Script::new();
    let first = script.recv(0, 16, 1);
    script.recv(16, 16, 2);
    script.recv(32, 16, 2);
    assert!(script.dut.cancel(first));
    assert!(!script.dut.cancel(first));
    assert_eq!(script.error().failure.errno, Errno::ECANCELED);
    // By context: the oldest one.
    assert!(script.dut.cancel_context(2));
    assert_eq!(script.error().context, 2);
    assert!(!script.dut.cancel_context(7));
    script.send(&script.eager(0), b"x");
    assert_eq!(script.completion().context, 2);
    assert_eq!(script.network.memory(0, MEMORY + 32, 1), b"x");
    assert!(!script.dut.cancel_context(2));
}
