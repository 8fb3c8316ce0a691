//! The numbers of queue pairs.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use efa_core::address::Qpn;
use rand::Rng;

/// How numbers are chosen. The sooner a number is used again, the more often late packets and
/// completions of a destroyed queue pair reach its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum QpnPolicy {
    /// The lowest free number: reuse as soon as possible. This is the default, because EFA's own software
    /// expects it: rdma-core 63 and libfabric 2.6 count the generations of each number, to tell late
    /// completions of a destroyed queue pair from those of a queue pair that got its number right after.
    #[default]
    Lowest,
    /// A number that was never used, or else the one that has been free for the longest time: reuse as
    /// late as possible.
    Oldest,
    /// Any free number.
    Random,
}

impl QpnPolicy {
    const NAMES: [(&'static str, QpnPolicy); 3] = [
        ("lowest", QpnPolicy::Lowest),
        ("oldest", QpnPolicy::Oldest),
        ("random", QpnPolicy::Random),
    ];

    /// Chooses among free numbers. Each comes with the time since which it is free, and with a `T` of
    /// the caller. Only [`QpnPolicy::Random`] draws from `random`.
    pub(crate) fn choose<T>(
        self,
        free: impl Iterator<Item = (Qpn, u32, T)>,
        random: &mut impl Rng,
    ) -> Option<T> {
        let chosen = match self {
            QpnPolicy::Lowest => free.min_by_key(|(qpn, ..)| qpn.0),
            QpnPolicy::Oldest => free.max_by_key(|(qpn, age, _)| (*age, Reverse(qpn.0))),
            QpnPolicy::Random => {
                let mut free: Vec<_> = free.collect();
                (!free.is_empty()).then(|| free.swap_remove(random.random_range(0..free.len())))
            }
        };
        chosen.map(|(.., item)| item)
    }
}

impl fmt::Display for QpnPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = Self::NAMES
            .into_iter()
            .find(|(_, policy)| policy == self)
            .expect("every policy has a name");
        f.write_str(name)
    }
}

/// The error that a name is none of `lowest`, `oldest` and `random`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no way of reusing numbers: use lowest, oldest or random")]
pub struct UnknownQpnPolicy(String);

impl FromStr for QpnPolicy {
    type Err = UnknownQpnPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownQpnPolicy> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found
            .map(|(_, policy)| policy)
            .ok_or_else(|| UnknownQpnPolicy(text.to_owned()))
    }
}

/// The numbers that the queue pairs of one GID can have.
///
/// A device never uses 0 and 1, which InfiniBand reserves for management. There are `count` numbers, a
/// power of two. No two of them are equal modulo `count`, because clients look queue pairs up by
/// `qpn & (count - 1)`. So *slot* `i` stands for the number `i`, except that the slots 0 and 1 stand
/// for `count` and `count + 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QpnRange {
    count: u32,
}

impl QpnRange {
    const FEWEST: u32 = 4;
    /// Numbers are 16 bits wide.
    const MOST: u32 = 1 << 15;

    /// Numbers for this many queue pairs, or for as many as there can be.
    pub(crate) fn for_queue_pairs(queue_pairs: u32) -> QpnRange {
        let count = queue_pairs.clamp(Self::FEWEST, Self::MOST);
        QpnRange {
            count: count.next_power_of_two(),
        }
    }

    /// The range of `count` numbers. `None` if there can be none.
    pub(crate) fn with_count(count: u32) -> Option<QpnRange> {
        let is_possible = count.is_power_of_two() && (Self::FEWEST..=Self::MOST).contains(&count);
        is_possible.then_some(QpnRange { count })
    }

    /// The number of numbers.
    pub(crate) fn count(self) -> u32 {
        self.count
    }

    /// The number that a slot below [`QpnRange::count`] stands for.
    pub(crate) fn qpn(self, slot: u32) -> Qpn {
        Qpn(if slot < 2 { slot + self.count } else { slot } as u16)
    }

    /// The slot of a number. `None` if no queue pair can have the number.
    #[inline]
    pub(crate) fn slot(self, qpn: Qpn) -> Option<u32> {
        let number = u32::from(qpn.0);
        match number {
            0 | 1 => None,
            _ if number < self.count => Some(number),
            _ if number < self.count + 2 => Some(number - self.count),
            _ => None,
        }
    }

    /// All slots, in the order of their numbers.
    pub(crate) fn slots(self) -> impl Iterator<Item = u32> {
        (2..self.count).chain(0..2)
    }
}

/// The queue pair numbers of one GID.
pub struct QpnAllocator {
    policy: QpnPolicy,
    range: QpnRange,
    /// For each slot, when its number became free, or `None` if the number is in use. The numbers of
    /// slots beyond the end have never been used.
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

    /// Takes a number. `None` if all are in use. Only [`QpnPolicy::Random`] draws from `random`.
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

    /// Takes this number, whatever the policy is. Returns false if it is in use or out of range.
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
    fn lowest_reuses_at_once_and_oldest_as_late_as_possible() {
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
    fn names_and_policies_go_both_ways() {
        for policy in [QpnPolicy::Lowest, QpnPolicy::Oldest, QpnPolicy::Random] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "newest".parse::<QpnPolicy>().unwrap_err().to_string();
        assert!(
            error.contains("newest") && error.contains("oldest"),
            "{error}"
        );
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
    fn numbers_start_at_2_and_differ_modulo_their_count() {
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
    fn a_number_that_is_asked_for_is_given_once() {
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
