//! The lock of a domain.
//!
//! An application that promises to make one call of a domain at a time (`FI_THREAD_DOMAIN`) needs
//! none, unless the domain has a thread of its own for automatic progress. All others share a
//! mutex, whatever threading model they asked for.

use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use efa_core::endpoint::Errno;

use crate::ffi::result::Result;

/// A value that one call at a time uses.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    mutex: Option<Mutex<()>>,
    /// Without a mutex: whether a call uses the value. It stays so after a panic.
    busy: Cell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: with a mutex one thread at a time reaches the value, and `busy` is not used. Without one,
// the caller of `Lock::unsynchronized` has promised the same.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A value with a mutex.
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock {
            mutex: Some(Mutex::new(())),
            busy: Cell::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// A value without a mutex.
    ///
    /// # Safety
    /// No two threads use the lock at the same time.
    pub(crate) unsafe fn unsynchronized(value: T) -> Lock<T> {
        Lock {
            mutex: None,
            ..Lock::new(value)
        }
    }

    /// Takes the lock.
    ///
    /// # Errors
    /// `FI_EOTHER` after a panic of a call that had it.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>> {
        let guard = match &self.mutex {
            Some(mutex) => Some(mutex.lock().map_err(|_| Errno::EOTHER)?),
            None if self.busy.replace(true) => return Err(Errno::EOTHER),
            None => None,
        };
        Ok(Guard {
            lock: self,
            _mutex: guard,
        })
    }
}

/// The value while its lock is held.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    _mutex: Option<MutexGuard<'a, ()>>,
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
        // With a mutex it is not used, and several threads would write to it.
        if self.lock.mutex.is_none() {
            self.lock.busy.set(std::thread::panicking());
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
