//! Automatic progress: a thread of the domain, which sleeps until there is something to do.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use efa_core::endpoint::Errno;

use crate::ffi::host::log_warn;
use crate::ffi::result::Result;
use crate::state::domain::DomainState;
use crate::state::lock::Lock;
use crate::state::wait::{self, Deadline, WaitFd};

/// The thread, until this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    wait_fd: Arc<WaitFd>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// # Errors
    /// The process has too many threads or descriptors.
    pub(crate) fn start(state: &Arc<Lock<DomainState>>) -> Result<Progress> {
        let wait_fd = Arc::new(WaitFd::new(state.lock()?.device_events()?)?);
        let ends = Arc::new(AtomicBool::new(false));
        let moved = (Arc::clone(state), Arc::clone(&wait_fd), Arc::clone(&ends));
        // The application's signals are for the application's threads. A thread inherits the signal
        // mask of the thread that starts it.
        let _blocked = BlockedSignals::new();
        let thread = std::thread::Builder::new()
            .name("efa_rs progress".into())
            .spawn(move || {
                let (state, wait_fd, ends) = moved;
                if let Err(Errno(error)) = run(&state, &wait_fd, &ends) {
                    log_warn!(Domain, "no automatic progress any more: error {error}");
                }
            });
        let thread = thread.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        Ok(Progress {
            wait_fd,
            ends,
            thread: Some(thread),
        })
    }
}

/// Blocks all signals for the current thread until it is dropped.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> BlockedSignals {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both are valid for writes; the first call fills in one, the second the other.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            BlockedSignals(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `pthread_sigmask` has returned the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Makes progress until `ends`.
fn run(state: &Lock<DomainState>, wait_fd: &WaitFd, ends: &AtomicBool) -> Result<()> {
    let forever = Deadline::after(-1);
    while !ends.load(Ordering::Acquire) {
        let is_quiet = state.lock()?.arm()?;
        match is_quiet {
            true => _ = wait::sleep(wait_fd.as_fd(), forever)?,
            // Threads that wait for the lock acquire it first.
            false => std::thread::yield_now(),
        }
    }
    Ok(())
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // It is not cleared: the thread finds it, whenever it looks.
        self.wait_fd.eventfd.notify();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
