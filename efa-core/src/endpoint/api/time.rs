//! Time as a value: the engine reads no clock.

use core::fmt;
use core::ops::Add;
use core::time::Duration;

/// A moment: the time since a start that the caller of the engine chose.
///
/// The engine only compares moments and adds durations to them, so any monotonic source will do:
/// virtual time in the simulator, `std::time::Instant::elapsed` of one fixed instant elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub Duration);

impl Instant {
    /// The start.
    pub const START: Instant = Instant(Duration::ZERO);
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, later: Duration) -> Instant {
        Instant(self.0.saturating_add(later))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
