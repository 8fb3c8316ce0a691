//! Reliable, unordered delivery.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_core::nic::Status;
use efa_sim::{FabricConfig, NetworkConfig, Probability, Reliability};

use super::{Pair, finished, orderly, packets};

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
fn every_request_ends_once_in_any_network() {
    let mut overtaken = 0;
    for seed in 0..40 {
        let in_flight = 1 + (seed as usize % 50);
        let network = NetworkConfig {
            paths: 1 + (seed % 7) as u16,
            jitter: Duration::from_micros(seed),
            loss: Probability::new((seed % 5) as f64 * 0.1).unwrap(),
            rnr: Probability::new((seed % 3) as f64 * 0.2).unwrap(),
            reliability: Reliability {
                attempts: 2 + (seed % 4) as u32,
                ..Reliability::default()
            },
            in_flight,
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
        assert!(pair.fabric.in_flight() <= in_flight);
        while pair.fabric.step().is_some() {
            assert!(pair.fabric.in_flight() <= in_flight, "seed {seed}");
        }
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
        overtaken += arrived.windows(2).filter(|two| two[0] > two[1]).count();
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
    assert!(overtaken > 1000, "only {overtaken} packets were overtaken");
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
