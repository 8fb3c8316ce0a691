//! Which number a new queue pair gets.

use std::collections::{BTreeSet, VecDeque};

use efa_core::address::Qpn;
use rand::Rng;

/// How numbers are chosen. How soon a number comes back decides how often late packets and
/// completions of a destroyed queue pair meet its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum QpnPolicy {
    /// The lowest free number: reuse as soon as possible.
    Lowest,
    /// The number that has been free for longest: reuse as late as possible.
    #[default]
    Oldest,
    /// Any free number.
    Random,
}

/// The free queue pair numbers of one GID. Number 0 is never given out.
pub struct QpnAllocator {
    policy: QpnPolicy,
    free: Free,
}

enum Free {
    Sorted(BTreeSet<u16>),
    Queue(VecDeque<u16>),
    Any(Vec<u16>),
}

impl QpnAllocator {
    /// Numbers 1 to `count` (at most 65535), all free.
    pub fn new(policy: QpnPolicy, count: u16) -> Self {
        let numbers = 1..=count;
        let free = match policy {
            QpnPolicy::Lowest => Free::Sorted(numbers.collect()),
            QpnPolicy::Oldest => Free::Queue(numbers.collect()),
            QpnPolicy::Random => Free::Any(numbers.collect()),
        };
        QpnAllocator { policy, free }
    }

    /// How numbers are chosen.
    pub fn policy(&self) -> QpnPolicy {
        self.policy
    }

    /// Takes a number; `None` if all are in use. Only [`QpnPolicy::Random`] draws from `random`.
    pub fn allocate(&mut self, random: &mut impl Rng) -> Option<Qpn> {
        match &mut self.free {
            Free::Sorted(free) => free.pop_first(),
            Free::Queue(free) => free.pop_front(),
            Free::Any(free) => {
                if free.is_empty() {
                    return None;
                }
                Some(free.swap_remove(random.random_range(0..free.len())))
            }
        }
        .map(Qpn)
    }

    /// Takes this number whatever the policy; false if it is in use or out of range.
    pub fn take(&mut self, qpn: Qpn) -> bool {
        match &mut self.free {
            Free::Sorted(free) => free.remove(&qpn.0),
            Free::Queue(free) => match free.iter().position(|number| *number == qpn.0) {
                Some(index) => free.remove(index).is_some(),
                None => false,
            },
            Free::Any(free) => match free.iter().position(|number| *number == qpn.0) {
                Some(index) => free.swap_remove(index) == qpn.0,
                None => false,
            },
        }
    }

    /// Gives a number back.
    pub fn release(&mut self, qpn: Qpn) {
        match &mut self.free {
            Free::Sorted(free) => {
                free.insert(qpn.0);
            }
            Free::Queue(free) => free.push_back(qpn.0),
            Free::Any(free) => free.push(qpn.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    fn next(policy: QpnPolicy, random: &mut SmallRng) -> (Vec<u16>, Option<Qpn>) {
        let mut allocator = QpnAllocator::new(policy, 4);
        let mut taken: Vec<u16> = (0..3)
            .map(|_| allocator.allocate(random).unwrap().0)
            .collect();
        allocator.release(Qpn(taken[1]));
        let reused = allocator.allocate(random);
        taken.extend(reused.map(|qpn| qpn.0));
        (taken, reused)
    }

    #[test]
    fn lowest_reuses_at_once_and_oldest_as_late_as_possible() {
        let mut random = SmallRng::seed_from_u64(1);
        assert_eq!(next(QpnPolicy::Lowest, &mut random).1, Some(Qpn(2)));
        assert_eq!(next(QpnPolicy::Oldest, &mut random).1, Some(Qpn(4)));
    }

    #[test]
    fn random_follows_the_seed() {
        let run = |seed| next(QpnPolicy::Random, &mut SmallRng::seed_from_u64(seed)).0;
        assert_eq!(run(7), run(7));
        assert!((0..20).any(|seed| run(seed) != run(7)));
    }

    #[test]
    fn numbers_are_unique_until_they_run_out() {
        let mut random = SmallRng::seed_from_u64(1);
        for policy in [QpnPolicy::Lowest, QpnPolicy::Oldest, QpnPolicy::Random] {
            let mut allocator = QpnAllocator::new(policy, 100);
            let mut taken: Vec<u16> = std::iter::from_fn(|| allocator.allocate(&mut random))
                .map(|qpn| qpn.0)
                .collect();
            taken.sort_unstable();
            assert_eq!(taken, (1..=100).collect::<Vec<_>>(), "{policy:?}");
        }
    }
}
