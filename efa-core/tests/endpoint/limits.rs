//! The share of one peer, registrations that run out, messages without order.

use efa_core::endpoint::*;
use efa_core::nic::{Access, Status, UserSlice};
use efa_core::wire::{
    EagerRtm, EagerRtw, ExtraFeatures, LongctsRtm, MsgId, PacketType, RecvId, Rta, RtaKind, SendId,
};

use crate::script::{
    MODERN, Script, announced, config, config_with, connected, connected_with, memory, peer_memory,
    traits, traits_with,
};
use efa_testing::nic::MEMORY;

fn failed_peer(script: &mut Script) -> Option<PeerId> {
    let events = core::iter::from_fn(|| script.dut.poll_event());
    events.into_iter().find_map(|event| match event {
        Event::PeerFailed { peer, .. } => Some(peer),
        _ => None,
    })
}

#[test]
fn peers_owed_too_many_answers_are_given_up() {
    let settings = config_with(|config| config.peer_operations = 20);
    let small = traits_with(|traits| traits.send_depth = 4);
    let (mut script, peer) = connected_with(settings, small);
    // No packet to the peer arrives, while it keeps requesting receipts.
    let options = script.raw_address();
    for number in 0..24 {
        let write = EagerRtw {
            receipt: Some(SendId(number)),
            options,
            ..EagerRtw::default()
        };
        assert_eq!(script.dut.poll_event(), None, "write {number}");
        script.send(&write, &[]);
        assert!(script.dut.usage().owed <= 20);
    }
    assert_eq!(script.dut.usage().owed, 20);
    script.send(
        &EagerRtw {
            receipt: Some(SendId(99)),
            options,
            ..EagerRtw::default()
        },
        &[],
    );
    assert_eq!(failed_peer(&mut script), Some(peer));
    // Earlier requests are still answered.
    for _ in 0..24 {
        script.expect(|packet| assert_eq!(packet.base.packet_type, PacketType::Receipt));
    }
    script.expect_silence();
    assert_eq!(script.dut.usage().owed, 0);
}

#[test]
fn one_peer_cannot_exhaust_deferral_memory() {
    let settings = EndpointConfig {
        deferred_bytes: 1 << 20,
        peer_deferred_bytes: 10 * 128,
        ..config()
    };
    let (mut script, peer) = connected_with(settings, traits());
    for number in 0..10 {
        let message = EagerRtm {
            options: script.raw_address(),
            ..script.eager(number)
        };
        script.send(&message, b"unexpected");
        assert_eq!(script.dut.poll_event(), None);
    }
    let one_too_many = script.eager(10);
    script.send(&one_too_many, b"unexpected");
    assert_eq!(failed_peer(&mut script), Some(peer));
    assert_eq!(script.dut.usage().deferred_packets, 0);
}

#[test]
fn messages_after_the_end_take_no_receive() {
    let settings = config_with(|config| config.peer_deferred_bytes = 2048);
    let (mut script, peer) = connected_with(settings, traits());
    let early = LongctsRtm {
        msg_id: MsgId(1),
        msg_length: 10_000,
        tag: Some(7),
        options: script.raw_address(),
        ..LongctsRtm::default()
    };
    script.send(&early, &[7; 700]);
    let receive = script
        .post_recv(SourceFilter::Any, Some(7), memory(0, 10_000), 5)
        .unwrap();
    // The one before it finds no receive and no memory.
    let unexpected = script.eager(0);
    script.send(&unexpected, &[0; 600]);
    assert_eq!(failed_peer(&mut script), Some(peer));
    script.expect_silence();
    assert_eq!(script.dut.usage().deferred_packets, 0);
    assert!(script.dut.cancel(receive), "it still waits");
}

#[test]
fn receiving_a_message_frees_its_peers_share() {
    let settings = config_with(|config| config.peer_deferred_bytes = 128);
    let (mut script, _) = connected_with(settings, traits());
    for number in 0..5 {
        let message = script.eager(number);
        script.send(&message, b"unexpected");
        script.recv(0, 16, number.into());
        assert_eq!(script.completion().context, u64::from(number));
    }
    assert_eq!(script.dut.poll_event(), None);
}

/// Pieces of a kilobyte each are gathered by the device if they are registered.
fn two_pieces() -> [IoVec; 2] {
    [memory(0, 6000), memory(8000, 6000)]
}

