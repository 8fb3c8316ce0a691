//! The fabric's only source of randomness: one seed, one independent stream per purpose.
//!
//! A stream per purpose keeps experiments comparable: switching loss on, say, does not change the
//! latencies that the same seed draws. The generator is ChaCha8, whose output for a seed is part of
//! its specification, and the mapping to ranges is done here, so that no other crate's release can
//! change what a seed means.

use core::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// What a random stream decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Purpose {
    /// Which path a frame takes and how long it needs.
    Path = 1,
    /// Whether a frame is lost.
    Loss = 2,
    /// Whether a receiver claims not to be ready.
    ReceiverNotReady = 3,
    /// Which queue pair number is reused.
    QueuePairNumber = 4,
    /// In which order completions are handed out.
    Completions = 5,
    /// Q-keys, drawn for callers that do not choose one.
    Qkey = 6,
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    /// The stream of `purpose` under `seed`.
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(purpose as u64);
        Random(generator)
    }

    /// The generator, for code that draws by itself.
    pub(crate) fn generator(&mut self) -> &mut ChaCha8Rng {
        &mut self.0
    }

    /// Any 32-bit number.
    pub(crate) fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// A number below `bound`, and 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.0.next_u64()) * u128::from(bound);
        (product >> 64) as u64
    }

    /// A duration from zero to `longest`, both included.
    pub(crate) fn up_to(&mut self, longest: Duration) -> Duration {
        let nanoseconds = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX - 1);
        Duration::from_nanos(self.below(nanoseconds.saturating_add(1)))
    }

    /// True with the given probability.
    pub(crate) fn chance(&mut self, probability: Probability) -> bool {
        // Zero draws nothing, so that an option that is off costs no time.
        probability.0 != 0 && u64::from(self.0.next_u32()) < probability.0
    }
}

/// A probability from 0 to 1 in steps of 2^-32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Probability(u64);

impl Probability {
    /// It never happens.
    pub const NEVER: Probability = Probability(0);
    /// It always happens.
    pub const ALWAYS: Probability = Probability(1 << 32);

    /// `value` from 0.0 to 1.0, `None` for anything else.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0)
            .contains(&value)
            .then(|| Probability((value * (1u64 << 32) as f64).round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_numbers_for_ever() {
        let mut random = Random::new(7, Purpose::Path);
        let numbers: Vec<u64> = (0..4).map(|_| random.below(1_000_000)).collect();
        assert_eq!(numbers, [992_108, 9051, 721_611, 528_105]);
    }

    #[test]
    fn purposes_and_seeds_have_different_streams() {
        let first = Random::new(1, Purpose::Path).below(u64::MAX);
        assert_ne!(first, Random::new(1, Purpose::Loss).below(u64::MAX));
        assert_ne!(first, Random::new(2, Purpose::Path).below(u64::MAX));
    }

    #[test]
    fn probabilities_at_both_ends_are_certain() {
        let mut random = Random::new(1, Purpose::Loss);
        for _ in 0..1000 {
            assert!(random.chance(Probability::ALWAYS));
            assert!(!random.chance(Probability::NEVER));
        }
        assert_eq!(Probability::new(1.0), Some(Probability::ALWAYS));
        assert_eq!(Probability::new(0.0), Some(Probability::NEVER));
        assert_eq!(Probability::new(-0.1), None);
        assert_eq!(Probability::new(f64::NAN), None);
    }

    #[test]
    fn durations_include_both_ends() {
        let mut random = Random::new(3, Purpose::Path);
        let longest = Duration::from_nanos(2);
        let mut seen = [false; 3];
        for _ in 0..200 {
            seen[random.up_to(longest).as_nanos() as usize] = true;
        }
        assert_eq!(seen, [true; 3]);
        assert_eq!(random.up_to(Duration::ZERO), Duration::ZERO);
    }
}
