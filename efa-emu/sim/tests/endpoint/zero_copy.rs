//! Endpoints that receive into the application's buffers, by a second queue pair.

use efa_core::endpoint::{
    CompletionFlags, EndpointConfig, EndpointError, Errno, Event, IoVec, MultiRecvArgs,
    OperationFlags, PacketError, PeerId, Protocol, ProviderError, RecvArgs, SendArgs, SourceFilter,
    TagFilter,
};
use efa_core::nic::{Nic as _, QueuePair as _};
use efa_core::wire::PacketType;

use crate::rig::{Program, Rig, config, orderly, pattern};
use efa_sim::NicConfig;

const PROFILE: &str = "efa2";
/// The largest packet of the profile, in bytes.
const MTU: usize = 8928;

/// The offset of a program's receives in its memory; each gets the same room.
const TARGETS: u64 = 512 << 10;
const ROOM: usize = 10_000;

fn target(number: u64) -> u64 {
    TARGETS + number * ROOM as u64
}

/// Two programs that receive into their buffers, and the second in the address vector of the first.
fn pair() -> (Rig, PeerId) {
    let mut rig = Rig::new(orderly());
    rig.add_zero_copy(PROFILE, config());
    rig.add_zero_copy(PROFILE, config());
    let peer = rig.insert_program(0, 1);
    (rig, peer)
}

/// An ordinary program that does not wait for handshakes, and one that receives into its buffers.
fn ordinary_and_zero_copy() -> (Rig, PeerId) {
    let mut rig = Rig::new(orderly());
    rig.add(PROFILE, &config(), NicConfig::default());
    rig.add_zero_copy(PROFILE, config());
    let peer = rig.insert_program(0, 1);
    (rig, peer)
}

fn receive(program: &mut Program, buffer: &[IoVec]) -> Result<(), EndpointError> {
    let posted = program
        .endpoint
        .recv(RecvArgs::new(SourceFilter::Any, buffer, 0));
    posted.map(|_| ())
}

#[test]
fn messages_without_headers_land_in_the_buffers() {
    let (mut rig, peer) = pair();
    let lengths = [0, 1, 64, 4096, MTU];
    for number in 0..lengths.len() as u64 {
        rig.program(1).recv(target(number), ROOM, 100 + number);
        assert_eq!(rig.program(1).endpoint.usage().inbound, number as usize + 1);
    }
    for (number, length) in (0..).zip(lengths) {
        let data = pattern(length, number as u8);
        rig.program(0).fill(0, &data);
        rig.start_operation(0, |program| program.send(peer, 0, length, number));
        rig.settle();
        assert_eq!(rig.program(1).bytes(target(number), length), data);
    }
    let back = rig.insert_program(1, 0);
    let received = core::mem::take(&mut rig.program(1).completions);
    for ((number, length), entry) in (0..).zip(lengths).zip(received) {
        let entry = entry.unwrap();
        assert_eq!((entry.context, entry.length), (100 + number, length as u64));
        assert_eq!(entry.flags, CompletionFlags::RECV | CompletionFlags::MSG);
        assert_eq!(entry.source, Some(back));
    }
    assert_eq!(rig.program(0).contexts(), [0, 1, 2, 3, 4]);
    // The device has written the buffers.
    let statistics = *rig.program(1).endpoint.statistics();
    for protocol in Protocol::ALL {
        assert_eq!(statistics.copied(protocol).received, 0, "{protocol:?}");
    }
    assert_eq!(statistics.receives.successes, lengths.len() as u64);
    assert_eq!(rig.program(1).endpoint.usage().inbound, 0);
    assert_eq!(rig.program(1).events, []);
}

#[test]
fn completion_data_arrives_with_the_message() {
    let (mut rig, peer) = pair();
    rig.program(1).recv(target(0), ROOM, 7);
    let data = [rig.program(0).piece(0, 8)];
    rig.start_operation(0, |program| {
        program.endpoint.send(SendArgs {
            cq_data: Some(0x1234_5678),
            flags: OperationFlags::INJECT,
            ..SendArgs::new(peer, &data, 0)
        })
    });
    rig.settle();
    let entry = rig.program(1).completions.pop().unwrap().unwrap();
    assert_eq!((entry.context, entry.data), (7, 0x1234_5678));
    assert!(entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA));
}

