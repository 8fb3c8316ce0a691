//! Warnings on standard error, for errors that no call of the program can return.
//!
//! Peers can cause some of them any number of times, so only the first of each kind is written.

use std::fmt;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};

/// The prefix of each line.
const PROGRAM: &str = "efa-emu";

/// The approximate maximum length of a line, which may quote text from other processes.
const LONGEST: usize = 1000;

/// A kind of warning.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Warning {
    UnreadableRule,
    /// A trigger of a rule cannot be carried out.
    FaultWithoutEffect,
    /// The queue pairs of a host cannot be found.
    UnreachableHost,
    UnreachableProcess,
    RefusedRing,
    /// A requested capture cannot be written, or not ended correctly.
    Capture,
}

impl Warning {
    /// Writes a message to standard error, unless one of its kind was written before.
    #[cold]
    pub(crate) fn warn_once(self, what: fmt::Arguments<'_>) {
        tracing::warn!(kind = ?self, "{what}");
        static WARNED: AtomicU32 = AtomicU32::new(0);
        let bit = 1 << self as u32;
        if WARNED.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            // In one piece: other programs write there at the same time.
            let _ = io::stderr().write_all(line(&what.to_string()).as_bytes());
        }
    }
}

/// Formats the warning as one line, even if the text quotes line breaks.
fn line(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().map(plain).take(LONGEST).collect();
    format!("{PROGRAM}: {text} (further messages of this kind are suppressed)\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_stays_on_one_short_line() {
        assert_eq!(
            line("a\nb\x1b[2J"),
            "efa-emu: a b [2J (further messages of this kind are suppressed)\n"
        );
        assert!(line(&"x".repeat(1 << 20)).len() < 2 * LONGEST);
    }
}
