//! Tests of the effects of the network on frames.

use std::collections::BTreeSet;

use std::time::Duration;

use efa_core::address::{Gid, Qpn};

use super::*;
use crate::fault::Stage;
use crate::link::Operation;

const A: Gid = Gid([1; 16]);
const B: Gid = Gid([2; 16]);

fn send(sequence: u32) -> Transmission {
    Transmission {
        stage: Stage::Request,
        operation: Operation::Send,
        initiator: A,
        responder: B,
        source_qpn: Qpn(2),
        sequence,
        retries: 0,
        lost: 0,
    }
}

fn probability(value: f64) -> Probability {
    Probability::new(value).unwrap()
}

#[test]
fn paths_are_evenly_spaced_and_differ_by_pair() {
    let network = Network::new(NetworkConfig::default(), 1);
    let of = |ends| -> Vec<_> {
        (0..16)
            .map(|path| network.path_latency(ends, path))
            .collect()
    };
    let lengths: BTreeSet<_> = of((A, B)).into_iter().collect();
    let step = network.config.path_spread / 15;
    let expected: BTreeSet<_> = (0..16)
        .map(|place| network.config.path_spread * place / 15)
        .collect();
    assert_eq!(lengths, expected);
    assert_eq!(of((A, B)), of((A, B)));
    let differs = (0..8).any(|last| of((A, Gid([last; 16]))) != of((A, B)));
    assert!(differs, "{step:?}");
}

#[test]
fn latency_is_bounded_and_all_paths_are_used() {
    let network = Network::new(NetworkConfig::default(), 1);
    let (low, high) = (Duration::from_micros(8), Duration::from_micros(14));
    let mut paths = BTreeSet::new();
    for sequence in 0..1000 {
        let passage = network.transmit(&send(sequence));
        assert!((low..=high).contains(&passage.latency));
        assert!(!passage.is_lost);
        paths.insert(passage.path);
    }
    assert_eq!(paths.len(), 16);
}

#[test]
fn an_orderly_network_has_one_latency() {
    let latency = Duration::from_micros(5);
    let network = Network::new(NetworkConfig::orderly(latency), 1);
    let arrives = DeliveryOutcome::Arrives {
        after: latency,
        path: 0,
        lost: 0,
    };
    for sequence in 0..100 {
        assert_eq!(network.delivery(&send(sequence)), arrives);
    }
    assert!(!network.config.is_immediate());
    assert!(NetworkConfig::perfect().is_immediate());
}

/// The outcome depends on each field of a transmission, and on no earlier transmission.
#[test]
fn a_transmission_has_the_same_outcome_every_run() {
    let config = NetworkConfig {
        jitter: Duration::from_secs(1),
        ..NetworkConfig::default()
    };
    let network = Network::new(config, 1);
    let fate = |transmission: &Transmission| network.transmit(transmission).latency;
    let first = fate(&send(7));
    let others = [
        send(8),
        send(7).again(),
        Transmission {
            retries: 1,
            ..send(7)
        },
        Transmission {
            source_qpn: Qpn(3),
            ..send(7)
        },
        Transmission {
            initiator: Gid([3; 16]),
            ..send(7)
        },
        Transmission {
            stage: Stage::Answer,
            ..send(7)
        },
    ];
    for other in &others {
        assert_ne!(fate(other), first, "{other:?}");
    }
    assert_eq!(fate(&send(7)), first);
    assert_ne!(Network::new(config, 2).transmit(&send(7)).latency, first);
    // A fixed value: the meaning of a recorded seed must never change.
    assert_eq!(first, Duration::from_nanos(689_391_837));
}

/// The same hosts in another fabric have other GIDs, and with the same seed the same network.
#[test]
fn inverted_gids_have_the_same_network() {
    let config = NetworkConfig {
        paths: 16,
        path_spread: Duration::from_secs(1),
        jitter: Duration::from_secs(1),
        rnr: Probability::new(0.5).unwrap(),
        ..NetworkConfig::default()
    };
    let original = Network::new(config, 1);
    let inverted = original.clone().for_inverted_gids(0x12_3456);
    let invert = |gid: Gid| Gid((u128::from_be_bytes(gid.0) ^ 0x12_3456).to_be_bytes());
    let mut differing = 0;
    for sequence in 0..100 {
        let there = send(sequence);
        let here = Transmission {
            initiator: invert(there.initiator),
            responder: invert(there.responder),
            ..there
        };
        assert_eq!(inverted.delivery(&here), original.delivery(&there));
        assert_eq!(inverted.answers_rnr(&here), original.answers_rnr(&there));
        differing += u32::from(original.delivery(&here) != original.delivery(&there));
    }
    assert!(differing > 50, "{differing}");
}

