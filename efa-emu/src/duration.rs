//! Durations as people write them.

use std::time::Duration;

/// What [`parse`] reads.
pub(crate) const EXPECTED: &str = "a duration such as 500ns, 10us, 1.5ms or 1s, at most 60s";

/// A whole or decimal number with the unit `ns`, `us`, `ms` or `s`, at most one minute.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (amount, unit) = text.split_at(unit_at);
    let scale = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    let seconds = amount.parse::<f64>().ok()? * scale;
    // Rounded to nanoseconds, so that 1ns stays 1 ns in spite of binary fractions.
    (0.0..=60.0)
        .contains(&seconds)
        .then(|| Duration::from_nanos((seconds * 1e9).round() as u64))
}
