//! Counts the times that a program under test was too slow.
//!
//! A suite has hundreds of cases. If a program hangs in each of them, or does not end after them,
//! the suite must not wait the full time in each case.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// After this many hangs, timeouts are [`SHORTER`] times shorter.
const MOST_HANGS: u32 = 3;
const SHORTER: u32 = 10;
/// Maximum time for a program to end after the end of its input.
const END_TIME: Duration = Duration::from_secs(5);
/// Maximum time if the program did not end the last time.
const LINGERING_END_TIME: Duration = Duration::from_millis(100);

/// The time limits of a program. No command needs long, but the machine may be busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timeouts {
    /// Until it has started and answers `hello`.
    pub start: Duration,
    /// Until it answers another command.
    pub answer: Duration,
}

impl Timeouts {
    /// The default.
    pub const DEFAULT: Timeouts = Timeouts {
        start: Duration::from_secs(60),
        answer: Duration::from_secs(60),
    };
}

/// The counts of all of a program's processes.
#[derive(Debug, Default)]
pub struct Delays {
    /// The number of times that it did not answer a command other than `hello`.
    hangs: AtomicU32,
    /// The number of successive times that it did not end after the end of its input.
    lingered: AtomicU32,
}

impl Delays {
    pub(super) fn hung(&self) {
        self.hangs.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn lingered(&self) {
        self.lingered.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended(&self) {
        self.lingered.store(0, Ordering::Relaxed);
    }

    /// The current time limits of the program.
    pub(super) fn shorten(&self, mut timeouts: Timeouts) -> Timeouts {
        if self.hangs.load(Ordering::Relaxed) >= MOST_HANGS {
            let shorter = (timeouts.answer / SHORTER).max(Duration::from_secs(1));
            timeouts.answer = timeouts.answer.min(shorter);
        }
        timeouts
    }

    /// A note that it did not end in a longer time before; empty if it did.
    pub(super) fn before(&self) -> String {
        match self.lingered.load(Ordering::Relaxed) {
            0 => String::new(),
            _ => format!(" (nor within {END_TIME:?} before)"),
        }
    }

    /// Current maximum time for the program to end after the end of its input.
    pub(super) fn end_time(&self) -> Duration {
        match self.lingered.load(Ordering::Relaxed) {
            0 => END_TIME,
            _ => LINGERING_END_TIME,
        }
    }
}