#[test]
fn wire_time_follows_the_bandwidth() {
    let network = NetworkConfig::default();
    // 12.5 bytes per nanosecond; 94 bytes are headers.
    assert_eq!(network.wire_time(12_500 - 94), Duration::from_micros(1));
    // A started nanosecond counts as a whole one.
    assert_eq!(network.wire_time(0), Duration::from_nanos(8));
    let slow = NetworkConfig {
        bandwidth: 1,
        ..network
    };
    assert_eq!(slow.wire_time(6), Duration::from_secs(100));
    let unlimited = NetworkConfig::perfect();
    assert_eq!(unlimited.wire_time(usize::MAX >> 1), Duration::ZERO);
}

/// Enabling one option does not change the choices about others.
#[test]
fn loss_changes_no_latency() {
    let calm = Network::new(NetworkConfig::default(), 1);
    let lossy = NetworkConfig {
        loss: probability(0.5),
        rnr: probability(0.5),
        ..NetworkConfig::default()
    };
    let lossy = Network::new(lossy, 1);
    let mut lost = 0;
    for sequence in 0..1000 {
        let (calm, lossy) = (
            calm.transmit(&send(sequence)),
            lossy.transmit(&send(sequence)),
        );
        assert_eq!((calm.path, calm.latency), (lossy.path, lossy.latency));
        lost += u32::from(lossy.is_lost);
    }
    assert!((400..600).contains(&lost), "{lost}");
}

#[test]
fn a_delivery_is_its_transmissions_added_up() {
    let config = NetworkConfig {
        loss: probability(0.7),
        reliability: Reliability {
            timeout: Duration::from_millis(1),
            attempts: 4,
        },
        ..NetworkConfig::default()
    };
    let network = Network::new(config, 3);
    let mut failed = 0;
    for sequence in 0..200 {
        let losses = (0..4).take_while(|lost| {
            let transmission = Transmission {
                lost: *lost,
                ..send(sequence)
            };
            network.transmit(&transmission).is_lost
        });
        let losses = losses.count() as u32;
        let waited = Duration::from_millis((1 << losses) - 1);
        match network.delivery(&send(sequence)) {
            DeliveryOutcome::Arrives { after, path, lost } => {
                let last = network.transmit(&Transmission {
                    lost,
                    ..send(sequence)
                });
                assert_eq!((lost, path), (losses, last.path));
                assert_eq!(after, waited + last.latency);
            }
            DeliveryOutcome::Fails { after } => {
                assert_eq!((losses, after), (4, waited));
                failed += 1;
            }
            DeliveryOutcome::Vanishes => panic!("a send"),
        }
    }
    assert!((20..80).contains(&failed), "0.7^4 of 200: {failed}");
    let datagram = Transmission {
        operation: Operation::Datagram,
        ..send(0)
    };
    let vanish = (0..50).filter(|sequence| {
        let datagram = Transmission {
            sequence: *sequence,
            ..datagram
        };
        network.delivery(&datagram) == DeliveryOutcome::Vanishes
    });
    assert!((20..50).contains(&vanish.count()));
}

#[test]
fn rnr_hits_sends_and_is_redrawn_per_retry() {
    let config = NetworkConfig {
        rnr: probability(0.9),
        ..NetworkConfig::perfect()
    };
    let network = Network::new(config, 1);
    let refused = |retries| network.answers_rnr(&Transmission { retries, ..send(0) });
    let refusals = (1000..2000).filter(|retries| refused(*retries)).count();
    assert!((850..950).contains(&refusals), "{refusals}");
    let write = Transmission {
        operation: Operation::RdmaWrite,
        ..send(0)
    };
    assert!((0..100).all(|sequence| !network.answers_rnr(&Transmission { sequence, ..write })));
}
