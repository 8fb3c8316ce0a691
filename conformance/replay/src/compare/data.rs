//! Comparison of the data of packets and messages.

use std::fmt;

/// The first difference in data. Its text names only that, instead of all bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DataDifference {
    /// The expected number of bytes.
    expected: usize,
    /// Offset, expected and actual value of the first different byte; `None` if only the lengths
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
pub(crate) fn compare_data(expected: &[u8], actual: &[u8]) -> Result<(), DataDifference> {
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
