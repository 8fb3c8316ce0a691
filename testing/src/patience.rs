//! Waiting for other processes or threads.

use std::thread;
use std::time::{Duration, Instant};

/// The longest wait of tests. Only a failing test waits this long, on any machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The shortest and the longest interval between two polls. Some polls are expensive: the kernel
/// takes 7 ms to print its TCP sockets.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// A wait that fails after [`PATIENCE`].
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

    /// Checks that the time limit is not exceeded.
    ///
    /// # Panics
    /// If it took too long, with the text of `complaint`.
    #[track_caller]
    pub fn check(&self, complaint: impl FnOnce() -> String) {
        assert!(self.begin.elapsed() < PATIENCE, "{}", complaint());
    }

    /// As [`Wait::check`], and then sleeps for a quarter of the elapsed time.
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