#[test]
fn truncation_fails_that_message_on_both_sides() {
    let (mut rig, peer) = pair();
    rig.program(1).recv(target(0), 64, 10);
    rig.program(1).recv(target(1), 64, 11);
    rig.start_operation(0, |program| program.send(peer, 0, 65, 1));
    rig.settle();
    rig.program(0).fill(0, &pattern(64, 3));
    rig.start_operation(0, |program| program.send(peer, 0, 64, 2));
    rig.settle();
    for (at, context, provider) in [
        (0, 1, ProviderError::RemoteBadLength),
        (1, 10, ProviderError::LocalBadLength),
    ] {
        let [failed, succeeded] = rig.program(at).completions[..] else {
            panic!("{:?}", rig.program(at).completions);
        };
        let failed = failed.unwrap_err();
        assert_eq!(failed.context, context);
        assert_eq!(failed.failure.errno, Errno::EMSGSIZE);
        assert_eq!(failed.failure.provider, provider);
        assert_eq!(succeeded.unwrap().context, context + 1);
    }
    assert_eq!(rig.program(1).bytes(target(1), 64), pattern(64, 3));
}

#[test]
fn a_message_waits_for_a_receive() {
    let (mut rig, peer) = pair();
    rig.program(0).fill(0, &pattern(64, 9));
    rig.start_operation(0, |program| program.send(peer, 0, 64, 1));
    for _ in 0..1000 {
        rig.poll();
        rig.fabric.step();
    }
    assert_eq!(rig.program(0).completions, []);
    assert!(rig.program(0).endpoint.statistics().receiver_not_ready > 0);
    rig.program(1).recv(target(0), ROOM, 2);
    rig.settle();
    assert_eq!(rig.program(0).contexts(), [1]);
    assert_eq!(rig.program(1).contexts(), [2]);
    assert_eq!(rig.program(1).bytes(target(0), 64), pattern(64, 9));
}

#[test]
fn header_messages_are_refused_and_then_headerless() {
    let (mut rig, peer) = ordinary_and_zero_copy();
    rig.program(1).recv(target(0), ROOM, 5);
    // Two packets, neither of which is received.
    rig.program(0).send(peer, 0, 12_000, 1).unwrap();
    rig.settle();
    let refused = Event::PacketRefused {
        peer: Some(rig.insert_program(1, 0)),
        packet_type: PacketType::MediumMsgRtm.code(),
        reason: PacketError::MessageWithHeader,
    };
    assert_eq!(rig.program(1).events, [refused, refused]);
    assert_eq!(rig.program(1).completions, []);
    rig.program(0).fill(0, &pattern(64, 1));
    rig.program(0).send(peer, 0, 64, 2).unwrap();
    rig.settle();
    assert_eq!(rig.program(1).contexts(), [5]);
    assert_eq!(rig.program(1).bytes(target(0), 64), pattern(64, 1));
    // Longer messages have no subprotocol left.
    let refused = rig.program(0).send(peer, 0, MTU + 1, 3);
    assert!(matches!(refused, Err(EndpointError::OutOfRange { .. })));
}

#[test]
fn eager_messages_with_a_header_are_refused() {
    let (mut rig, peer) = ordinary_and_zero_copy();
    rig.program(1).recv(target(0), ROOM, 5);
    rig.program(0).send(peer, 0, 64, 1).unwrap();
    rig.settle();
    let refused = Event::PacketRefused {
        peer: Some(rig.insert_program(1, 0)),
        packet_type: PacketType::EagerMsgRtm.code(),
        reason: PacketError::MessageWithHeader,
    };
    assert_eq!(rig.program(1).events, [refused]);
    assert_eq!(rig.program(1).endpoint.usage().inbound, 1);
}

#[test]
fn zero_copy_receivers_send_normally_to_known_peers() {
    let (mut rig, _) = ordinary_and_zero_copy();
    let peer = rig.insert_program(1, 0);
    rig.program(0).recv(0, 20_000, 3);
    rig.program(1).fill(0, &pattern(20_000, 4));
    assert_eq!(
        rig.program(1).send(peer, 0, 20_000, 1),
        Err(EndpointError::TryAgain),
        "the peer may be such a receiver"
    );
    rig.start_operation(1, |program| program.send(peer, 0, 20_000, 1));
    rig.settle();
    assert_eq!(rig.program(0).contexts(), [3]);
    assert_eq!(rig.program(0).bytes(0, 20_000), pattern(20_000, 4));
}

#[test]
fn receives_needing_software_matching_are_refused() {
    let (mut rig, peer) = pair();
    let program = rig.program(0);
    let piece = program.piece(0, 64);
    let unsupported = |posted| matches!(posted, Err(EndpointError::Unsupported(_)));
    let pieces = [piece];
    let args = RecvArgs::new(SourceFilter::Any, &pieces, 0);
    let tagged = RecvArgs {
        tag: Some(TagFilter::exact(5)),
        ..args
    };
    let directed = RecvArgs {
        source: SourceFilter::Peer(peer),
        ..args
    };
    for refused in [tagged, directed] {
        assert!(unsupported(program.endpoint.recv(refused)));
    }
    let several = program.endpoint.multi_recv(MultiRecvArgs {
        source: SourceFilter::Any,
        buffer: piece,
        min_free: 8,
        context: 0,
    });
    assert!(unsupported(several));
    for buffer in [&[piece, piece][..], &[], &[IoVec::new(piece.memory)]] {
        assert_eq!(receive(program, buffer).unwrap_err().errno(), Errno::EINVAL);
    }
    assert_eq!(program.endpoint.usage().inbound, 0);
    let id = program.endpoint.recv(args).unwrap();
    assert!(!program.endpoint.cancel(id), "the device has it");
    assert!(!program.endpoint.cancel_context(0));
    assert_eq!(program.endpoint.peek(SourceFilter::Any, None), None);
}

