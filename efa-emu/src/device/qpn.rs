//! Which number a new queue pair gets.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use efa_core::address::Qpn;
use rand::Rng;

/// How numbers are chosen. How soon a number comes back decides how often late packets and
/// completions of a destroyed queue pair meet its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum QpnPolicy {
    /// The lowest free number: reuse as soon as possible.
    Lowest,
    /// The number that has been free for longest, never-used ones first: reuse as late as possible.
    #[default]
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

    /// Chooses among free numbers, which come with the time that they have been free and with
    /// whatever `T` the caller needs with them. Only [`QpnPolicy::Random`] draws from `random`.
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

/// A policy of another name than `lowest`, `oldest` and `random`.
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

/// The queue pair numbers of one GID. Number 0 is never given out.
pub struct QpnAllocator {
    policy: QpnPolicy,
    /// For each number from 1 on: when it became free, `None` if it is in use.
    free: Vec<Option<u32>>,
    /// Counts numbers given back.
    clock: u32,
}

impl QpnAllocator {
    /// Numbers 1 to `count` (at most 65535), all free.
    pub fn new(policy: QpnPolicy, count: u16) -> Self {
        QpnAllocator {
            policy,
            free: vec![Some(0); count.into()],
            clock: 0,
        }
    }

    /// How numbers are chosen.
    pub fn policy(&self) -> QpnPolicy {
        self.policy
    }

    /// Takes a number; `None` if all are in use. Only [`QpnPolicy::Random`] draws from `random`.
    pub fn allocate(&mut self, random: &mut impl Rng) -> Option<Qpn> {
        let free = self.free.iter().enumerate().filter_map(|(index, free)| {
            let qpn = Qpn(index as u16 + 1);
            Some((qpn, self.clock.wrapping_sub((*free)?), qpn))
        });
        let chosen = self.policy.choose(free, random)?;
        self.take(chosen).then_some(chosen)
    }

    fn entry(&mut self, qpn: Qpn) -> Option<&mut Option<u32>> {
        self.free.get_mut(usize::from(qpn.0).checked_sub(1)?)
    }

    /// Takes this number whatever the policy; false if it is in use or out of range.
    pub fn take(&mut self, qpn: Qpn) -> bool {
        self.entry(qpn).is_some_and(|entry| entry.take().is_some())
    }

    /// Gives a number back.
    pub fn release(&mut self, qpn: Qpn) {
        self.clock = self.clock.wrapping_add(1);
        let now = self.clock;
        if let Some(entry) = self.entry(qpn) {
            *entry = Some(now);
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
            assert_eq!(taken, (1..=100).collect::<Vec<_>>(), "{policy:?}");
        }
    }
}
