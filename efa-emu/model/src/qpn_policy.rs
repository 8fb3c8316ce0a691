//! The choice of a free number for a new queue pair.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use efa_core::address::Qpn;
use rand::Rng;

/// How numbers are chosen. The sooner a number is reused, the more often late packets and
/// completions of a destroyed queue pair reach its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum QpnPolicy {
    /// The lowest free number: reuse as soon as possible. This is the default, because EFA's own
    /// software expects it: rdma-core 63 and libfabric 2.6 count the generations of each number, to
    /// distinguish late completions of a destroyed queue pair from those of its immediate
    /// successor.
    #[default]
    Lowest,
    /// A number that was never used, otherwise the one that has been free for the longest time, so
    /// that reuse is as late as possible.
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

    /// Chooses one of the free numbers. Each has the time since which it is free, and a `T` of the
    /// caller. Only [`QpnPolicy::Random`] draws from `random`.
    pub fn choose<T>(
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

/// The name is not one of `lowest`, `oldest` and `random`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a reuse policy: use lowest, oldest or random")]
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
