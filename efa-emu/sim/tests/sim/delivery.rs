//! Reliable, unordered delivery.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_core::nic::{Domain, Doorbell, NicError, Status};
use efa_sim::{
    Fabric, FabricConfig, HostConfig, NetworkConfig, NicConfig, Probability, Reliability,
    ScriptedPeer,
};

use super::{Pair, count, finished, orderly, packets};

/// Sends `total` numbered packets from Alice to Bob, as fast as the send queue accepts them, and
/// returns the numbers in the order of arrival.
fn stream(pair: &mut Pair, total: u32) -> Vec<u32> {
    let to = pair.bob.address();
    let mut sent = 0;
    let mut arrived = Vec::new();
    let mut completed = 0;
    while completed < total {
        while sent < total && pair.alice.send(to, &sent.to_le_bytes()).is_ok() {
            sent += 1;
        }
        assert!(pair.fabric.step().is_some(), "{completed} of {total} done");
        for (_, status) in finished(&mut pair.alice) {
            assert_eq!(status, Status::Ok);
            completed += 1;
        }
        for packet in packets(&mut pair.bob) {
            arrived.push(u32::from_le_bytes(packet.bytes.try_into().unwrap()));
        }
    }
    arrived
}

fn assert_each_once(arrived: &[u32], total: u32) {
    let distinct: BTreeSet<u32> = arrived.iter().copied().collect();
    assert_eq!(arrived.len(), total as usize, "nothing arrives twice");
    assert_eq!(distinct, (0..total).collect(), "everything arrives");
}

#[test]
fn thousands_of_packets_arrive_once_and_reordered() {
    let mut pair = Pair::new(FabricConfig::seeded(42));
    let arrived = stream(&mut pair, 5000);
    assert_each_once(&arrived, 5000);
    let overtaken = arrived.windows(2).filter(|two| two[0] > two[1]).count();
    assert!(overtaken > 1000, "only {overtaken} packets were overtaken");
    assert!(pair.bob.nic().posted_receives() > 0);
}

