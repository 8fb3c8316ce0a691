//! The lock of a domain.
//!
//! An application that promises to make one call of a domain at a time (`FI_THREAD_DOMAIN`) needs
//! none, unless the domain has a thread for automatic progress. All others share a mutex,
//! independent of the requested threading model.
//!
//! Each call acquires it once. The mutex of `parking_lot` is one inlined atomic instruction at each
//! end, while the code of the standard library's mutex is too long to be inlined.

use std::cell::{Cell, UnsafeCell};
use std::hint::cold_path;
use std::ops::{Deref, DerefMut};

use efa_core::endpoint::Errno;
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

use crate::ffi::result::Result;

/// A value that one call at a time uses.
pub(crate) struct Lock<T> {
    mutex: RawMutex,
    /// Without synchronization: whether a call holds it.
    held: Cell<bool>,
    /// Several threads use it, so that calls wait for each other.
    synchronized: bool,
    /// A call that had it panicked.
    poisoned: Cell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: where it is synchronized, one thread at a time has the mutex, and only that thread
// reaches `poisoned` and the value. Elsewhere the caller of `Lock::unsynchronized` has promised the
// same of all fields.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A lock for several threads.
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock {
            mutex: RawMutex::INIT,
            held: Cell::new(false),
            synchronized: true,
            poisoned: Cell::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// A value that needs no lock.
    ///
    /// # Safety
    /// No two threads use it at the same time.
    pub(crate) unsafe fn unsynchronized(value: T) -> Lock<T> {
        Lock {
            synchronized: false,
            ..Lock::new(value)
        }
    }

    /// Acquires the lock.
    ///
    /// # Errors
    /// `FI_EOTHER` after a panic of a call that held it, and for a call within a call.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>> {
        if self.synchronized {
            self.mutex.lock();
        } else if self.held.replace(true) {
            return Err(Errno::EOTHER);
        }
        let guard = Guard {
            lock: self,
            unwinds: std::thread::panicking(),
        };
        match self.poisoned.get() {
            false => Ok(guard),
            true => Err(Errno::EOTHER),
        }
    }
}

/// The value while its lock is held.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// The application has called while its thread unwinds.
    unwinds: bool,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held while this exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinds {
            cold_path();
            self.lock.poisoned.set(true);
        }
        if self.lock.synchronized {
            // SAFETY: this thread has acquired the mutex, and releases it once.
            unsafe { self.lock.mutex.unlock() };
        } else {
            self.lock.held.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_unusable_after_a_panic() {
        // SAFETY: this thread alone uses it.
        for lock in [Lock::new(0), unsafe { Lock::unsynchronized(0) }] {
            *lock.lock().expect("free") += 1;
            assert_eq!(*lock.lock().expect("free again"), 1);
            let panics = std::panic::AssertUnwindSafe(|| {
                let _taken = lock.lock();
                panic!("on purpose");
            });
            assert!(std::panic::catch_unwind(panics).is_err());
            assert_eq!(lock.lock().err(), Some(Errno::EOTHER));
        }
    }

    #[test]
    fn threads_take_turns() {
        const ROUNDS: usize = 20_000;
        let lock = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mut value = lock.lock().expect("nobody panics");
                        let before = *value;
                        if round % 64 == 0 {
                            // Others wait for longer than they look.
                            std::thread::yield_now();
                        }
                        *value = before + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock().expect("free"), 4 * ROUNDS);
        assert!(!lock.mutex.is_locked());
    }

    #[test]
    fn a_call_while_the_caller_unwinds_poisons_nothing() {
        struct Caller<'a>(&'a Lock<i32>);
        impl Drop for Caller<'_> {
            fn drop(&mut self) {
                *self.0.lock().expect("nobody has panicked with it") += 1;
            }
        }
        // SAFETY: this thread alone uses it.
        for lock in [Lock::new(0), unsafe { Lock::unsynchronized(0) }] {
            let panics = std::panic::AssertUnwindSafe(|| {
                let _caller = Caller(&lock);
                panic!("on purpose");
            });
            assert!(std::panic::catch_unwind(panics).is_err());
            assert_eq!(*lock.lock().expect("not poisoned"), 1);
        }
    }

    #[test]
    fn a_lock_is_held_once() {
        // SAFETY: this thread alone uses it.
        let lock = unsafe { Lock::unsynchronized(0) };
        let taken = lock.lock();
        assert!(taken.is_ok());
        assert_eq!(lock.lock().err(), Some(Errno::EOTHER));
        drop(taken);
        assert!(lock.lock().is_ok());
    }
}
