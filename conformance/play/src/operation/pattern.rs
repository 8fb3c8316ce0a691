//! The bytes of test messages.
//!
//! Every byte depends on the seed and on its position, so that a segment in the wrong place or of
//! another message is noticed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// SplitMix64's finalizer: a bijection of 64-bit numbers that mixes all bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The 64-bit words of the message with this seed, in order.
fn words(seed: u64) -> impl Iterator<Item = [u8; 8]> {
    let start = mix(seed);
    (0..).map(move |index| mix(start.wrapping_add(index)).to_le_bytes())
}

/// The byte at `position` of the message with this seed.
pub fn byte(seed: u64, position: usize) -> u8 {
    let word = mix(mix(seed).wrapping_add(position as u64 / 8));
    word.to_le_bytes()[position % 8]
}

/// The message with this seed, `length` bytes long.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (chunk, word) in bytes.chunks_mut(8).zip(words(seed)) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

/// The first wrong byte of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Its position, from 0.
    pub position: usize,
    /// Its value.
    pub actual: u8,
    /// The right value.
    pub expected: u8,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "byte {} is {:#04x} instead of {:#04x}",
            self.position, self.actual, self.expected
        )
    }
}

/// Compares `actual` with the beginning of the message.
pub fn compare(seed: u64, actual: &[u8]) -> Result<(), Difference> {
    let differs = |(chunk, word): &(&[u8], [u8; 8])| *chunk != &word[..chunk.len()];
    let Some(index) = actual
        .chunks(8)
        .zip(words(seed))
        .position(|pair| differs(&pair))
    else {
        return Ok(());
    };
    let from = index * 8;
    let position = (from..actual.len())
        .find(|&position| actual[position] != byte(seed, position))
        .unwrap_or(from);
    Err(Difference {
        position,
        actual: actual[position],
        expected: byte(seed, position),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_their_positions() {
        for length in [0, 1, 7, 8, 9, 100] {
            let each: Vec<u8> = (0..length).map(|position| byte(7, position)).collect();
            assert_eq!(bytes(7, length), each);
        }
    }

    #[test]
    fn shifted_and_foreign_bytes_are_seen() {
        let message = bytes(7, 4096);
        assert!(compare(7, &message).is_ok());
        assert!(compare(8, &message).is_err());
        for shift in [1, 7, 8, 64, 1024] {
            assert!(compare(7, &message[shift..]).is_err(), "shift {shift}");
        }
        let mut changed = message;
        changed[4000] ^= 1;
        assert_eq!(compare(7, &changed).unwrap_err().position, 4000);
    }
}
