//! The emulated network between a send and its delivery: when a packet arrives, and by which path.
//!
//! The sender decides when a record is due; the receiver delivers records in the order of their
//! times ([`Agenda`]). Loss happens below the reliability layer: a lost packet is sent again after a
//! timeout, so it arrives late and never fails.

use std::collections::BinaryHeap;
use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::config::NetworkOptions;
use super::record::Record;
use crate::link::{Operation, RequestHeader};

/// How long the reliability layer waits for an acknowledgement before it sends a packet again, on
/// top of the round trip.
const RETRANSMIT_AFTER: Duration = Duration::from_micros(100);

/// How much longer the longest path is than the shortest, at least: enough for a packet to overtake
/// those that were sent just before it.
const SHORTEST_SPREAD: Duration = Duration::from_micros(10);

/// Retransmissions of one packet that are counted, so that a delivery time is always near.
const MAX_RETRANSMISSIONS: u32 = 16;

/// Latest delivery time that a receiver believes, from now on.
const LONGEST_DELAY: Duration = Duration::from_secs(600);

/// The system's monotonic clock, which all processes of a machine share, in nanoseconds.
pub(super) fn monotonic_now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What the network does to one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Passage {
    /// Delivery time in nanoseconds of [`monotonic_now`], 0 for at once.
    pub(super) due: u64,
    pub(super) path: u16,
    /// The receiver has to refuse it as not ready.
    pub(super) not_ready: bool,
}

/// A request on its way, or the answer to it. What the network does to a packet follows from this, the
/// options and the seed alone, and not from what else is sent and when: the n-th request of a queue
/// pair meets the same fate in every run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Packet {
    pub(super) operation: Operation,
    /// Who asks.
    pub(super) initiator: Gid,
    pub(super) source_qpn: Qpn,
    /// Counts the requests of that queue pair.
    pub(super) sequence: u32,
    /// How often it was refused as "receiver not ready" before.
    pub(super) attempt: u32,
}

impl Packet {
    pub(super) fn request(initiator: Gid, header: &RequestHeader, attempt: u32) -> Packet {
        Packet {
            operation: header.operation,
            initiator,
            source_qpn: header.source_qpn,
            sequence: header.sequence,
            attempt,
        }
    }

    /// The answer to a request. Only sends find a receiver not ready, so it is no send.
    pub(super) fn reply(initiator: Gid, record: &Record) -> Packet {
        Packet {
            operation: Operation::RdmaRead,
            ..Packet::request(initiator, &record.header, u32::from(record.retry))
        }
    }
}

/// Mixes a word into a seed.
fn mix(seed: u64, word: u64) -> u64 {
    (seed.rotate_left(25) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Decides what happens to the packets that one device sends.
#[derive(Debug)]
pub(super) struct Network {
    options: NetworkOptions,
}

impl Network {
    /// The network as the options describe it; `None` if it is perfect and there is nothing to
    /// decide.
    pub(super) fn new(options: &NetworkOptions) -> Option<Network> {
        if options.is_immediate() && options.rnr == 0.0 {
            return None;
        }
        Some(Network { options: *options })
    }

    /// The network as the answers of a device see it, which leave in the other direction; `None` if
    /// they arrive at once.
    pub(super) fn for_replies(options: &NetworkOptions) -> Option<Network> {
        Network::new(&NetworkOptions {
            seed: options.seed.rotate_left(32),
            rnr: 0.0,
            ..*options
        })
    }

    /// What happens to a packet that is sent at `now`.
    pub(super) fn pass(&self, now: u64, packet: &Packet) -> Passage {
        let options = &self.options;
        let gid = u128::from_be_bytes(packet.initiator.0);
        let queue_pair = [
            (gid >> 64) as u64,
            gid as u64,
            u64::from(packet.source_qpn.0),
        ]
        .into_iter()
        .fold(options.seed, mix);
        let number = u64::from(packet.attempt) << 32 | u64::from(packet.sequence);
        let mut random = SmallRng::seed_from_u64(mix(queue_pair, number));
        // A queue pair uses the paths in turns. The high bits are the well mixed ones.
        let turn = (queue_pair >> 40) + u64::from(packet.sequence) + u64::from(packet.attempt);
        let path = (turn % u64::from(options.paths.max(1))) as u16;
        let not_ready = packet.operation == Operation::Send
            && options.rnr > 0.0
            && random.random_bool(options.rnr);
        if options.is_immediate() {
            return Passage {
                due: 0,
                path,
                not_ready,
            };
        }
        let mut delay = options.latency;
        if !options.jitter.is_zero() {
            delay += options.jitter.mul_f64(random.random::<f64>());
        }
        // Paths differ in length by up to the latency.
        if options.paths > 1 {
            let spread = options.latency.max(SHORTEST_SPREAD);
            delay += spread * u32::from(path) / u32::from(options.paths);
        }
        if options.loss > 0.0 {
            let mut lost = 0;
            while lost < MAX_RETRANSMISSIONS && random.random_bool(options.loss) {
                lost += 1;
            }
            delay += (2 * options.latency + RETRANSMIT_AFTER) * lost;
        }
        Passage {
            due: now + delay.as_nanos() as u64,
            path,
            not_ready,
        }
    }
}

/// Things to be done at their times.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    entries: BinaryHeap<Entry<T>>,
    order: u64,
}

#[derive(Debug)]
struct Entry<T> {
    due: u64,
    order: u64,
    item: T,
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.order).cmp(&(self.due, self.order))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Agenda {
            entries: BinaryHeap::new(),
            order: 0,
        }
    }
}

