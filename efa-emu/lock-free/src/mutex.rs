//! A mutex that costs an uncontended thread one exchange on each side.
//!
//! The standard library's mutex also records whether a holder panicked, which is not needed here
//! and costs instructions on each side.

use std::ops::{Deref, DerefMut};

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{SPINS, UnsafeCell, futex, spin_loop};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may sleep until it is released.
const AWAITED: u32 = 2;

/// A value that one thread at a time has access to.
pub struct Mutex<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: a guard is the only way to the value, and there is one guard at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the mutex is free. A thread that holds it waits forever.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    /// `None` if the mutex is held.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Guard { mutex: self })
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        for _ in 0..SPINS {
            spin_loop();
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
        // A thread that acquires the mutex from here on cannot tell whether others sleep. So it
        // marks it as awaited, and wakes them when it releases it.
        while self.word.swap(AWAITED, Ordering::Acquire) != FREE {
            futex::wait(&self.word, AWAITED, None);
        }
        Guard { mutex: self }
    }

    #[cold]
    fn wake(&self) {
        futex::wake(&self.word);
    }
}

/// Holds a [`Mutex`].
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only way to the value while it exists.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.mutex.value.get() }
    }
}

// SAFETY: a shared guard returns only shared references to the value.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.mutex.word.swap(FREE, Ordering::Release) == AWAITED {
            self.mutex.wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sleeping_threads_take_turns() {
        let mutex = Mutex::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..400 {
                        let mut value = mutex.lock();
                        let before = *value;
                        if round % 100 == 0 {
                            // Long enough for the other threads to fall asleep.
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        *value = before + 1;
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), 1600);
    }

    #[test]
    fn only_a_panicked_threads_mutex_is_free() {
        let mutex = Mutex::new(1);
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _held = mutex.lock();
                std::panic::resume_unwind(Box::new("on purpose"));
            });
            thread.join()
        });
        assert!(panicked.is_err());
        assert_eq!(mutex.try_lock().map(|value| *value), Some(1));
    }
}
