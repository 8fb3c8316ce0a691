//! Waiting with progress: the engine moves only in calls, so that who waits looks again and again.

use std::ffi::c_int;
use std::time::{Duration, Instant};

/// How long a call that waits looks without a pause.
const SPIN: Duration = Duration::from_micros(50);
/// How long it sleeps between looks after that.
const NAP: Duration = Duration::from_micros(50);

/// The time that a call may wait.
pub(crate) struct Patience {
    start: Instant,
    limit: Option<Duration>,
}

impl Patience {
    /// Begins now, with a time-out in milliseconds; negative ones have no end.
    pub(crate) fn new(timeout: c_int) -> Patience {
        Patience {
            start: Instant::now(),
            limit: u64::try_from(timeout).ok().map(Duration::from_millis),
        }
    }

    /// Lets others run for a moment. Returns whether there is time for another look.
    pub(crate) fn pause(&self) -> bool {
        let passed = self.start.elapsed();
        if self.limit.is_some_and(|limit| passed >= limit) {
            return false;
        }
        match passed < SPIN {
            true => std::hint::spin_loop(),
            false => std::thread::sleep(NAP),
        }
        true
    }
}