impl<T> Agenda<T> {
    /// Enters something that a peer wants done at `due`; a time beyond all reason is taken for now.
    pub(super) fn enter(&mut self, now: u64, due: u64, item: T) {
        let due = if due > now + LONGEST_DELAY.as_nanos() as u64 {
            now
        } else {
            due
        };
        self.order += 1;
        self.entries.push(Entry {
            due,
            order: self.order,
            item,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The time of the first entry.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.entries.peek().map(|entry| entry.due)
    }

    /// Takes the first entry if its time has come.
    pub(super) fn take_due(&mut self, now: u64) -> Option<T> {
        if self.next_due()? > now {
            return None;
        }
        self.entries.pop().map(|entry| entry.item)
    }

    /// Drops entries.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.entries.retain(|entry| keep(&entry.item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> NetworkOptions {
        text.parse().unwrap()
    }

    fn send(sequence: u32) -> Packet {
        Packet {
            operation: Operation::Send,
            initiator: Gid([1; 16]),
            source_qpn: Qpn(2),
            sequence,
            attempt: 0,
        }
    }

    fn dues(text: &str, count: u32) -> Vec<u64> {
        let network = Network::new(&options(text)).unwrap();
        (0..count)
            .map(|sequence| network.pass(1000, &send(sequence)).due)
            .collect()
    }

    #[test]
    fn a_perfect_network_decides_nothing() {
        assert!(Network::new(&options("")).is_none());
        assert!(Network::new(&options("seed=5,qpn-reuse=random")).is_none());
    }

    #[test]
    fn latency_delays_and_jitter_varies_within_its_bound() {
        assert_eq!(dues("latency=1us", 3), [2000, 2000, 2000]);
        let jittered = dues("latency=1us,jitter=1us", 100);
        assert!(jittered.iter().all(|due| (2000..=3000).contains(due)));
        assert!(jittered.iter().any(|due| *due != jittered[0]));
        assert_eq!(
            jittered,
            dues("latency=1us,jitter=1us", 100),
            "same seed, same choices"
        );
        assert_ne!(jittered, dues("latency=1us,jitter=1us,seed=2", 100));
    }

    #[test]
    fn paths_make_packets_overtake_and_loss_makes_them_late() {
        let over_paths = dues("paths=4", 8);
        assert!(
            over_paths.windows(2).any(|pair| pair[0] > pair[1]),
            "the second round overtakes the first: {over_paths:?}"
        );
        assert_eq!(over_paths[..4], over_paths[4..]);
        let lossy = dues("loss=0.5", 100);
        let lost = lossy.iter().filter(|due| **due >= 1000 + 100_000).count();
        assert!((20..80).contains(&lost), "{lost}");
    }

    #[test]
    fn not_ready_is_for_sends() {
        let network = Network::new(&options("rnr=1")).unwrap();
        let passage = network.pass(5, &send(0));
        assert!(passage.not_ready && passage.due == 0);
        let write = Packet {
            operation: Operation::RdmaWrite,
            ..send(0)
        };
        assert!(!network.pass(5, &write).not_ready);
    }

    /// Each part of a packet's name counts, and nothing that happened before.
    #[test]
    fn a_packet_meets_the_same_fate_in_every_run() {
        let text = "paths=16,latency=1us,jitter=1s,loss=0.5,rnr=0.5";
        let network = Network::new(&options(text)).unwrap();
        let fate = |packet: &Packet| network.pass(0, packet);
        let first = fate(&send(7));
        let others = [
            send(8),
            Packet {
                attempt: 1,
                ..send(7)
            },
            Packet {
                source_qpn: Qpn(3),
                ..send(7)
            },
            Packet {
                initiator: Gid([2; 16]),
                ..send(7)
            },
        ];
        for other in &others {
            assert_ne!(fate(other), first, "{other:?}");
        }
        assert_eq!(fate(&send(7)), first);
        let replies = Network::for_replies(&options(text)).unwrap();
        assert_ne!(replies.pass(0, &send(7)).due, first.due);
        // Who is refused is tried again with other luck.
        let luck = |attempt| fate(&Packet { attempt, ..send(7) }).not_ready;
        assert!((0..64).any(luck) && !(0..64).all(luck));
    }

    #[test]
    fn the_agenda_keeps_times_and_the_order_of_equal_times() {
        let mut agenda = Agenda::default();
        for (due, item) in [(30, 'c'), (10, 'a'), (30, 'd'), (20, 'b')] {
            agenda.enter(0, due, item);
        }
        agenda.enter(5, u64::MAX, 'x');
        assert_eq!(agenda.take_due(4), None);
        assert_eq!(agenda.take_due(5), Some('x'), "an impossible time is now");
        assert_eq!(agenda.take_due(9), None);
        agenda.retain(|item| *item != 'b');
        let rest: String = std::iter::from_fn(|| agenda.take_due(100)).collect();
        assert_eq!(rest, "acd");
        assert!(agenda.is_empty());
    }
}
