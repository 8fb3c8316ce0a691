//! The clock of the link between processes.

use std::time::Duration;

/// Latest delivery time that a receiver accepts, from now on.
const LONGEST_DELAY: Duration = Duration::from_secs(600);

/// The system's monotonic clock, which all processes of a machine share.
pub(crate) fn monotonic_now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The time of an event that a peer requests at `due`, in nanoseconds of the monotonic clock. An
/// unreasonable time counts as now.
pub(crate) fn believable(now: Duration, due: u64) -> Duration {
    let due = Duration::from_nanos(due);
    if due > now + LONGEST_DELAY { now } else { due }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_time_is_now() {
        let now = Duration::from_secs(1000);
        assert_eq!(believable(now, 5), Duration::from_nanos(5));
        let late = now + Duration::from_secs(599);
        assert_eq!(believable(now, late.as_nanos() as u64), late);
        assert_eq!(believable(now, u64::MAX), now);
    }
}
