//! Waiting by polling.

use std::thread;
use std::time::{Duration, Instant};

use super::not_measured::NotMeasured;

/// Interval of polls.
const TICK: Duration = Duration::from_millis(5);

/// Polls `look` until it succeeds, for at most `limit`: then its last failure is the result.
pub(crate) fn await_some<T>(
    limit: Duration,
    mut look: impl FnMut() -> Result<T, NotMeasured>,
) -> Result<T, NotMeasured> {
    let deadline = Instant::now() + limit;
    loop {
        match look() {
            Err(NotMeasured::Failed(_)) if Instant::now() <= deadline => thread::sleep(TICK),
            ended => return ended,
        }
    }
}
