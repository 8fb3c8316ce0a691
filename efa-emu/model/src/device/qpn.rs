//! The numbers of queue pairs.

use efa_core::address::Qpn;
use rand::Rng;

use crate::qpn_policy::QpnPolicy;

/// The possible queue pair numbers of one GID.
///
/// A device never uses 0 and 1, which InfiniBand reserves for management. There are `count`
/// numbers, a power of two. No two of them are equal modulo `count`, because clients look queue
/// pairs up by `qpn & (count - 1)`. So *slot* `i` is the number `i`, except that the slots 0 and 1
/// are `count` and `count + 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpnRange {
    count: u32,
}

impl QpnRange {
    const FEWEST: u32 = 4;
    /// Numbers are 16 bits wide.
    const MOST: u32 = 1 << 15;

    /// The range for this many queue pairs, or the largest range.
    pub fn for_queue_pairs(queue_pairs: u32) -> QpnRange {
        let count = queue_pairs.clamp(Self::FEWEST, Self::MOST);
        QpnRange {
            count: count.next_power_of_two(),
        }
    }

    /// The range of `count` numbers. `None` if `count` is invalid.
    pub fn with_count(count: u32) -> Option<QpnRange> {
        let is_possible = count.is_power_of_two() && (Self::FEWEST..=Self::MOST).contains(&count);
        is_possible.then_some(QpnRange { count })
    }

    /// The number of numbers.
    pub fn count(self) -> u32 {
        self.count
    }

    /// The number of a slot below [`QpnRange::count`].
    pub fn qpn(self, slot: u32) -> Qpn {
        Qpn(if slot < 2 { slot + self.count } else { slot } as u16)
    }

    /// The slot of a number. `None` if no queue pair can have the number.
    #[inline]
    pub fn slot(self, qpn: Qpn) -> Option<u32> {
        let number = u32::from(qpn.0);
        match number {
            0 | 1 => None,
            _ if number < self.count => Some(number),
            _ if number < self.count + 2 => Some(number - self.count),
            _ => None,
        }
    }

    /// All slots, in the order of their numbers.
    pub fn slots(self) -> impl Iterator<Item = u32> {
        (2..self.count).chain(0..2)
    }
}

/// The queue pair numbers of one GID.
pub struct QpnAllocator {
    policy: QpnPolicy,
    range: QpnRange,
    /// For each slot, when its number became free, or `None` if the number is in use. The numbers
    /// of slots beyond the end have never been used.
    free: Vec<Option<u32>>,
    /// The number of releases so far.
    clock: u32,
}

impl QpnAllocator {
    /// Makes an allocator with numbers for `queue_pairs` queue pairs, all free.
    pub fn new(policy: QpnPolicy, queue_pairs: u32) -> Self {
        QpnAllocator {
            policy,
            range: QpnRange::for_queue_pairs(queue_pairs),
            free: Vec::new(),
            clock: 0,
        }
    }

    /// How numbers are chosen.
    pub fn policy(&self) -> QpnPolicy {
        self.policy
    }

    /// Allocates a number. `None` if all are in use. Only [`QpnPolicy::Random`] draws from
    /// `random`.
    pub fn allocate(&mut self, random: &mut impl Rng) -> Option<Qpn> {
        let free = self.range.slots().filter_map(|slot| {
            let qpn = self.range.qpn(slot);
            Some((qpn, self.clock.wrapping_sub(self.since(slot)?), qpn))
        });
        let chosen = self.policy.choose(free, random)?;
        self.take(chosen).then_some(chosen)
    }

    /// The time since which a slot's number is free. `None` if it is in use.
    fn since(&self, slot: u32) -> Option<u32> {
        self.free.get(slot as usize).copied().unwrap_or(Some(0))
    }

    /// Allocates this number, regardless of the policy. Returns false if it is in use or out of
    /// range.
    pub fn take(&mut self, qpn: Qpn) -> bool {
        let slot = self
            .range
            .slot(qpn)
            .filter(|slot| self.since(*slot).is_some());
        let Some(slot) = slot.map(|slot| slot as usize) else {
            return false;
        };
        if self.free.len() <= slot {
            self.free.resize(slot + 1, Some(0));
        }
        self.free[slot] = None;
        true
    }

    /// Frees a number.
    pub fn release(&mut self, qpn: Qpn) {
        self.clock = self.clock.wrapping_add(1);
        let slot = self.range.slot(qpn);
        if let Some(entry) = slot.and_then(|slot| self.free.get_mut(slot as usize)) {
            *entry = Some(self.clock);
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
    fn lowest_reuses_soonest_and_oldest_latest() {
        let mut random = SmallRng::seed_from_u64(1);
        assert_eq!(next(QpnPolicy::Lowest, &mut random).1, Some(Qpn(3)));
        assert_eq!(next(QpnPolicy::Oldest, &mut random).1, Some(Qpn(5)));
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
            assert_eq!(taken, (2..130).collect::<Vec<_>>(), "{policy:?}");
        }
    }

    #[test]
    fn numbers_start_at_2_and_stay_distinct() {
        for (queue_pairs, count) in [(0, 4), (5, 8), (2048, 2048), (u32::MAX, 32768)] {
            let range = QpnRange::for_queue_pairs(queue_pairs);
            assert_eq!(range.count(), count);
            let numbers: Vec<_> = range.slots().map(|slot| range.qpn(slot)).collect();
            let expected: Vec<_> = (2..count + 2).map(|number| Qpn(number as u16)).collect();
            assert_eq!(numbers, expected);
            for (slot, qpn) in range.slots().zip(numbers) {
                assert_eq!(range.slot(qpn), Some(slot));
                assert_eq!(u32::from(qpn.0) % count, slot);
            }
            for none in [0, 1, count as u16 + 2, u16::MAX] {
                assert_eq!(range.slot(Qpn(none)), None);
            }
        }
        for count in [0, 2, 5, 1 << 16] {
            assert_eq!(QpnRange::with_count(count), None);
        }
    }

    #[test]
    fn a_requested_number_is_given_once() {
        let mut allocator = QpnAllocator::new(QpnPolicy::Lowest, 8);
        assert_eq!(
            [7, 7, 0, 1, 9, 10].map(|qpn| allocator.take(Qpn(qpn))),
            [true, false, false, false, true, false]
        );
        allocator.release(Qpn(7));
        allocator.release(Qpn(1));
        assert!(allocator.take(Qpn(7)));
    }
}
