//! Waiting for what another process or thread does.

use std::thread;
use std::time::{Duration, Instant};

/// How long tests wait at most. Only a test that fails waits so long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two looks at what is waited for.
const PAUSE: Duration = Duration::from_millis(5);

/// A wait that ends after [`PATIENCE`].
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    deadline: Instant,
}

impl Wait {
    /// Starts to wait.
    #[must_use]
    pub fn start() -> Wait {
        let deadline = Instant::now() + PATIENCE;
        Wait { deadline }
    }

    /// Checks that the wait may go on.
    ///
    /// # Panics
    /// If it took too long, with the text of `complaint`.
    #[track_caller]
    pub fn check(&self, complaint: impl FnOnce() -> String) {
        assert!(Instant::now() < self.deadline, "{}", complaint());
    }

    /// As [`Wait::check`], and lets others run for a moment.
    ///
    /// # Panics
    /// As [`Wait::check`].
    #[track_caller]
    pub fn pause(&self, complaint: impl FnOnce() -> String) {
        self.check(complaint);
        thread::sleep(PAUSE);
    }
}
