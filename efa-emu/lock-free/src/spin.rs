//! A lock that one verb call may acquire and a later one release.
//!
//! Polling a completion queue and building work requests are sessions of several calls. Other
//! threads must be excluded between the calls, which a guard's lifetime cannot express.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use crate::sync::{SPINS, UnsafeCell, spin_loop, yield_now};

const FREE: u32 = 0;
/// Held by a call that is running.
const CALL: u32 = 1;
/// Held by a session between two calls.
const SESSION: u32 = 2;

/// Shows that a thread may lock: each call that locks takes a reference.
pub trait ThreadMark {
    /// A number that is unique to the calling thread while it exists.
    fn this_thread() -> usize;
}

/// A value behind a lock with sessions.
pub struct SpinCell<T, M> {
    state: AtomicU32,
    /// The thread of the session that holds the lock, if one does.
    owner: AtomicUsize,
    value: UnsafeCell<T>,
    mark: PhantomData<fn(M)>,
}

// SAFETY: a guard is the only way to the value, and there is one guard at a time.
unsafe impl<T: Send, M> Sync for SpinCell<T, M> {}

impl<T, M: ThreadMark> SpinCell<T, M> {
    /// A free lock.
    pub fn new(value: T) -> Self {
        SpinCell {
            state: AtomicU32::new(FREE),
            owner: AtomicUsize::new(0),
            value: UnsafeCell::new(value),
            mark: PhantomData,
        }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock<'a>(&'a self, locking: &'a M) -> SpinGuard<'a, T, M> {
        loop {
            if let Some(guard) = self.try_lock(locking) {
                return guard;
            }
            for _ in 0..SPINS {
                spin_loop();
                if self.state.load(Ordering::Relaxed) == FREE {
                    break;
                }
            }
            if self.state.load(Ordering::Relaxed) != FREE {
                yield_now();
            }
        }
    }

    /// Acquires the lock if it is free.
    #[inline]
    pub fn try_lock<'a>(&'a self, locking: &'a M) -> Option<SpinGuard<'a, T, M>> {
        self.take(FREE, FREE, locking)
    }

    /// Continues the session that holds the lock until [`SpinGuard::end`]; `None` if there is none.
    /// Only the owner can identify the session: two threads that both treat it as theirs alternate
    /// call by call.
    #[inline]
    pub fn resume<'a>(&'a self, locking: &'a M) -> Option<SpinGuard<'a, T, M>> {
        self.take(SESSION, SESSION, locking)
    }

    /// The value, for a reader inside the session that holds the lock; `None` without a session.
    ///
    /// # Safety
    /// The caller owns the session: no other thread makes a call of it meanwhile.
    #[inline]
    pub unsafe fn in_session(&self) -> Option<&T> {
        if self.state.load(Ordering::Relaxed) != SESSION {
            return None;
        }
        // SAFETY: the lock is held, and by contract the next call that may change the value follows
        // this one.
        Some(unsafe { &*self.value.get() })
    }

    /// Locks for a change that polling must not see halfway, but that its own session may see
    /// between two calls. Waits for the lock, unless the caller owns the session, which then
    /// continues. Waits for a session of another thread, except if all other threads are `gone`:
    /// then the session is abandoned.
    pub fn lock_beside_session<'a>(&'a self, locking: &'a M, gone: bool) -> SpinGuard<'a, T, M> {
        loop {
            if let Some(guard) = self.try_lock(locking) {
                return guard;
            }
            // The owner is written before the state of a session, and no other thread makes the
            // caller the owner or ends its session.
            let own = self.state.load(Ordering::Acquire) == SESSION
                && self.owner.load(Ordering::Relaxed) == M::this_thread();
            if (own || gone)
                && let Some(mut guard) = self.resume(locking)
            {
                if !own {
                    guard.release_to = FREE;
                }
                return guard;
            }
            yield_now();
        }
    }

    /// Locks for the destruction of the object: waits for a running call, and abandons a session.
    pub fn lock_or_break_session<'a>(&'a self, locking: &'a M) -> SpinGuard<'a, T, M> {
        loop {
            if let Some(mut guard) = self.try_lock(locking).or_else(|| self.resume(locking)) {
                guard.release_to = FREE;
                return guard;
            }
            yield_now();
        }
    }

    #[inline]
    fn take<'a>(&'a self, from: u32, release_to: u32, _: &'a M) -> Option<SpinGuard<'a, T, M>> {
        self.state
            .compare_exchange(from, CALL, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| SpinGuard {
                cell: self,
                release_to,
            })
    }
}

/// The lock, held by the running call.
pub struct SpinGuard<'a, T, M> {
    cell: &'a SpinCell<T, M>,
    /// The state of the lock after the guard is dropped.
    release_to: u32,
}

