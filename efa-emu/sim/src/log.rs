//! The event log of a fabric, one line per event.

use std::fmt;
use std::time::Duration;

/// The record of a fabric's run: the same configuration and the same calls produce the same bytes.
///
/// A line is the virtual time in nanoseconds, the event, and its details, as in `12345 deliver
/// host0:1 -> host1:4 SEND length=64 sequence=0 OK`.
#[derive(Debug)]
pub struct EventLog {
    enabled: bool,
    text: String,
    digest: u64,
}

/// FNV-1a, 64 bits. It distinguishes runs well enough, and needs no dependency whose next release
/// could change the result.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

impl EventLog {
    pub(crate) fn new(enabled: bool) -> Self {
        EventLog {
            enabled,
            text: String::new(),
            digest: FNV_OFFSET,
        }
    }

    pub(crate) fn add(&mut self, now: Duration, line: fmt::Arguments<'_>) {
        use fmt::Write;
        if !self.enabled {
            return;
        }
        let start = self.text.len();
        writeln!(self.text, "{} {line}", now.as_nanos()).expect("a String takes every write");
        for byte in &self.text.as_bytes()[start..] {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
        }
    }

    /// All lines so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A 64-bit digest (FNV-1a) of all lines so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_the_time_and_the_event() {
        let mut log = EventLog::new(true);
        log.add(Duration::from_micros(2), format_args!("start {}", 1));
        assert_eq!(log.text(), "2000 start 1\n");
        let digest = log.digest();
        log.add(Duration::ZERO, format_args!("x"));
        assert_ne!(log.digest(), digest);
    }

    #[test]
    fn a_log_that_is_off_stays_empty() {
        let mut log = EventLog::new(false);
        log.add(Duration::ZERO, format_args!("x"));
        assert_eq!(log.text(), "");
    }
}
