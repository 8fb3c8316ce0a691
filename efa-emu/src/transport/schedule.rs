//! The emulated network between a send and its delivery: when a packet arrives, and by which path.
//!
//! The sender decides when a record is due; the receiver delivers records in the order of their
//! times ([`Agenda`]). Loss happens below the reliability layer: a lost packet is sent again after a
//! timeout, so it arrives late and never fails.

use std::collections::BinaryHeap;
use std::time::Duration;

use efa_core::address::Gid;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::config::NetworkOptions;
use crate::link::Operation;

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

/// Decides what happens to the packets that one device sends.
#[derive(Debug)]
pub(super) struct Network {
    options: NetworkOptions,
    random: SmallRng,
    next_path: u16,
}

impl Network {
    /// The network as the options describe it; `None` if it is perfect and there is nothing to
    /// decide. `gid` and `participant` make the choices of different devices independent.
    pub(super) fn new(options: &NetworkOptions, gid: Gid, participant: u32) -> Option<Network> {
        if options.is_immediate() && options.rnr == 0.0 {
            return None;
        }
        let seed = gid.0.iter().fold(options.seed, |seed, byte| {
            seed.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(*byte)
        });
        Some(Network {
            options: *options,
            random: SmallRng::seed_from_u64(seed ^ u64::from(participant) << 32),
            next_path: 0,
        })
    }

    /// The network as the answers of a device see it, which leave in the other direction; `None` if
    /// they arrive at once.
    pub(super) fn for_replies(
        options: &NetworkOptions,
        gid: Gid,
        participant: u32,
    ) -> Option<Network> {
        let options = NetworkOptions {
            seed: options.seed.rotate_left(32),
            rnr: 0.0,
            ..*options
        };
        Network::new(&options, gid, participant)
    }

    /// When an answer arrives that leaves at `now`.
    pub(super) fn reply(&mut self, now: u64) -> u64 {
        // Only sends find a receiver not ready.
        self.pass(now, Operation::RdmaRead).due
    }

    /// What happens to the next packet, sent at `now`.
    pub(super) fn pass(&mut self, now: u64, operation: Operation) -> Passage {
        let options = &self.options;
        let path = self.next_path;
        self.next_path = (path + 1) % options.paths.max(1);
        let not_ready = operation == Operation::Send
            && options.rnr > 0.0
            && self.random.random_bool(options.rnr);
        if options.is_immediate() {
            return Passage {
                due: 0,
                path,
                not_ready,
            };
        }
        let mut delay = options.latency;
        if !options.jitter.is_zero() {
            delay += options.jitter.mul_f64(self.random.random::<f64>());
        }
        // Paths differ in length by up to the latency.
        if options.paths > 1 {
            let spread = options.latency.max(SHORTEST_SPREAD);
            delay += spread * u32::from(path) / u32::from(options.paths);
        }
        if options.loss > 0.0 {
            let mut lost = 0;
            while lost < MAX_RETRANSMISSIONS && self.random.random_bool(options.loss) {
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

    fn dues(text: &str, count: usize) -> Vec<u64> {
        let mut network = Network::new(&options(text), Gid([1; 16]), 1).unwrap();
        (0..count)
            .map(|_| network.pass(1000, Operation::Send).due)
            .collect()
    }

    #[test]
    fn a_perfect_network_decides_nothing() {
        assert!(Network::new(&options(""), Gid([1; 16]), 1).is_none());
        assert!(Network::new(&options("seed=5,qpn-reuse=random"), Gid([1; 16]), 1).is_none());
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
            over_paths[3] > over_paths[4],
            "the second round overtakes the first"
        );
        let lossy = dues("loss=0.5", 100);
        let lost = lossy.iter().filter(|due| **due >= 1000 + 100_000).count();
        assert!((20..80).contains(&lost), "{lost}");
    }

    #[test]
    fn not_ready_is_for_sends() {
        let mut network = Network::new(&options("rnr=1"), Gid([1; 16]), 1).unwrap();
        let send = network.pass(5, Operation::Send);
        assert!(send.not_ready && send.due == 0);
        assert!(!network.pass(5, Operation::RdmaWrite).not_ready);
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
