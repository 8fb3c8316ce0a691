//! Bytes that tell where they come from.

/// `length` bytes that differ from their neighbours, from those 256 further on, and from those of
/// another `salt`.
pub fn pattern(length: usize, salt: u8) -> Vec<u8> {
    let byte = |index: usize| (index as u8).wrapping_mul(31) ^ (index >> 8) as u8 ^ salt;
    (0..length).map(byte).collect()
}
