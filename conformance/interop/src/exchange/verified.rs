//! Counts of what an exchange has verified.

use std::fmt;

/// Counts of what was verified.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Verified {
    pub(crate) operations: usize,
    /// Bytes that arrived and were compared.
    pub(crate) bytes: usize,
}

impl std::ops::Add for Verified {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Verified {
            operations: self.operations + other.operations,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "{} operations, {mebibytes:.1} MiB verified",
            self.operations
        )
    }
}
