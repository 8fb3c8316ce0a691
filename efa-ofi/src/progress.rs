//! Automatic progress: a thread of the domain, which sleeps until there is something to do.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use efa_core::endpoint::Errno;

use crate::border::Result;
use crate::domain::State;
use crate::host::{Part, warn};
use crate::lock::Lock;
use crate::wait::{self, Alarm, Deadline};

/// The thread, until this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    alarm: Arc<Alarm>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// # Errors
    /// The process has too many threads or descriptors.
    pub(crate) fn start(state: &Arc<Lock<State>>) -> Result<Progress> {
        let alarm = Arc::new(Alarm::new(state.take()?.watch()?)?);
        let ends = Arc::new(AtomicBool::new(false));
        let (of_thread, alarm_of_thread, ends_soon) =
            (Arc::clone(state), Arc::clone(&alarm), Arc::clone(&ends));
        let thread = std::thread::Builder::new()
            .name("efa_rs progress".into())
            .spawn(move || {
                if let Err(Errno(error)) = run(&of_thread, &alarm_of_thread, &ends_soon) {
                    warn(
                        Part::Domain,
                        &format!("no automatic progress any more: error {error}"),
                    );
                }
            });
        let thread = thread.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        Ok(Progress {
            alarm,
            ends,
            thread: Some(thread),
        })
    }
}

/// Makes progress until `ends`.
fn run(state: &Lock<State>, alarm: &Alarm, ends: &AtomicBool) -> Result<()> {
    let forever = Deadline::after(-1);
    while !ends.load(Ordering::Acquire) {
        let is_quiet = state.take()?.arm()?;
        match is_quiet {
            true => _ = wait::sleep(alarm.as_fd(), forever)?,
            // Who waits for the lock takes it first.
            false => std::thread::yield_now(),
        }
    }
    Ok(())
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // It is not silenced: the thread finds it, whenever it looks.
        self.alarm.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
