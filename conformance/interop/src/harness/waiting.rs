//! Waiting by polling.

use std::time::{Duration, Instant};

use super::unmet::Unmet;

/// Interval of polls.
const TICK: Duration = Duration::from_millis(5);

/// Polls `look` until it returns a value, for at most `limit`. Until then `look` returns the reason
/// why it has no value.
pub(crate) fn await_some<T>(
    limit: Duration,
    mut look: impl FnMut() -> Result<Result<T, String>, Unmet>,
) -> Result<T, Unmet> {
    let deadline = Instant::now() + limit;
    loop {
        match look()? {
            Ok(found) => return Ok(found),
            Err(problem) if Instant::now() > deadline => return Err(Unmet::Failed(problem)),
            Err(_) => std::thread::sleep(TICK),
        }
    }
}
