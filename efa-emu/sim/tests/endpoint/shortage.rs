//! Resources that run out: registrations, queues, receive buffers; and devices that cannot read
//! from each other.

use efa_core::endpoint::{
    CompletionFlags, EndpointConfig, IoVec, OperationFlags, RecvArgs, SendArgs, SourceFilter,
    WriteArgs,
};
use efa_core::wire::PacketType;
use efa_sim::{FabricConfig, NetworkConfig, NicConfig, Probability};

use crate::rig::{Rig, config, orderly, pattern};

/// Sends between unregistered buffers, so that either side has to register for RDMA.
fn exchange(rig: &mut Rig, length: usize, unregistered_target: bool) {
    let peer = rig.insert_program(0, 1);
    rig.program(0).fill(0, &pattern(length, 4));
    let target = rig.program(1).piece(0, length);
    let target = if unregistered_target {
        IoVec::new(target.memory)
    } else {
        target
    };
    rig.program(1)
        .endpoint
        .recv(RecvArgs::new(SourceFilter::Any, &[target], 1))
        .unwrap();
    let source = IoVec::new(rig.program(0).piece(0, length).memory);
    rig.start_operation(0, |program| {
        program.endpoint.send(SendArgs::new(peer, &[source], 2))
    });
    rig.settle();
    assert_eq!(rig.program(0).contexts(), [2]);
    assert_eq!(rig.program(1).contexts(), [1]);
    assert_eq!(rig.program(1).bytes(0, length), pattern(length, 4));
    for number in 0..2 {
        assert_eq!(rig.program(number).events, []);
        let usage = rig.program(number).endpoint.usage();
        assert_eq!((usage.outbound, usage.inbound, usage.assemblies), (0, 0, 0));
    }
}

#[test]
fn a_receiver_that_cannot_register_asks_for_packets() {
    for runt_size in [0, 10_000] {
        let config = EndpointConfig {
            runt_size,
            ..config()
        };
        let mut rig = Rig::pair(orderly(), "efa2", &config);
        rig.exchange_handshakes(0, 1);
        let nacks = rig.count(PacketType::ReadNack);
        let reads = rig.count(PacketType::LongctsMsgRtm);
        rig.program(1).host.fail_registrations(0, 1);
        exchange(&mut rig, 150_000, true);
        assert_eq!(
            (rig.fabric.applied(nacks), rig.fabric.applied(reads)),
            (1, 1)
        );
        // The next message is read by RDMA again.
        exchange(&mut rig, 150_000, true);
        assert_eq!(rig.fabric.applied(nacks), 1);
    }
}

#[test]
fn a_sender_unable_to_register_sends_packets() {
    let mut rig = Rig::pair(orderly(), "efa2", &config());
    rig.exchange_handshakes(0, 1);
    let nacks = rig.count(PacketType::ReadNack);
    let long = rig.count(PacketType::LongctsMsgRtm);
    rig.program(0).host.fail_registrations(0, 1);
    exchange(&mut rig, 150_000, false);
    assert_eq!(
        (rig.fabric.applied(nacks), rig.fabric.applied(long)),
        (0, 1)
    );
}

#[test]
fn device_generations_do_not_read_each_other() {
    for (one, other, reads) in [
        ("efa0", "efa0", false),
        ("efa0", "efa2", false),
        ("efa2", "efa0", false),
        ("efa1", "efa2", true),
        ("efa2", "efa1", true),
    ] {
        let mut rig = Rig::new(orderly());
        for profile in [one, other] {
            rig.add(profile, &config(), NicConfig::default());
        }
        rig.exchange_handshakes(0, 1);
        let requests = rig.count(PacketType::LongreadMsgRtm);
        exchange(&mut rig, 150_000, true);
        let read = rig.fabric.applied(requests) == 1;
        assert_eq!(read, reads, "{one} to {other}");
    }
}

