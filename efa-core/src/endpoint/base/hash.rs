//! The hash function of the engine's tables.

/// Hashes two words, seeded so that a peer cannot choose tags that collide without knowing the
/// seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeededHasher {
    seed: u64,
}

impl SeededHasher {
    pub(crate) const fn new(seed: u64) -> Self {
        // An odd multiple, so that seed 0 is not the identity.
        SeededHasher {
            seed: seed ^ 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// The high and low half of two 128-bit products: every bit of the input reaches every bit of
    /// the result.
    #[inline]
    pub(crate) fn hash(self, a: u64, b: u64) -> u64 {
        let first = fold(a ^ self.seed, 0xa076_1d64_78bd_642f);
        fold(first ^ b, 0xe703_7ed1_a0b4_28db)
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}
