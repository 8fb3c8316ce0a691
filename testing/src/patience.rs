//! Waiting for what another process or thread does.

use std::thread;
use std::time::{Duration, Instant};

/// How long tests wait at most. Only a test that fails waits so long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The shortest and the longest time between two looks at what is waited for. Some looks are dear:
/// the kernel takes 7 ms to print its TCP sockets.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// A wait that ends after [`PATIENCE`].
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    begin: Instant,
}

impl Wait {
    /// Starts to wait.
    #[must_use]
    pub fn start() -> Wait {
        Wait {
            begin: Instant::now(),
        }
    }

    /// Checks that the wait may go on.
    ///
    /// # Panics
    /// If it took too long, with the text of `complaint`.
    #[track_caller]
    pub fn check(&self, complaint: impl FnOnce() -> String) {
        assert!(self.begin.elapsed() < PATIENCE, "{}", complaint());
    }

    /// As [`Wait::check`], and lets others run for a quarter of the time that has gone.
    ///
    /// # Panics
    /// As [`Wait::check`].
    #[track_caller]
    pub fn pause(&self, complaint: impl FnOnce() -> String) {
        self.check(complaint);
        let [shortest, longest] = PAUSES;
        thread::sleep((self.begin.elapsed() / 4).clamp(shortest, longest));
    }
}