#[test]
fn a_failed_neighbour_registration_leaves_the_key_out() {
    let scarce = traits_with(|traits| traits.max_regions = 1);
    let (mut script, peer) = announced(config(), scarce, MODERN | ExtraFeatures::RDMA_READ);
    script
        .dut
        .send(SendArgs::new(peer, &two_pieces(), 1))
        .unwrap();
    // The mock device panics at a key that is not registered (any more).
    script.expect_header::<LongctsRtm>();
    assert_eq!(script.network.regions(0), 0);
}

/// Without registrations data is transferred as without RDMA. Stock libfabric refuses a LONGCTS_RTW
/// with all of its data.
#[test]
fn unregistrable_memory_is_sent_without_rdma() {
    let settings = EndpointConfig {
        min_read_message_size: 500,
        min_read_write_size: 500,
        ..config()
    };
    let none = traits_with(|traits| traits.max_regions = 0);
    let rdma = ExtraFeatures::RDMA_READ | ExtraFeatures::RDMA_WRITE;
    for (features, length, message, write) in [
        (
            MODERN | rdma,
            600,
            PacketType::EagerMsgRtm,
            PacketType::EagerRtw,
        ),
        (
            MODERN | rdma,
            1500,
            PacketType::MediumMsgRtm,
            PacketType::LongctsRtw,
        ),
        (
            MODERN | rdma,
            5000,
            PacketType::LongctsMsgRtm,
            PacketType::LongctsRtw,
        ),
        (
            MODERN | ExtraFeatures::RDMA_READ,
            600,
            PacketType::EagerMsgRtm,
            PacketType::EagerRtw,
        ),
    ] {
        let (mut script, peer) = announced(settings.clone(), none.clone(), features);
        script.send_message(peer, length, 1);
        let sent = script.expect(|packet| packet.base.packet_type);
        assert_eq!(sent, message, "{length} bytes, {features:?}");
        script.swallow_all();
        let remote = peer_memory(0x1000, length as u64, 1);
        script.write(peer, memory(0, length), &[remote], 2).unwrap();
        let sent = script.expect(|packet| packet.base.packet_type);
        assert_eq!(sent, write, "{length} bytes, {features:?}");
    }
    // A peer that reads, but does not know delivery complete (libfabric 1.11).
    let (mut script, peer) = announced(settings, none, ExtraFeatures::RDMA_READ);
    let refused = script.try_send(peer, 600, OperationFlags::DELIVERY_COMPLETE, 1);
    assert_eq!(refused.unwrap_err().errno(), Errno::EOPNOTSUPP);
    script.expect_silence();
}

#[test]
fn an_operation_without_room_deregisters() {
    let settings = config_with(|config| config.max_operations = 1);
    let (mut script, peer) = announced(
        settings,
        traits(),
        MODERN | ExtraFeatures::RDMA_READ | ExtraFeatures::RDMA_WRITE,
    );
    let write = |script: &mut Script| {
        script.write(peer, memory(0, 5000), &[peer_memory(0x1000, 5000, 1)], 1)
    };
    write(&mut script).unwrap();
    assert_eq!(script.network.regions(0), 1);
    for _ in 0..3 {
        assert_eq!(write(&mut script), Err(EndpointError::TryAgain));
        let message = script.try_send(peer, 20_000, OperationFlags::empty(), 2);
        assert_eq!(message, Err(EndpointError::TryAgain));
        assert_eq!(script.network.regions(0), 1);
    }
    script.network.fail(0, Status::RemoteBadAddress);
    script.progress();
    assert_eq!(script.error().context, 1);
    assert_eq!(script.network.regions(0), 0);
}