#[test]
fn tiny_queues_and_losses_only_cost_time() {
    for seed in 0..20 {
        let probability = |value| Probability::new(value).unwrap();
        let fabric = FabricConfig {
            network: NetworkConfig {
                loss: probability(0.02),
                rnr: probability(0.05),
                ..NetworkConfig::default()
            },
            log: false,
            ..FabricConfig::seeded(seed)
        };
        let nic = NicConfig {
            send_queue_depth: 4,
            recv_queue_depth: 8,
            packet_buffers: 12,
            rnr_retry: 0,
            ..NicConfig::default()
        };
        let profile = ["efa0", "efa1", "efa2"][seed as usize % 3];
        let mut rig = Rig::new(fabric);
        for _ in 0..2 {
            rig.add(profile, &config(), nic);
        }
        let peer = rig.insert_program(0, 1);
        let lengths = [8, 5000, 18_000, 60_000, 150_000];
        let mut offset = 0;
        for (number, length) in lengths.into_iter().enumerate() {
            rig.program(0).fill(offset, &pattern(length, number as u8));
            rig.program(1).recv(offset, length, number as u64);
            offset += length as u64;
        }
        let mut offset = 0;
        for (number, length) in lengths.into_iter().enumerate() {
            let flags = match number % 2 {
                0 => OperationFlags::DELIVERY_COMPLETE,
                _ => OperationFlags::empty(),
            };
            rig.start_operation(0, |program| {
                program.send_with(peer, offset, length, flags, number as u64)
            });
            offset += length as u64;
        }
        rig.settle();
        for side in 0..2 {
            let mut contexts = rig.program(side).contexts();
            contexts.sort_unstable();
            assert_eq!(contexts, [0, 1, 2, 3, 4], "seed {seed}");
            assert_eq!(rig.program(side).events, [], "seed {seed}");
        }
        let mut offset = 0;
        for (number, length) in lengths.into_iter().enumerate() {
            let bytes = rig.program(1).bytes(offset, length);
            assert_eq!(bytes, pattern(length, number as u8), "seed {seed}");
            offset += length as u64;
        }
        for side in 0..2 {
            let nic = rig.program(side).endpoint.nic();
            assert_eq!((nic.posted_receives(), nic.free_buffers()), (8, 4));
        }
    }
}

/// A write with CQ data uses the device if both sides agree how it is reported, and is emulated
/// otherwise.
#[test]
fn cq_data_writes_arrive_at_every_queue_pair() {
    for (one, other, direct) in [
        (false, false, true),
        (true, true, true),
        (true, false, false),
        (false, true, false),
    ] {
        let mut rig = Rig::new(orderly());
        for unsolicited_write_recv in [one, other] {
            let nic = NicConfig {
                unsolicited_write_recv,
                ..NicConfig::default()
            };
            rig.add("efa2", &config(), nic);
        }
        let (peer, back) = rig.exchange_handshakes(0, 1);
        let emulated = rig.count(PacketType::EagerRtw);
        rig.program(0).fill(0, &pattern(500, 1));
        let target = rig.program(1).remote(100, 500);
        let data = [rig.program(0).piece(0, 500)];
        rig.start_operation(0, |program| {
            program.endpoint.write(WriteArgs {
                peer,
                data: &data,
                remote: &[target],
                cq_data: Some(0xCAFE),
                flags: OperationFlags::COMPLETION,
                context: 3,
            })
        });
        rig.settle();
        assert_eq!(rig.program(0).contexts(), [3]);
        assert_eq!(rig.program(1).bytes(100, 500), pattern(500, 1));
        let entry = rig.program(1).completions.pop().unwrap().unwrap();
        assert_eq!((entry.data, entry.length), (0xCAFE, 500));
        assert_eq!(entry.source, Some(back));
        assert_eq!(
            entry.flags,
            CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE | CompletionFlags::REMOTE_CQ_DATA
        );
        assert_eq!(rig.fabric.applied(emulated) == 0, direct, "{one} {other}");
        // Solicited writes consumed a receive buffer, which is posted again.
        let nic = rig.program(1).endpoint.nic();
        assert_eq!(nic.posted_receives(), 1024);
    }
}
