//! A lock for a few instructions, of the sort that the libraries use on the data path.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Spin<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock admits one thread at a time to the value.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) const fn new(value: T) -> Spin<T> {
        Spin {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `work`, which must not panic, with the value.
    #[inline(always)]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut turns = 0_u32;
        while self
            .taken
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            turns += 1;
            match turns % 64 {
                // Its holder may have lost the processor.
                0 => std::thread::yield_now(),
                _ => core::hint::spin_loop(),
            }
        }
        // SAFETY: the lock is held.
        let result = work(unsafe { &mut *self.value.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}
