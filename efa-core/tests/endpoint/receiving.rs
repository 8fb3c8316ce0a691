//! Other ways to receive: multi-receive, peek, claim, discard; and to send: without headers.

use efa_core::address::Qkey;
use efa_core::endpoint::*;
use efa_core::nic::Status;
use efa_core::wire::{
    Cts, EagerRtm, ExtraFeatures, Handshake, LongctsRtm, MsgId, PacketType, Receipt, SendId,
    UserRecvQp,
};

use crate::script::{Script, config_with, memory, traits};
use efa_testing::nic::MEMORY;

fn multi(script: &mut Script, length: usize, min_free: usize) -> ReceiveId {
    script
        .dut
        .multi_recv(MultiRecvArgs {
            source: SourceFilter::Any,
            buffer: memory(0, length),
            min_free,
            context: 5,
        })
        .unwrap()
}

#[test]
fn multi_receive_takes_messages_until_too_little_remains() {
    for unexpected in 0..=4 {
        let mut script = Script::new();
        let data: Vec<Vec<u8>> = (0..4_u8).map(|number| vec![number + 1; 30]).collect();
        for (number, data) in data.iter().enumerate().take(unexpected) {
            script.send(&script.eager(number as u32), data);
        }
        multi(&mut script, 100, 20);
        for (number, data) in data.iter().enumerate().skip(unexpected) {
            script.send(&script.eager(number as u32), data);
        }
        for number in 0..3_u64 {
            let entry = script.completion();
            assert_eq!((entry.context, entry.length), (5, 30));
            assert_eq!(entry.buffer, MEMORY + 30 * number);
            let bytes = script.network.memory(0, entry.buffer, 30);
            assert_eq!(bytes, data[number as usize]);
            // Ten bytes are left after the third.
            let last = entry.flags.contains(CompletionFlags::MULTI_RECV);
            assert_eq!(last, number == 2, "{unexpected} unexpected, {number}");
        }
        script.expect_no_completion();
        assert_eq!(script.dut.usage().unexpected, 1);
        assert_eq!(script.dut.usage().inbound, 0);
        assert_eq!(script.dut.statistics().receives.successes, 3);
    }
}

#[test]
fn the_buffer_returns_with_its_last_message() {
    let mut script = Script::new();
    multi(&mut script, 64, 16);
    script.send(&script.medium(0, 30, 0), &[1; 15]);
    script.send(&script.eager(1), &[2; 30]);
    let entry = script.completion();
    assert_eq!(entry.buffer, MEMORY + 30);
    assert!(!entry.flags.contains(CompletionFlags::MULTI_RECV));
    script.expect_no_completion();
    script.send(&script.medium(0, 30, 15), &[1; 15]);
    let entry = script.completion();
    assert_eq!((entry.buffer, entry.length), (MEMORY, 30));
    assert!(entry.flags.contains(CompletionFlags::MULTI_RECV));
}

#[test]
fn messages_beyond_the_buffers_rest_are_truncated() {
    let mut script = Script::new();
    multi(&mut script, 64, 16);
    script.send(&script.eager(0), &[1; 40]);
    script.send(&script.eager(1), &[2; 40]);
    assert_eq!(script.completion().length, 40);
    let error = script.error();
    assert_eq!(error.failure.errno, Errno::ETRUNC);
    assert_eq!((error.length, error.overflow_length), (24, 16));
    assert!(error.flags.contains(CompletionFlags::MULTI_RECV));
    assert_eq!(script.network.memory(0, MEMORY + 64, 1), [0]);
}

#[test]
fn multi_receives_keep_their_place_and_cancel() {
    let mut script = Script::new();
    let id = multi(&mut script, 64, 8);
    script.recv(100, 16, 6);
    script.send(&script.eager(0), b"a");
    script.send(&script.eager(1), b"b");
    assert_eq!(script.completion().context, 5);
    assert_eq!(script.completion().context, 5);
    assert!(script.dut.cancel(id));
    let error = script.error();
    assert_eq!(error.failure.errno, Errno::ECANCELED);
    assert!(error.flags.contains(CompletionFlags::MULTI_RECV));
    script.send(&script.eager(2), b"c");
    assert_eq!(script.completion().context, 6);
    for min_free in [0, 65] {
        let error = script.dut.multi_recv(MultiRecvArgs {
            source: SourceFilter::Any,
            buffer: memory(0, 64),
            min_free,
            context: 0,
        });
        assert_eq!(error.unwrap_err().errno(), Errno::EINVAL);
    }
}

