//! The only source of randomness of a fabric: one seed, with independent numbers for each purpose.
//!
//! Choices about frames are [`Draws`]: a pure function of the seed and of the frame's identity.
//! Choices about events (such as the number of a new queue pair) come from a stream for each
//! purpose ([`Random`]). Purposes never share numbers, so that experiments stay comparable:
//! enabling loss, for example, does not change the latencies of the same seed.
//!
//! This module and ChaCha8, whose output is specified, fix the meaning of a seed, so no release of
//! another crate can change it.

use core::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Purpose of a random number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Purpose {
    /// The path of a frame.
    Path = 1,
    /// Whether a frame is lost.
    Loss = 2,
    /// Whether a receiver answers with RNR.
    ReceiverNotReady = 3,
    /// The reused queue pair number.
    QueuePairNumber = 4,
    /// The order in which completions are returned.
    Completions = 5,
    /// Q-keys for callers that do not choose one.
    Qkey = 6,
    /// Jitter: the part of a frame's latency that is not its path's.
    Jitter = 7,
    /// Which path between two hosts is the shortest.
    PathLength = 8,
    /// The delay of a staged fault.
    Delay = 9,
}

/// Random numbers for a sequence of words: one number for each [`Purpose`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64) -> Draws {
        Draws(mix(seed))
    }

    /// The numbers for the sequence with one word more.
    pub(super) fn of(self, word: u64) -> Draws {
        Draws(mix(self.0 ^ word))
    }

    fn number(self, purpose: Purpose) -> u64 {
        mix(self.0 ^ (purpose as u64) << 56)
    }

    /// A number below `bound`, and 0 if `bound` is 0.
    pub(super) fn below(self, purpose: Purpose, bound: u64) -> u64 {
        scale(self.number(purpose), bound)
    }

    /// A duration from zero to `longest`, both included.
    pub(super) fn up_to(self, purpose: Purpose, longest: Duration) -> Duration {
        let nanoseconds = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX - 1);
        Duration::from_nanos(self.below(purpose, nanoseconds.saturating_add(1)))
    }

    /// True with the given probability.
    pub(super) fn chance(self, purpose: Purpose, probability: Probability) -> bool {
        self.number(purpose) >> 32 < probability.0
    }
}

/// Maps any number to one below `bound`, evenly.
fn scale(number: u64, bound: u64) -> u64 {
    ((u128::from(number) * u128::from(bound)) >> 64) as u64
}

/// The finalizer of SplitMix64: every input bit changes every output bit with probability one half.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream of `purpose` under `seed`.
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(purpose as u64);
        Random(generator)
    }

    /// The generator, for code that draws directly.
    pub fn generator(&mut self) -> &mut ChaCha8Rng {
        &mut self.0
    }

    /// Any 32-bit number.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// A number below `bound`, and 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        scale(self.0.next_u64(), bound)
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
        let draws = Draws::new(7).of(1).of(2);
        let numbers = [Purpose::Path, Purpose::Loss].map(|of| draws.below(of, 1_000_000));
        assert_eq!(numbers, [896_436, 708_948]);
    }

    #[test]
    fn purposes_seeds_and_names_give_distinct_numbers() {
        let first = Random::new(1, Purpose::Path).below(u64::MAX);
        assert_ne!(first, Random::new(1, Purpose::Loss).below(u64::MAX));
        assert_ne!(first, Random::new(2, Purpose::Path).below(u64::MAX));
        let number = |draws: Draws, purpose| draws.below(purpose, u64::MAX);
        let first = number(Draws::new(1).of(3).of(4), Purpose::Path);
        for other in [
            number(Draws::new(1).of(3).of(4), Purpose::Loss),
            number(Draws::new(1).of(4).of(3), Purpose::Path),
            number(Draws::new(1).of(3), Purpose::Path),
            number(Draws::new(2).of(3).of(4), Purpose::Path),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn probabilities_at_both_ends_are_certain() {
        for word in 0..1000 {
            let draws = Draws::new(word);
            assert!(draws.chance(Purpose::Loss, Probability::ALWAYS));
            assert!(!draws.chance(Purpose::Loss, Probability::NEVER));
        }
        assert_eq!(Probability::new(1.0), Some(Probability::ALWAYS));
        assert_eq!(Probability::new(0.0), Some(Probability::NEVER));
        assert_eq!(Probability::new(-0.1), None);
        assert_eq!(Probability::new(f64::NAN), None);
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let mut counts = [0; 10];
        for word in 0..10_000 {
            counts[Draws::new(1).of(word).below(Purpose::Path, 10) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1100).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn durations_include_both_ends() {
        let longest = Duration::from_nanos(2);
        let mut seen = [false; 3];
        for word in 0..200 {
            let drawn = Draws::new(word).up_to(Purpose::Jitter, longest);
            seen[drawn.as_nanos() as usize] = true;
        }
        assert_eq!(seen, [true; 3]);
        let none = Draws::new(3).up_to(Purpose::Jitter, Duration::ZERO);
        assert_eq!(none, Duration::ZERO);
    }
}
