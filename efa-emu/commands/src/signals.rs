//! Handles signals by waiting for them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Signals that this thread waits for, and that have no other effect on the process.
pub struct Signals {
    waited_for: libc::sigset_t,
    blocked_before: libc::sigset_t,
}

/// A received signal.
pub struct Signal {
    /// The signal number, such as `SIGTERM`.
    pub number: i32,
    /// Whether a process sent it. The terminal sends signals to a whole process group.
    pub from_process: bool,
}

impl Signals {
    /// Blocks these signals, so that they can be waited for.
    pub fn take(signals: &[i32]) -> Signals {
        let mut waited_for = MaybeUninit::uninit();
        let mut blocked_before = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initialises the set that the other calls then change and read, and
        // `pthread_sigmask` the other set.
        unsafe {
            libc::sigemptyset(waited_for.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(waited_for.as_mut_ptr(), *signal);
            }
            libc::pthread_sigmask(
                libc::SIG_BLOCK,
                waited_for.as_ptr(),
                blocked_before.as_mut_ptr(),
            );
            Signals {
                waited_for: waited_for.assume_init(),
                blocked_before: blocked_before.assume_init(),
            }
        }
    }

    /// Restores the signal mask in the program, which then starts with the signals unblocked.
    pub fn unblock_in(&self, command: &mut Command) {
        let mask = self.blocked_before;
        let unblock = move || {
            // SAFETY: the set is initialised, and the old one is not requested.
            match unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut())
            } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        // SAFETY: the closure makes one call between `fork` and `exec`, which is allowed there.
        unsafe { command.pre_exec(unblock) };
    }

    /// A descriptor that is readable while one of the signals is pending.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the set is initialised.
        match unsafe { libc::signalfd(-1, &raw const self.waited_for, flags) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the descriptor is new, and has no other owner.
            descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        }
    }

    /// Waits for the next signal, for at most `time`.
    pub fn wait_for(&self, time: Duration) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        };
        // SAFETY: the set is initialised, `info` has room for the result, and the time is valid.
        let number = unsafe {
            libc::sigtimedwait(
                &raw const self.waited_for,
                info.as_mut_ptr(),
                &raw const time,
            )
        };
        if number <= 0 {
            return None;
        }
        // SAFETY: zeroed at first and filled by the successful call.
        let code = unsafe { info.assume_init_ref() }.si_code;
        Some(Signal {
            number,
            from_process: code <= 0,
        })
    }
}