fn recv_claimed(script: &mut Script, claim: ClaimId, length: usize) -> Result<(), EndpointError> {
    let buffer = [memory(0, length)];
    script
        .dut
        .recv_claimed(ClaimedRecvArgs {
            claim,
            buffer: &buffer,
            flags: OperationFlags::COMPLETION,
            context: 8,
        })
        .map(|_| ())
}

#[test]
fn messages_can_be_looked_at_claimed_and_discarded() {
    let mut script = Script::new();
    let any = SourceFilter::Any;
    assert_eq!(script.dut.peek(any, None), None);
    for (msg_id, data) in [(0, &b"first"[..]), (1, b"second"), (2, b"third")] {
        let mut eager = script.eager(msg_id);
        eager.tag = Some(u64::from(msg_id));
        eager.options.cq_data = Some(70 + u64::from(msg_id));
        script.send(&eager, data);
    }
    let peer = script.dut.find_address(&script.peer_address()).unwrap();
    let all = Some(TagFilter {
        tag: 0,
        ignore: u64::MAX,
    });
    let info = |tag: u64, length| MessageInfo {
        source: peer,
        tag: Some(tag),
        length,
        cq_data: Some(70 + tag),
    };
    assert_eq!(script.dut.peek(any, all), Some(info(0, 5)));
    assert_eq!(script.dut.peek(any, None), None);
    let second = TagFilter::exact(1);
    let (claim, found) = script.dut.claim(any, Some(second)).unwrap();
    assert_eq!(found, info(1, 6));
    // Out of sight for everybody else.
    assert_eq!(script.dut.peek(any, Some(second)), None);
    assert_eq!(script.dut.usage().claimed, 1);
    recv_claimed(&mut script, claim, 64).unwrap();
    let entry = script.completion();
    assert_eq!((entry.context, entry.tag, entry.data), (8, 1, 71));
    assert_eq!(script.network.memory(0, MEMORY, 6), b"second");
    assert_eq!(
        recv_claimed(&mut script, claim, 64),
        Err(EndpointError::UnknownClaim)
    );
    let (claim, _) = script.dut.claim(any, all).unwrap();
    script.dut.discard(claim).unwrap();
    assert_eq!(script.dut.discard(claim), Err(EndpointError::UnknownClaim));
    script.expect_no_completion();
    assert_eq!(script.dut.peek(any, all), Some(info(2, 5)));
    assert_eq!(script.dut.usage().deferred_packets, 1);
}

#[test]
fn segments_find_their_claimed_message() {
    for discard in [false, true] {
        let mut script = Script::new();
        script.send(&script.medium(0, 30, 0), &[1; 10]);
        let (claim, info) = script.dut.claim(SourceFilter::Any, None).unwrap();
        assert_eq!(info.length, 30);
        script.send(&script.medium(0, 30, 20), &[3; 10]);
        if discard {
            script.dut.discard(claim).unwrap();
        } else {
            recv_claimed(&mut script, claim, 64).unwrap();
        }
        script.expect_no_completion();
        script.send(&script.medium(0, 30, 10), &[2; 10]);
        if discard {
            script.expect_no_completion();
            assert_eq!(script.network.memory(0, MEMORY, 30), [0; 30]);
        } else {
            assert_eq!(script.completion().length, 30);
            assert_eq!(script.network.memory(0, MEMORY + 10, 10), [2; 10]);
        }
        assert_eq!(script.dut.poll_event(), None);
        assert_eq!(
            script.dut.usage(),
            Usage {
                peers: 1,
                packets: script.dut.usage().packets,
                ..Usage::default()
            }
        );
    }
}