#[test]
fn unordered_messages_match_on_arrival_atomics_in_turn() {
    let settings = EndpointConfig {
        ordered: false,
        first_msg_id: u32::MAX - 1,
        ..config()
    };
    let (mut script, _) = connected_with(settings, traits());
    let counter = UserSlice::new(MEMORY + 512, 8);
    let region = script.dut.register(counter, Access::all()).unwrap();
    for context in 0..4 {
        script.recv(context * 8, 8, context);
    }
    let target = [efa_core::wire::RmaIov::new(
        counter.address,
        8,
        region.remote_key.0,
    )];
    let atomic = Rta {
        kind: RtaKind::Fetch(RecvId(5)),
        msg_id: MsgId(1),
        atomic_datatype: efa_core::wire::AtomicDatatype::UINT64,
        atomic_op: efa_core::wire::AtomicOp::SUM,
        rma_iov: efa_core::wire::RmaIovs::new(&target).unwrap(),
        options: script.raw_address(),
    };
    script.send(&atomic, &1_u64.to_le_bytes());
    script.expect_silence();
    for (context, id) in [2, 0, u32::MAX].into_iter().enumerate() {
        let message = script.eager(id);
        script.send(&message, &[id as u8]);
        assert_eq!(script.completion().context, context as u64);
        // A second one with the same id is a mistake wherever its turn is.
        script.send(&message, &[id as u8]);
        assert!(matches!(
            script.refusal(),
            PacketError::AlreadyProcessed { .. }
        ));
    }
    // One is missing before the atomic.
    script.expect_silence();
    let missing = script.eager(u32::MAX - 1);
    script.send(&missing, &[7]);
    assert_eq!(script.completion().context, 3);
    script.expect(|packet| assert_eq!(packet.base.packet_type, PacketType::AtomRsp));
    assert_eq!(script.network.memory(0, counter.address, 8)[0], 1);
    assert_eq!(script.network.memory(0, MEMORY, 1), [2]);
    assert_eq!(script.dut.usage().deferred_packets, 0);
}

/// Another endpoint or a thread of the application changes the memory in between.
#[test]
fn an_atomic_loses_no_change_of_others() {
    let (mut script, _) = connected();
    let counters = UserSlice::new(MEMORY + 512, 8);
    let region = script.dut.register(counters, Access::all()).unwrap();
    script
        .network
        .fill(0, counters.address, &[1, 0, 0, 0, 2, 0, 0, 0]);
    let target = efa_core::wire::RmaIov::new(counters.address, 8, region.remote_key.0);
    let atomic = Rta {
        kind: RtaKind::Fetch(RecvId(5)),
        atomic_datatype: efa_core::wire::AtomicDatatype::UINT32,
        atomic_op: efa_core::wire::AtomicOp::SUM,
        rma_iov: efa_core::wire::RmaIovs::new(&[target]).unwrap(),
        options: script.raw_address(),
        ..Rta::default()
    };
    script.dut.nic_mut().set_rival(|counter| counter[0] += 40);
    script.send(&atomic, &[10, 0, 0, 0, 20, 0, 0, 0]);
    let sent = script.sent();
    assert_eq!(sent[sent.len() - 8..], [41, 0, 0, 0, 2, 0, 0, 0]);
    let after = script.network.memory(0, counters.address, 8);
    assert_eq!(after, [51, 0, 0, 0, 22, 0, 0, 0]);
}

/// Any peer may be stock libfabric, because no feature identifies it (D33, D36).
#[test]
fn atomics_that_crash_stock_targets_fail() {
    use efa_core::wire::{AtomicDatatype, AtomicOp};

    let (mut script, peer) = crate::script::connected();
    let mut start = |datatype, size: usize, is_compare: bool, pieces: u64| {
        let operand = [memory(0, size * pieces as usize)];
        let result = [memory(1000, size * pieces as usize)];
        let remote: Vec<RemoteIoVec> = (0..pieces)
            .map(|piece| peer_memory(5000 + 100 * piece, size as u64, 1))
            .collect();
        script.dut.atomic(AtomicArgs {
            peer,
            datatype,
            operation: match is_compare {
                true => AtomicOp::CSWAP,
                false => AtomicOp::ATOMIC_WRITE,
            },
            operand: &operand,
            kind: match is_compare {
                true => AtomicKind::Compare {
                    result: &result,
                    comparand: &operand,
                },
                false => AtomicKind::Write,
            },
            remote: &remote,
            flags: OperationFlags::empty(),
            context: 1,
        })
    };
    let is_refused = |result| matches!(result, Err(EndpointError::Unsupported(_)));
    assert!(is_refused(start(
        AtomicDatatype::DOUBLE_COMPLEX,
        16,
        false,
        1
    )));
    assert!(is_refused(start(AtomicDatatype::LONG_DOUBLE, 16, false, 1)));
    let complex = AtomicDatatype::LONG_DOUBLE_COMPLEX;
    assert!(is_refused(start(complex, 32, false, 1)));
    assert!(is_refused(start(AtomicDatatype::UINT64, 8, true, 2)));
    assert_eq!(start(AtomicDatatype::UINT64, 8, false, 2), Ok(()));
    assert_eq!(start(AtomicDatatype::UINT64, 8, true, 1), Ok(()));
}