#[test]
fn receives_wait_for_room_in_the_queue() {
    let (mut rig, _) = pair();
    let program = rig.program(0);
    let piece = [program.piece(0, 64)];
    let posted = (0..).find(|_| receive(program, &piece).is_err()).unwrap();
    assert_eq!(posted, program.endpoint.usage().inbound);
    assert_eq!(receive(program, &piece).unwrap_err().errno(), Errno::EAGAIN);
}

#[test]
fn closing_takes_the_receives_back() {
    let (mut rig, peer) = pair();
    for number in 0..3 {
        rig.program(1).recv(target(number), ROOM, number);
    }
    rig.start_operation(0, |program| program.send(peer, 0, 64, 1));
    rig.settle();
    let Program { endpoint, .. } = rig.programs[1].take().unwrap();
    let nic = endpoint.close();
    let others = nic.queue_pair().attributes().recv_queue_depth;
    assert_eq!(nic.posted_receives(), others, "those of packets");
    drop(nic);
    rig.program(0).completions.clear();
    // The queue pair is destroyed.
    rig.start_operation(0, |program| program.send(peer, 0, 64, 2));
    rig.settle();
    let failed = rig.program(0).completions.pop().unwrap().unwrap_err();
    assert_eq!(failed.failure.errno, Errno::ENOTCONN);
}

/// As [`pair`], after a message from the first to the second, which then removes the first from its
/// address vector.
fn pair_whose_second_removed_the_first() -> (Rig, PeerId) {
    let (mut rig, peer) = pair();
    rig.program(1).recv(target(0), ROOM, 0);
    rig.start_operation(0, |program| program.send(peer, 0, 8, 1));
    rig.settle();
    let known = rig.insert_program(1, 0);
    rig.program(1).endpoint.remove_address(known).unwrap();
    rig.program(1).completions.clear();
    (rig, peer)
}

#[test]
fn messages_of_removed_peers_have_no_source() {
    let (mut rig, peer) = pair_whose_second_removed_the_first();
    rig.program(1).recv(target(1), ROOM, 1);
    rig.program(0).send(peer, 0, 8, 2).unwrap();
    rig.settle();
    let entry = rig.program(1).completions.pop().unwrap().unwrap();
    assert_eq!((entry.context, entry.source), (1, None));
}

#[test]
fn a_reinserted_peer_gets_no_second_handshake() {
    let (mut rig, peer) = pair_whose_second_removed_the_first();
    let again = rig.insert_program(1, 0);
    rig.program(1).recv(target(1), ROOM, 1);
    rig.program(1).recv(target(2), ROOM, 2);
    let sent = |rig: &mut Rig| rig.program(1).endpoint.statistics().packets_sent;
    let before = sent(&mut rig);
    for context in [2, 3] {
        rig.program(0).send(peer, 0, 8, context).unwrap();
        rig.settle();
        let entry = rig.program(1).completions.pop().unwrap().unwrap();
        assert_eq!(entry.source, Some(again));
        assert_eq!(sent(&mut rig), before);
    }
}

/// Messages without headers also show that their sender is alive.
#[test]
fn headerless_messages_count_as_activity() {
    const RECEIVER: usize = 0;
    let mut rig = Rig::new(orderly());
    let config = EndpointConfig {
        max_implicit_peers: 3,
        ..config()
    };
    for _ in 0..6 {
        rig.add_zero_copy(PROFILE, config.clone());
    }
    let mut send = |sender: usize| {
        let peer = rig.insert_program(sender, RECEIVER);
        rig.program(RECEIVER).recv(target(0), ROOM, 0);
        rig.start_operation(sender, |program| program.send(peer, 0, 8, 1));
        rig.settle();
        let entry = rig.program(RECEIVER).completions.pop().unwrap().unwrap();
        entry.source.unwrap()
    };
    // The first of three is replaced by the fourth. None of the others has sent since.
    let ids = [1, 2, 3, 4].map(&mut send);
    assert_eq!(send(2), ids[1]);
    send(5);
    let forgotten: Vec<&Event> = rig.program(RECEIVER).events.iter().collect();
    match forgotten[..] {
        [
            Event::PeerForgotten { peer: first, .. },
            Event::PeerForgotten { peer: second, .. },
        ] => assert_eq!([*first, *second], [ids[0], ids[2]]),
        _ => panic!("{forgotten:?}"),
    }
}