#[test]
fn a_discarded_long_message_is_fully_served() {
    let mut script = Script::new();
    let long = LongctsRtm {
        msg_length: 1000,
        send_id: SendId(3),
        delivery_complete: true,
        options: script.raw_address(),
        ..LongctsRtm::default()
    };
    script.send(&long, &[1; 500]);
    script.expect_handshake();
    let (claim, _) = script.dut.claim(SourceFilter::Any, None).unwrap();
    script.dut.discard(claim).unwrap();
    let recv_id = script.expect_header::<Cts>().recv_id;
    script.send_data(recv_id, 500, &[2; 500]);
    let receipt = script.expect_header::<Receipt>().send_id;
    assert_eq!(receipt, SendId(3));
    script.expect_no_completion();
}

#[test]
fn claims_of_a_removed_peer_name_nothing() {
    let mut script = Script::new();
    script.send(&script.eager(0), b"x");
    let (claim, info) = script.dut.claim(SourceFilter::Any, None).unwrap();
    script.dut.remove_address(info.source).unwrap();
    assert_eq!(
        recv_claimed(&mut script, claim, 8),
        Err(EndpointError::UnknownClaim)
    );
    assert_eq!(script.dut.usage().deferred_packets, 0);
}

#[test]
fn zero_copy_receivers_get_only_the_data() {
    let mut script = Script::new();
    let peer = script.insert_peer();
    let features = ExtraFeatures::CONNID_HEADER | ExtraFeatures::USER_RECV_QP;
    let handshake = Handshake {
        extra_info: features.into(),
        connid: script.connid(),
        device_version: Some(0xEFA1),
        user_recv_qp: Some(UserRecvQp {
            qpn: 21,
            qkey: Qkey(0x5555),
        }),
        ..Handshake::default()
    };
    script.send(&handshake, &[]);
    script.expect_handshake();
    script.network.fill(0, MEMORY, b"nothing but this");
    let send = |script: &mut Script, length, tag, cq_data| {
        script.dut.send(SendArgs {
            peer,
            data: &[memory(0, length)],
            tag,
            cq_data,
            flags: OperationFlags::COMPLETION | OperationFlags::DELIVERY_COMPLETE,
            context: 3,
        })
    };
    send(&mut script, 16, None, Some(77)).unwrap();
    let flight = &script.network.in_flight()[0];
    assert_eq!(flight.bytes, b"nothing but this");
    // Stock libfabric stores the bytes in host order, and verbs takes the first one as the most
    // significant.
    assert_eq!(flight.immediate, Some(77 << 24));
    assert_eq!(flight.destination, (21, 0x5555));
    // It finds no buffer at first, as others.
    script.network.fail(0, Status::RemoteRnr);
    script.progress();
    assert_eq!(script.network.in_flight()[0].destination, (21, 0x5555));
    script.network.swallow(0);
    script.progress();
    assert_eq!(script.completion().context, 3);
    let unsupported = send(&mut script, 16, Some(1), None).unwrap_err();
    assert_eq!(unsupported.errno(), Errno::EOPNOTSUPP);
    for (length, data) in [(1025, None), (1, Some(1 << 32))] {
        let error = send(&mut script, length, None, data).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
    }
}

/// Packets to a zero-copy receiver before its handshake would be lost.
#[test]
fn messages_are_refused_until_the_handshake() {
    let settings = config_with(|config| config.handshake_before_messages = true);
    let mut script = Script::with(settings, traits());
    let peer = script.insert_peer();
    for flags in [OperationFlags::empty(), OperationFlags::INJECT] {
        let sent = script.try_send(peer, 16, flags, 1);
        assert_eq!(sent, Err(EndpointError::TryAgain));
    }
    // The peer is sent one request for it.
    let request = script.expect(|packet| packet.base.packet_type);
    assert_eq!(request, PacketType::EagerRtw);
    script.expect_silence();
    script.shake_hands(ExtraFeatures::CONNID_HEADER);
    script.expect_handshake();
    script.send_message(peer, 16, 1);
    let msg_id = script.expect_header::<EagerRtm>().msg_id;
    assert_eq!(msg_id, MsgId(0));
}
