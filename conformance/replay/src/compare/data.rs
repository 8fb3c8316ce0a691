//! Comparing the data of packets and messages.

use std::fmt;

/// What was expected where data differs. Its text names the first difference instead of repeating
/// all bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataDifference {
    /// The number of bytes that were expected.
    expected: usize,
    /// The first byte that differs, expected and actual, and its place; `None` if only the lengths
    /// differ.
    first: Option<(usize, u8, u8)>,
}

impl fmt::Display for DataDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.expected)?;
        match self.first {
            Some((at, expected, actual)) => write!(
                f,
                " with {expected:#04x} at byte {at} instead of {actual:#04x}"
            ),
            None => Ok(()),
        }
    }
}

impl std::error::Error for DataDifference {}

/// Compares data.
///
/// # Errors
/// Returns the first difference.
pub fn compare_data(expected: &[u8], actual: &[u8]) -> Result<(), DataDifference> {
    if expected == actual {
        return Ok(());
    }
    let mut pairs = expected.iter().zip(actual).enumerate();
    let first = pairs.find(|(_, (a, b))| a != b);
    Err(DataDifference {
        expected: expected.len(),
        first: first.map(|(at, (&expected, &actual))| (at, expected, actual)),
    })
}
