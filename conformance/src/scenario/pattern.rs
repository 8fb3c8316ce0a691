//! The bytes of test messages.
//!
//! Every byte depends on the seed and on its position, so that a segment that lands in the wrong
//! place, or comes from another message, is seen.

/// SplitMix64's finalizer: a bijection of 64-bit numbers that mixes all bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The byte at `position` of the message with this seed.
pub fn byte(seed: u64, position: usize) -> u8 {
    let word = mix(mix(seed).wrapping_add(position as u64 / 8));
    word.to_le_bytes()[position % 8]
}

/// The message with this seed, `length` bytes long.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    (0..length).map(|position| byte(seed, position)).collect()
}

/// Compares `actual` with the beginning of the message; the text names the first difference.
pub fn compare(seed: u64, actual: &[u8]) -> Result<(), String> {
    for (position, &actual) in actual.iter().enumerate() {
        let expected = byte(seed, position);
        if actual != expected {
            return Err(format!(
                "byte {position} is {actual:#04x} instead of {expected:#04x}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(compare(7, &changed).unwrap_err().starts_with("byte 4000 "));
    }
}
