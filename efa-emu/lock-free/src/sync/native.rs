//! The primitives outside of models.

pub use core::cell::UnsafeCell;
pub use core::hint::spin_loop;
pub use core::sync::atomic;
pub use std::thread::{self, yield_now};

/// The futex operations on a word in shared memory. Errors (a signal, a changed word, no waiter)
/// are not reported, since every caller reads its state again anyway.
pub mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Sleeps while `word` is `expected`, at most for `timeout`; may return early.
    pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        });
        let timeout = timeout
            .as_ref()
            .map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `word` and `timeout` are valid during the call. The operation is the one for
        // words shared between processes.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT,
                expected,
                timeout,
            );
        }
    }

    /// Wakes all that sleep on `word`.
    pub fn wake(word: &AtomicU32) {
        // SAFETY: `word` is a valid address during the call.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}
