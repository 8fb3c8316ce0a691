//! Bytes whose values show their origin.

/// Returns `length` bytes. Each differs from its neighbours, from the byte 256 further on, and from
/// the byte at the same place with another `salt`.
pub fn pattern(length: usize, salt: u8) -> Vec<u8> {
    let byte = |index: usize| (index as u8).wrapping_mul(31) ^ (index >> 8) as u8 ^ salt;
    (0..length).map(byte).collect()
}