// SAFETY: a reference to the guard provides only shared references to the value.
unsafe impl<T: Sync, M> Sync for SpinGuard<'_, T, M> {}

impl<T, M: ThreadMark> SpinGuard<'_, T, M> {
    /// Makes the call the first of a session of this thread: the lock remains held until
    /// [`SpinCell::resume`] and [`SpinGuard::end`].
    #[inline]
    pub fn hold(mut self) {
        self.cell.owner.store(M::this_thread(), Ordering::Relaxed);
        self.release_to = SESSION;
    }

    /// Ends the session at the end of the call.
    #[inline]
    pub fn end(mut self) {
        self.release_to = FREE;
    }
}

impl<T, M> Deref for SpinGuard<'_, T, M> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the state is `CALL`, set when this guard was made, and there is no other guard.
        unsafe { &*self.cell.value.get() }
    }
}

impl<T, M> DerefMut for SpinGuard<'_, T, M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.cell.value.get() }
    }
}

impl<T, M> Drop for SpinGuard<'_, T, M> {
    #[inline]
    fn drop(&mut self) {
        self.cell.state.store(self.release_to, Ordering::Release);
    }
}

#[cfg(test)]
pub(crate) mod test_thread {
    use super::ThreadMark;
    use crate::sync::thread;

    /// Threads of tests and of models.
    pub(crate) struct Thread;

    impl ThreadMark for Thread {
        fn this_thread() -> usize {
            let name = format!("{:?}", thread::current().id());
            let digits: String = name.chars().filter(char::is_ascii_digit).collect();
            1 + digits.parse::<usize>().expect("threads are numbered")
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::test_thread::Thread;
    use super::*;

    #[test]
    fn threads_take_turns() {
        let cell = Arc::new(SpinCell::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let cell = Arc::clone(&cell);
                std::thread::spawn(move || {
                    let locking = Thread;
                    for _ in 0..2000 {
                        *cell.lock(&locking) += 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*cell.lock(&Thread), 8000);
    }

    /// The owner of a session may change the value during the session, which continues; another
    /// thread waits for the end of the session.
    #[test]
    fn only_a_sessions_owner_enters_again() {
        let cell = Arc::new(SpinCell::new(0));
        let locking = Thread;
        cell.lock(&locking).hold();
        *cell.lock_beside_session(&locking, false) += 1;
        assert!(cell.try_lock(&locking).is_none(), "the session goes on");
        let other = Arc::clone(&cell);
        let waiting = std::thread::spawn(move || {
            let locking = Thread;
            let mut value = other.lock_beside_session(&locking, false);
            let seen = *value;
            *value += 10;
            seen
        });
        // The other thread sees the change even if it happens late.
        std::thread::sleep(std::time::Duration::from_millis(20));
        *cell.lock_beside_session(&locking, false) += 1;
        assert!(!waiting.is_finished());
        cell.resume(&locking).unwrap().end();
        assert_eq!(waiting.join().unwrap(), 2);
        assert_eq!(*cell.try_lock(&locking).unwrap(), 12);
    }

    /// A forked child has no other thread that could end its session.
    #[test]
    fn a_vanished_threads_session_is_abandoned() {
        let cell = Arc::new(SpinCell::new(0));
        let other = Arc::clone(&cell);
        let thread = std::thread::spawn(move || other.lock(&Thread).hold());
        thread.join().unwrap();
        let locking = Thread;
        drop(cell.lock_beside_session(&locking, true));
        assert!(cell.try_lock(&locking).is_some());
    }

    #[test]
    fn a_session_keeps_others_out_until_its_end() {
        let cell = SpinCell::new(1);
        let locking = Thread;
        assert!(cell.resume(&locking).is_none(), "no session yet");
        cell.lock(&locking).hold();
        assert!(cell.try_lock(&locking).is_none());
        let mut guard = cell.resume(&locking).unwrap();
        assert!(cell.resume(&locking).is_none(), "its call is running");
        *guard += 1;
        drop(guard);
        assert!(cell.try_lock(&locking).is_none(), "the session goes on");
        cell.resume(&locking).unwrap().end();
        assert_eq!(*cell.try_lock(&locking).unwrap(), 2);
        cell.lock(&locking).hold();
        drop(cell.lock_or_break_session(&locking));
        assert!(cell.try_lock(&locking).is_some());
    }
}
