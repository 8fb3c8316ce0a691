//! What the network does to frames: the same under the simulator and between processes.
//!
//! SRD sprays the packets of one queue pair over many paths and repairs loss in the network card, so
//! programs see neither loss nor order. Here each frame draws one of its host pair's paths; each path
//! has its own fixed latency, and each frame its own jitter on top. A lost frame goes again after a
//! time-out ([`Reliability`]), which a program sees as delay; after too many losses the request
//! completes with [`Status::LocalUnresponsiveRemote`](efa_core::nic::Status::LocalUnresponsiveRemote).
//!
//! What happens to a frame is a pure function of the seed and of the frame's name (`Transmission`):
//! the queue pair, the sequence number of the request there, and how often it was on the wire before.
//! Nothing else that is sent, and no clock, has an influence. What a staged fault does to a frame that
//! arrives is decided here as well (`Course`), after the rules have been asked
//! ([`crate::fault::Faults::decide`]).
//!
//! A link adds two things: a clock, and whatever carries the bytes. [`efa_sim`] runs every
//! transmission as an event of its own and asks for one at a time (`Network::transmit`).
//! [`efa_shm`] carries a frame once, and asks when it comes through
//! (`Network::journey`), which is the same transmissions added up.

mod agenda;
mod course;
mod random;
mod reliability;

use std::time::Duration;

use efa_core::address::{Gid, Qpn};

use crate::fault::{Delay, Frame, Stage};
use crate::link::{Operation, RequestHeader};

pub use self::agenda::Agenda;
pub use self::course::{Course, Twice};
pub use self::random::Probability;
pub use self::random::{Purpose, Random};
pub use self::reliability::Loss;
pub use self::reliability::Reliability;

use self::random::Draws;

/// How the network behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Paths between each pair of hosts, at least 1.
    pub paths: u16,
    /// Latency that every path has at least, one way.
    pub latency: Duration,
    /// The longest path takes this much longer than the shortest; those between are evenly spaced.
    pub path_spread: Duration,
    /// Each frame adds a random latency of its own, from zero to this.
    pub jitter: Duration,
    /// How fast a host puts bytes on the wire, in bytes per second; 0 for no limit. Only the simulator
    /// limits it: between processes, memory does.
    pub bandwidth: u64,
    /// How likely a frame, request or answer, is lost each time that it is on the wire.
    pub loss: Probability,
    /// How likely a receiver answers a send that it is not ready although it is.
    pub rnr: Probability,
    /// What the network card does about lost frames.
    pub reliability: Reliability,
    /// Requests that one host may have in flight; a device with more to send has to wait. Only the
    /// simulator limits it: between processes, the rings do.
    pub in_flight: usize,
}

/// Bytes that Ethernet, IPv6, UDP and the transport header add to each packet.
const FRAME_OVERHEAD: u64 = 14 + 40 + 8 + 32;

impl Default for NetworkConfig {
    /// 16 paths at about 10 µs with 100 Gbit/s, no loss: a calm cluster network.
    fn default() -> Self {
        NetworkConfig {
            paths: 16,
            latency: Duration::from_micros(8),
            path_spread: Duration::from_micros(4),
            jitter: Duration::from_micros(2),
            bandwidth: 12_500_000_000,
            ..NetworkConfig::perfect()
        }
    }
}

impl NetworkConfig {
    /// A network that takes no time and loses nothing.
    pub fn perfect() -> Self {
        NetworkConfig {
            paths: 1,
            latency: Duration::ZERO,
            path_spread: Duration::ZERO,
            jitter: Duration::ZERO,
            bandwidth: 0,
            loss: Probability::NEVER,
            rnr: Probability::NEVER,
            reliability: Reliability::default(),
            in_flight: usize::MAX,
        }
    }

    /// A network that changes nothing: one path, a constant latency, no loss, no bandwidth limit.
    /// Frames arrive in the order in which they were sent.
    pub fn orderly(latency: Duration) -> Self {
        NetworkConfig {
            latency,
            ..NetworkConfig::perfect()
        }
    }

    /// How long a frame with `length` bytes of data occupies its sender's port.
    pub fn wire_time(&self, length: usize) -> Duration {
        if self.bandwidth == 0 {
            return Duration::ZERO;
        }
        let nanoseconds = (length as u64 + FRAME_OVERHEAD)
            .saturating_mul(1_000_000_000)
            .div_ceil(self.bandwidth);
        Duration::from_nanos(nanoseconds)
    }

    /// Whether nothing happens to frames.
    pub fn is_perfect(&self) -> bool {
        self.is_immediate() && self.rnr == Probability::NEVER
    }

    /// Whether every frame arrives in the moment in which it is sent.
    pub fn is_immediate(&self) -> bool {
        let extra = self.path_spread.is_zero() || self.paths <= 1;
        self.latency.is_zero() && self.jitter.is_zero() && extra && self.loss == Probability::NEVER
    }
}

