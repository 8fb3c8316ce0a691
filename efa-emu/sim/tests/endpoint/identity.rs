//! The identity of senders: unknown senders, reused queue pair numbers, peers that die.

use efa_core::endpoint::{Errno, OperationFlags, SourceFilter, Usage};
use efa_core::wire::PacketType;
use efa_sim::{Action, Fault, Match, NicConfig};

use crate::rig::{Rig, config, orderly, pattern};

#[test]
fn a_server_learns_its_clients_from_their_packets() {
    for profile in ["efa0", "efa2"] {
        let mut rig = Rig::pair(orderly(), profile, &config());
        let to_server = rig.insert_program(0, 1);
        // The longest message is not the first: its handshake has arrived.
        for (number, length) in [10, 18_000, 60_000, 150_000].into_iter().enumerate() {
            rig.program(0).fill(0, &pattern(length, number as u8));
            rig.program(1).recv(0, 200_000, 1);
            rig.start_operation(0, |program| program.send(to_server, 0, length, 2));
            rig.settle();
            let request = rig.program(1).completions.pop().unwrap().unwrap();
            assert_eq!(
                rig.program(1).bytes(0, length),
                pattern(length, number as u8)
            );
            // And it answers without having inserted an address.
            rig.program(0).recv(0, 200_000, 3);
            let client = request.source.unwrap();
            rig.start_operation(1, |program| program.send(client, 0, length, 4));
            rig.settle();
            assert_eq!(rig.program(0).contexts(), [2, 3]);
            assert_eq!(rig.program(1).contexts(), [4]);
        }
        for number in 0..2 {
            assert_eq!(rig.program(number).events, []);
            assert_eq!(
                rig.program(number).endpoint.usage(),
                Usage {
                    peers: 1,
                    ..Usage::default()
                }
            );
        }
    }
}

/// A process dies, the next one on the host gets its queue pair number, and packets of the first
/// process arrive after the first packet of the second.
#[test]
fn late_packets_do_not_reach_the_successor() {
    let mut rig = Rig::pair(orderly(), "efa2", &config());
    let (to_server, old) = rig.exchange_handshakes(0, 1);
    let eager = PacketType::EagerMsgRtm.code();
    let hold = Fault::new(Match::packet(eager), Action::Hold).times(3);
    let hold = rig.fabric.install(hold);
    rig.program(0).fill(0, b"late");
    for _ in 0..3 {
        rig.start_operation(0, |program| program.send(to_server, 0, 4, 1));
    }
    rig.settle();
    assert_eq!(rig.fabric.held(hold), 3);
    let old_address = rig.address(0);
    let host = rig.kill(0);
    host.prefer_qpn(old_address.qpn);
    let second = rig.start(host, &config(), NicConfig::default());
    let address = rig.address(second);
    assert_eq!(
        (address.gid, address.qpn),
        (old_address.gid, old_address.qpn)
    );
    assert_ne!(address.qkey, old_address.qkey);

    // The successor sends first, then the late packets arrive.
    let to_server = rig.insert_program(second, 1);
    rig.program(second).fill(0, b"new!");
    rig.start_operation(second, |program| {
        program.send_with(to_server, 0, 4, OperationFlags::INJECT, 1)
    });
    rig.settle();
    for context in 0..4 {
        rig.program(1).recv(context * 8, 8, context);
    }
    rig.fabric.remove(hold);
    rig.settle();
    let entries = core::mem::take(&mut rig.program(1).completions);
    let new = rig.program(1).endpoint.find_address(&address).unwrap();
    assert_ne!(new, old);
    let mut from_new = 0;
    for entry in entries {
        let entry = entry.unwrap();
        let bytes = rig.program(1).bytes(entry.context * 8, 4);
        if entry.source == Some(new) {
            assert_eq!(bytes, b"new!");
            from_new += 1;
        } else {
            assert_eq!((entry.source, &bytes[..]), (Some(old), &b"late"[..]));
        }
    }
    assert_eq!(from_new, 1);
    // Sends to the old address fail; sends to the new one succeed.
    rig.program(second).recv(64, 8, 9);
    rig.start_operation(1, |program| program.send(old, 0, 4, 20));
    rig.start_operation(1, |program| program.send(new, 0, 4, 21));
    rig.settle();
    let entries = core::mem::take(&mut rig.program(1).completions);
    for entry in entries {
        match entry {
            Ok(entry) => assert_eq!(entry.context, 21),
            Err(error) => {
                assert_eq!((error.context, error.failure.errno), (20, Errno::ENOTCONN));
            }
        }
    }
    assert!(rig.program(second).contexts().contains(&9));
}

/// A peer dies while operations of all kinds are in flight: every operation with it ends with an
/// error, those with others continue.
#[test]
fn only_operations_with_the_dead_peer_fail() {
    let mut rig = Rig::pair(orderly(), "efa2", &config());
    let (victim, _) = rig.exchange_handshakes(0, 1);
    let third = rig.add("efa2", &config(), NicConfig::default());
    let (friend, _) = rig.exchange_handshakes(0, third);
    let target = rig.program(1).remote(0, 100);
    let mut context = 0;
    for length in [10, 18_000, 60_000, 150_000] {
        rig.start_operation(0, |program| program.send(victim, 0, length, context));
        context += 1;
    }
    rig.start_operation(0, |program| program.read(victim, 0, target, context));
    context += 1;
    let dc = OperationFlags::DELIVERY_COMPLETE;
    rig.start_operation(0, |program| program.write(victim, 0, target, dc, context));
    context += 1;
    rig.start_operation(0, |program| {
        program.fetch_add(
            victim,
            0,
            efa_core::endpoint::RemoteIoVec {
                length: 8,
                ..target
            },
            context,
        )
    });
    context += 1;
    rig.kill(1);
    rig.settle();
    let entries = core::mem::take(&mut rig.program(0).completions);
    let mut failed: Vec<u64> = entries
        .iter()
        .map(|entry| {
            let error = entry.unwrap_err();
            assert_eq!(error.failure.errno, Errno::ENOTCONN, "{error:?}");
            error.context
        })
        .collect();
    failed.sort_unstable();
    assert_eq!(failed, (0..context).collect::<Vec<_>>());
    rig.program(third).recv(0, 10, 1);
    rig.start_operation(0, |program| program.send(friend, 0, 10, 2));
    rig.settle();
    assert_eq!(rig.program(0).contexts(), [2]);
    let usage = rig.program(0).endpoint.usage();
    assert_eq!((usage.outbound, usage.inbound, usage.packets), (0, 0, 0));
}

/// Receives that name a peer wait for that peer alone.
#[test]
fn directed_receives_distinguish_hosts() {
    let mut rig = Rig::pair(orderly(), "efa2", &config());
    let (_, first) = rig.exchange_handshakes(0, 1);
    let third = rig.add("efa2", &config(), NicConfig::default());
    let (_, second) = rig.exchange_handshakes(third, 1);
    rig.program(1)
        .recv_from(SourceFilter::Peer(second), 0, 8, 1);
    rig.program(1).recv_from(SourceFilter::Peer(first), 8, 8, 2);
    for (number, data) in [(0, b"one"), (third, b"two")] {
        let to_server = rig.insert_program(number, 1);
        rig.program(number).fill(0, data);
        rig.start_operation(number, |program| program.send(to_server, 0, 3, 0));
        rig.settle();
    }
    assert_eq!(rig.program(1).contexts(), [2, 1]);
    assert_eq!(rig.program(1).bytes(0, 3), b"two");
    assert_eq!(rig.program(1).bytes(8, 3), b"one");
}
