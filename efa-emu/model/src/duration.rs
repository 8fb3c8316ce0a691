//! Durations in human-readable form.

use std::time::Duration;

/// The accepted form, for error messages.
pub const EXPECTED: &str = "a duration such as 500ns, 10us, 1.5ms or 1s, at most 60s";

/// Parses an integer or decimal number with the unit `ns`, `us`, `ms` or `s`, at most one minute.
pub fn parse(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (amount, unit) = text.split_at(unit_at);
    let scale = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let nanoseconds = (amount.parse::<f64>().ok()? * scale).round();
    (0.0..=60e9)
        .contains(&nanoseconds)
        .then(|| Duration::from_nanos(nanoseconds as u64))
}
