//! Waiting by polling.

use std::time::{Duration, Instant};

use super::not_measured::NotMeasured;

/// Interval of polls.
const TICK: Duration = Duration::from_millis(5);

/// Polls `look` until it returns a value, for at most `limit`. Until then `look` returns the reason
/// why it has no value.
pub(crate) fn await_some<T>(
    limit: Duration,
    mut look: impl FnMut() -> Result<Result<T, String>, NotMeasured>,
) -> Result<T, NotMeasured> {
    let deadline = Instant::now() + limit;
    loop {
        match look()? {
            Ok(found) => return Ok(found),
            Err(problem) if Instant::now() > deadline => return Err(NotMeasured::Failed(problem)),
            Err(_) => std::thread::sleep(TICK),
        }
    }
}