/// The name of a frame that is put on the wire: everything that the network's choices depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmission {
    /// Which of the frames of a request it is.
    pub stage: Stage,
    /// What the request does.
    pub operation: Operation,
    /// Who makes the request.
    pub initiator: Gid,
    /// Who serves it.
    pub responder: Gid,
    /// The initiator's queue pair.
    pub source_qpn: Qpn,
    /// Counts the requests of that queue pair.
    pub sequence: u32,
    /// How often the receiver was not ready for the request before.
    pub retries: u32,
    /// How often this frame was lost before, since the last retry.
    pub lost: u32,
}

/// Retries that are told apart. Links carry no more (see `record` of `efa-shm`), and only the choice
/// whether a receiver is ready must differ for each.
const MOST_RETRIES: u32 = RequestHeader::MOST_CARRIED_RETRIES;

impl Transmission {
    /// The first transmission of a request, or of its answer.
    pub fn first(
        stage: Stage,
        initiator: Gid,
        responder: Gid,
        header: &RequestHeader,
    ) -> Transmission {
        Transmission {
            stage,
            operation: header.operation,
            initiator,
            responder,
            source_qpn: header.source_qpn,
            sequence: header.sequence,
            retries: header.retries,
            lost: 0,
        }
    }

    /// The next one, after this one was lost.
    fn again(self) -> Transmission {
        Transmission {
            lost: self.lost.saturating_add(1),
            ..self
        }
    }

    /// The random numbers of the request, its `retries`-th retry.
    fn request_draws(&self, seed: u64, retries: u32) -> Draws {
        let gid = u128::from_be_bytes(self.initiator.0);
        Draws::new(seed)
            .of((gid >> 64) as u64)
            .of(gid as u64)
            .of(u64::from(self.source_qpn.0) << 32 | u64::from(self.sequence))
            .of(retries.into())
    }

    /// The random numbers of this transmission.
    fn draws(&self, seed: u64) -> Draws {
        let stage = match self.stage {
            Stage::Request => 0,
            Stage::Answer => 1,
        };
        self.request_draws(seed, self.retries.min(MOST_RETRIES))
            .of(stage << 32 | u64::from(self.lost))
    }

    /// Sender and receiver of the frame.
    fn ends(&self) -> (Gid, Gid) {
        match self.stage {
            Stage::Request => (self.initiator, self.responder),
            Stage::Answer => (self.responder, self.initiator),
        }
    }
}

impl From<&Frame<'_>> for Transmission {
    fn from(frame: &Frame<'_>) -> Self {
        Transmission {
            lost: frame.lost,
            ..Transmission::first(frame.stage, frame.initiator, frame.responder, frame.header)
        }
    }
}

/// How one transmission goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passage {
    /// The path's number, from 0.
    pub path: u16,
    /// From the sender's port to the receiver's.
    pub latency: Duration,
    /// It does not arrive.
    pub is_lost: bool,
}

/// How a frame fares from now on, all further transmissions included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Journey {
    /// It arrives.
    Arrives {
        /// In how long.
        after: Duration,
        /// By which path.
        path: u16,
        /// How often it was lost before.
        lost: u32,
    },
    /// The initiator's network card gives up.
    Fails {
        /// In how long.
        after: Duration,
    },
    /// It is a datagram and is lost, which nobody notices.
    Vanishes,
}

/// The network as one seed makes it. The frames that a host sends, requests and answers, meet the
/// network of that host.
#[derive(Clone, Debug)]
pub struct Network {
    /// How frames travel.
    pub config: NetworkConfig,
    seed: u64,
}

impl Network {
    /// The network of one seed.
    pub fn new(config: NetworkConfig, seed: u64) -> Self {
        Network { config, seed }
    }

    /// What happens to one transmission.
    pub fn transmit(&self, transmission: &Transmission) -> Passage {
        let draws = transmission.draws(self.seed);
        let config = &self.config;
        let path = draws.below(Purpose::Path, config.paths.max(1).into()) as u16;
        let jitter = draws.up_to(Purpose::Jitter, config.jitter);
        Passage {
            path,
            latency: config.latency + self.path_latency(transmission.ends(), path) + jitter,
            is_lost: draws.chance(Purpose::Loss, config.loss),
        }
    }

    /// What happens to a frame from this transmission on until it arrives or is given up.
    pub fn journey(&self, transmission: &Transmission) -> Journey {
        let mut transmission = *transmission;
        let mut after = Duration::ZERO;
        loop {
            let passage = self.transmit(&transmission);
            if !passage.is_lost {
                return Journey::Arrives {
                    after: after + passage.latency,
                    path: passage.path,
                    lost: transmission.lost,
                };
            }
            match self.lose(&transmission) {
                Loss::Repeated { after: wait } => after += wait,
                Loss::Fatal { after: wait } => {
                    return Journey::Fails {
                        after: after + wait,
                    };
                }
                Loss::Unnoticed => return Journey::Vanishes,
            }
            transmission = transmission.again();
        }
    }

    /// What happens to a frame after this transmission of it was lost in the way that `loss` says.
    pub fn journey_after(&self, transmission: &Transmission, loss: Loss) -> Journey {
        let wait = match loss {
            Loss::Repeated { after } => after,
            Loss::Fatal { after } => return Journey::Fails { after },
            Loss::Unnoticed => return Journey::Vanishes,
        };
        match self.journey(&transmission.again()) {
            Journey::Arrives { after, path, lost } => Journey::Arrives {
                after: wait + after,
                path,
                lost,
            },
            Journey::Fails { after } => Journey::Fails {
                after: wait + after,
            },
            Journey::Vanishes => Journey::Vanishes,
        }
    }