#[test]
fn an_orderly_network_keeps_the_order() {
    let mut pair = Pair::orderly();
    assert_eq!(stream(&mut pair, 1000), (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_port_serializes_its_frames() {
    // A byte per nanosecond, and 94 bytes of headers.
    let network = NetworkConfig {
        bandwidth: 1_000_000_000,
        ..NetworkConfig::orderly(Duration::from_micros(5))
    };
    let mut pair = Pair::new(FabricConfig {
        network,
        ..orderly()
    });
    let to = pair.bob.address();
    for length in [906, 906, 1906] {
        pair.alice.send(to, &vec![0; length]).unwrap();
    }
    let mut arrivals = Vec::new();
    while pair.fabric.step().is_some() {
        let now = pair.fabric.now();
        arrivals.extend(packets(&mut pair.bob).iter().map(|_| now));
    }
    assert_eq!(arrivals, [6, 7, 9].map(Duration::from_micros));
    let statuses = finished(&mut pair.alice);
    assert!(statuses.iter().all(|(_, status)| *status == Status::Ok));
    assert_eq!(statuses.len(), 3);
    // The last answer has no data, and its sender's port is otherwise idle.
    assert_eq!(pair.fabric.now(), Duration::from_nanos(9_000 + 94 + 5_000));
}

#[test]
fn loss_is_repaired_below_the_queue_pair() {
    let network = NetworkConfig {
        loss: Probability::new(0.2).unwrap(),
        ..NetworkConfig::default()
    };
    let mut pair = Pair::new(FabricConfig {
        network,
        ..FabricConfig::seeded(7)
    });
    let arrived = stream(&mut pair, 2000);
    assert_each_once(&arrived, 2000);
    assert!(count(&pair.fabric, " lose ") > 300);
    assert!(count(&pair.fabric, " lose-answer ") > 300);
    assert!(
        count(&pair.fabric, " answer-again ") > 300,
        "an answer that was lost comes again, and the request is not served again"
    );
}

#[test]
fn a_busy_link_pushes_back_and_loses_nothing() {
    let network = NetworkConfig {
        in_flight: 3,
        ..NetworkConfig::default()
    };
    let mut pair = Pair::new(FabricConfig {
        network,
        ..FabricConfig::default()
    });
    let to = pair.bob.address();
    for number in 0..200_u32 {
        pair.alice.send(to, &number.to_le_bytes()).unwrap();
        assert!(pair.fabric.in_flight() <= 3);
    }
    while pair.fabric.step().is_some() {
        assert!(pair.fabric.in_flight() <= 3);
    }
    assert_eq!(packets(&mut pair.bob).len(), 200);
    assert_eq!(finished(&mut pair.alice).len(), 200);
}

#[test]
fn every_request_ends_once_in_any_network() {
    for seed in 0..40 {
        let network = NetworkConfig {
            paths: 1 + (seed % 7) as u16,
            jitter: Duration::from_micros(seed),
            loss: Probability::new((seed % 5) as f64 * 0.1).unwrap(),
            rnr: Probability::new((seed % 3) as f64 * 0.2).unwrap(),
            reliability: Reliability {
                attempts: 2 + (seed % 4) as u32,
                ..Reliability::default()
            },
            in_flight: 1 + (seed as usize % 50),
            ..NetworkConfig::default()
        };
        let mut pair = Pair::new(FabricConfig {
            network,
            ..FabricConfig::seeded(seed)
        });
        let to = pair.bob.address();
        let contexts: Vec<u64> = (0..200_u32)
            .map(|number| pair.alice.send(to, &number.to_le_bytes()).unwrap())
            .collect();
        pair.fabric.run_until_idle();
        let outcomes = finished(&mut pair.alice);
        let done: Vec<u64> = outcomes.iter().map(|(context, _)| *context).collect();
        assert_eq!(done, contexts, "seed {seed}: each completes once");
        assert_eq!(pair.fabric.in_flight(), 0);

        let arrived: Vec<u32> = packets(&mut pair.bob)
            .into_iter()
            .map(|packet| u32::from_le_bytes(packet.bytes.try_into().unwrap()))
            .collect();
        let distinct: BTreeSet<u32> = arrived.iter().copied().collect();
        assert_eq!(
            distinct.len(),
            arrived.len(),
            "seed {seed}: no packet twice"
        );
        for (context, status) in outcomes {
            match status {
                Status::Ok => assert!(distinct.contains(&(context as u32))),
                Status::RemoteRnr => assert!(!distinct.contains(&(context as u32))),
                // The packet arrived or not; the sender cannot know.
                Status::LocalUnresponsiveRemote => {}
                other => panic!("seed {seed}: unexpected {other:?}"),
            }
        }
    }
}

#[test]
fn packets_are_limited_to_the_mtu() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let mtu = pair.alice.nic().attributes().mtu;
    let longest = vec![7; mtu];
    let fits = pair.alice.send(to, &longest).unwrap();
    // The buffer ends at the MTU, so one more byte has to come from user memory.
    let host = pair.alice.nic().host().clone();
    let byte = host.allocate(1).unwrap();
    let too_long = {
        use efa_core::nic::{Access, Nic, SendRequest};
        let destination = pair.alice.destination(to).unwrap();
        let nic = pair.alice.nic();
        let region = nic.register(byte, Access::empty()).unwrap();
        let buffer = nic.acquire_buffer().unwrap();
        nic.post_send(
            &SendRequest {
                destination,
                buffer,
                header_length: mtu,
                payload: Some((byte, region.local_key)),
                immediate: None,
                context: 99,
            },
            Doorbell::Ring,
        )
        .unwrap();
        99
    };
    pair.fabric.run_until_idle();
    assert_eq!(
        finished(&mut pair.alice),
        [(fits, Status::Ok), (too_long, Status::LocalBadLength)]
    );
    let arrived = packets(&mut pair.bob);
    assert_eq!(arrived.len(), 1);
    assert_eq!(arrived[0].bytes, longest);
}

#[test]
fn an_empty_packet_and_immediate_data_arrive() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    pair.alice
        .send_with_immediate(to, &[], 0x1234_5678)
        .unwrap();
    pair.fabric.run_until_idle();
    let arrived = packets(&mut pair.bob);
    assert_eq!(arrived.len(), 1);
    assert!(arrived[0].bytes.is_empty());
    assert_eq!(arrived[0].immediate, Some(0x1234_5678));
}

/// Bob has no receives; Alice retries three times.
fn unready() -> (Fabric, ScriptedPeer, ScriptedPeer) {
    let fabric = Fabric::new(orderly());
    let nic = NicConfig {
        rnr_retry: 3,
        ..NicConfig::default()
    };
    let alice = fabric.add_host(HostConfig::default());
    let bob = fabric.add_host(HostConfig::default());
    let alice = ScriptedPeer::open(&alice, nic).unwrap();
    let bob = ScriptedPeer::open_without_receives(&bob, nic).unwrap();
    (fabric, alice, bob)
}

#[test]
fn endless_rnr_fails_after_the_retries() {
    let (fabric, mut alice, bob) = unready();
    let context = alice.send(bob.address(), b"hello").unwrap();
    fabric.run_until_idle();
    assert_eq!(finished(&mut alice), [(context, Status::RemoteRnr)]);
    assert_eq!(count(&fabric, " send "), 4, "one attempt and three retries");
}

#[test]
fn a_receive_posted_in_time_gets_one_packet() {
    let (fabric, mut alice, mut bob) = unready();
    let context = alice.send(bob.address(), b"hello").unwrap();
    while count(&fabric, " send ") < 2 {
        fabric.step().unwrap();
    }
    bob.post_receives(2).unwrap();
    fabric.run_until_idle();
    assert_eq!(finished(&mut alice), [(context, Status::Ok)]);
    assert_eq!(packets(&mut bob).len(), 1);
}

#[test]
fn injected_rnr_only_delays_under_unlimited_retries() {
    let network = NetworkConfig {
        rnr: Probability::new(0.5).unwrap(),
        ..NetworkConfig::default()
    };
    let config = FabricConfig {
        network,
        ..FabricConfig::seeded(3)
    };
    let nic = NicConfig {
        rnr_retry: 7,
        ..NicConfig::default()
    };
    let mut pair = Pair::with(config, nic);
    let arrived = stream(&mut pair, 500);
    assert_each_once(&arrived, 500);
    assert!(count(&pair.fabric, "RemoteRnr") > 200);
}

#[test]
fn full_queues_accept_again_after_a_poll() {
    let nic = NicConfig {
        send_queue_depth: 4,
        recv_queue_depth: 4,
        packet_buffers: 16,
        ..NicConfig::default()
    };
    let mut pair = Pair::with(orderly(), nic);
    let to = pair.bob.address();
    for _ in 0..4 {
        pair.alice.send(to, b"x").unwrap();
    }
    assert_eq!(pair.alice.send(to, b"x"), Err(NicError::QueueFull));
    assert_eq!(pair.bob.post_receives(1), Err(NicError::QueueFull));
    pair.fabric.run_until_idle();
    assert_eq!(
        pair.alice.send(to, b"x"),
        Err(NicError::QueueFull),
        "room comes from polling"
    );
    assert_eq!(finished(&mut pair.alice).len(), 4);
    assert_eq!(packets(&mut pair.bob).len(), 4);
    assert!(pair.alice.send(to, b"x").is_ok());
}

#[test]
fn completions_of_one_poll_come_in_any_order() {
    let order = |window| {
        let mut pair = Pair::new(FabricConfig {
            completion_window: window,
            ..orderly()
        });
        let to = pair.bob.address();
        for _ in 0..64 {
            pair.alice.send(to, b"x").unwrap();
        }
        pair.fabric.run_until_idle();
        std::iter::from_fn(|| pair.alice.next_finished().unwrap())
            .map(|request| request.context)
            .collect::<Vec<_>>()
    };
    let in_order: Vec<u64> = (0..64).collect();
    assert_eq!(order(1), in_order);
    let mixed = order(8);
    assert_ne!(mixed, in_order);
    assert_eq!(
        mixed.into_iter().collect::<BTreeSet<_>>(),
        in_order.into_iter().collect()
    );
}
