//! Limits of the device that no generation changes.

/// Inline bytes that a 128-byte send work request can carry.
pub const INLINE_SIZE_WIDE: u32 = 80;

/// The longest message of a connected queue pair in bytes.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// The most buffers of one work request of a connected queue pair.
pub const MAX_SGE: usize = 8;