    /// What follows from the loss of a transmission.
    pub fn lose(&self, transmission: &Transmission) -> Loss {
        let reliability = &self.config.reliability;
        let follows = reliability.after_loss(transmission.operation, transmission.lost);
        tracing::debug!(
            peer = %transmission.responder,
            qpn = %transmission.source_qpn,
            sequence = transmission.sequence,
            stage = ?transmission.stage,
            attempt = transmission.lost + 1,
            ?follows,
            "frame lost"
        );
        follows
    }

    /// Whether the receiver claims not to be ready for a request that arrives.
    pub fn refuses(&self, request: &Transmission) -> bool {
        // Each retry draws anew, however many there are: otherwise some would never succeed.
        request.operation == Operation::Send
            && request
                .request_draws(self.seed, request.retries)
                .chance(Purpose::ReceiverNotReady, self.config.rnr)
    }

    /// The time that a rule adds to a frame.
    fn delay(&self, transmission: &Transmission, delay: Delay) -> Duration {
        let draws = transmission.draws(self.seed);
        delay.least + draws.up_to(Purpose::Delay, delay.most - delay.least)
    }

    /// What `path` adds for this pair of hosts: a pure function, so that no table grows with the
    /// square of the number of hosts.
    fn path_latency(&self, (from, to): (Gid, Gid), path: u16) -> Duration {
        let paths = self.config.paths;
        if paths <= 1 || self.config.path_spread.is_zero() {
            return Duration::ZERO;
        }
        let [from, to] = [from, to].map(|gid| u128::from_be_bytes(gid.0));
        let pair = Draws::new(self.seed)
            .of((from >> 64) as u64)
            .of(from as u64)
            .of((to >> 64) as u64)
            .of(to as u64);
        let first = pair.below(Purpose::PathLength, paths.into()) as u32;
        let place = (u32::from(path) + first) % u32::from(paths);
        self.config.path_spread * place / u32::from(paths - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

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
    fn paths_are_evenly_spaced_and_differ_between_pairs_of_hosts() {
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
    fn latency_stays_within_its_bounds_and_all_paths_are_used() {
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
        let arrives = Journey::Arrives {
            after: latency,
            path: 0,
            lost: 0,
        };
        for sequence in 0..100 {
            assert_eq!(network.journey(&send(sequence)), arrives);
        }
        assert!(!network.config.is_immediate());
        assert!(NetworkConfig::perfect().is_immediate());
    }

    /// Each part of a transmission's name counts, and nothing that happened before.
    #[test]
    fn a_transmission_meets_the_same_fate_in_every_run() {
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
        // The same numbers for ever: a seed that somebody wrote down keeps its meaning.
        assert_eq!(first, Duration::from_nanos(689_391_837));
    }

    #[test]
    fn wire_time_follows_the_bandwidth() {
        let network = NetworkConfig::default();
        // 12.5 bytes per nanosecond; 94 bytes are headers.
        assert_eq!(network.wire_time(12_500 - 94), Duration::from_micros(1));
        // What has begun is paid for.
        assert_eq!(network.wire_time(0), Duration::from_nanos(8));
        let slow = NetworkConfig {
            bandwidth: 1,
            ..network
        };
        assert_eq!(slow.wire_time(6), Duration::from_secs(100));
        let unlimited = NetworkConfig::perfect();
        assert_eq!(unlimited.wire_time(usize::MAX >> 1), Duration::ZERO);
    }

    /// An option that is switched on leaves the choices about everything else as they were.
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
    fn a_journey_is_its_transmissions_added_up() {
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
            match network.journey(&send(sequence)) {
                Journey::Arrives { after, path, lost } => {
                    let last = network.transmit(&Transmission {
                        lost,
                        ..send(sequence)
                    });
                    assert_eq!((lost, path), (losses, last.path));
                    assert_eq!(after, waited + last.latency);
                }
                Journey::Fails { after } => {
                    assert_eq!((losses, after), (4, waited));
                    failed += 1;
                }
                Journey::Vanishes => panic!("a send"),
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
            network.journey(&datagram) == Journey::Vanishes
        });
        assert!((20..50).contains(&vanish.count()));
    }

    #[test]
    fn not_ready_is_for_sends_and_each_retry_has_other_luck() {
        let config = NetworkConfig {
            rnr: probability(0.9),
            ..NetworkConfig::perfect()
        };
        let network = Network::new(config, 1);
        let refused = |retries| network.refuses(&Transmission { retries, ..send(0) });
        let refusals = (1000..2000).filter(|retries| refused(*retries)).count();
        assert!((850..950).contains(&refusals), "{refusals}");
        let write = Transmission {
            operation: Operation::RdmaWrite,
            ..send(0)
        };
        assert!((0..100).all(|sequence| !network.refuses(&Transmission { sequence, ..write })));
    }
}
