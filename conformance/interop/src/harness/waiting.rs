//! Waiting for something that only polling shows.

use std::time::{Duration, Instant};

use super::unmet::Unmet;

/// How often it is looked.
const TICK: Duration = Duration::from_millis(5);

/// Looks until there is what is looked for, for at most `limit`. Meanwhile `look` says what there
/// is not.
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
