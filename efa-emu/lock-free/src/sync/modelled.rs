//! The primitives in models.

pub use loom::hint::spin_loop;
pub use loom::sync::atomic;
pub use loom::thread::{self, yield_now};

/// A cell whose accesses are all checked to be ordered.
#[derive(Debug)]
pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell with this value.
    pub fn new(value: T) -> Self {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    /// Counts as a write at the time of the call.
    pub fn get(&self) -> *mut T {
        self.0.with_mut(|pointer| pointer)
    }
}

/// The kernel's futex: a waiter either sleeps before another thread wakes it, or has seen the
/// changed word.
pub mod futex {
    use core::time::Duration;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    loom::lazy_static! {
        static ref QUEUE: (Mutex<u32>, Condvar) = (Mutex::new(0), Condvar::new());
    }

    /// Sleeps while `word` is `expected`. No time passes in a model.
    pub fn wait(word: &AtomicU32, expected: u32, _timeout: Option<Duration>) {
        let (wakes, woken) = &*QUEUE;
        let mut count = wakes.lock().expect("no thread panicked");
        let before = *count;
        // The kernel reads the current value of the word, not an older one.
        if word.fetch_add(0, Ordering::Relaxed) != expected {
            return;
        }
        while *count == before {
            count = woken.wait(count).expect("no thread panicked");
        }
    }

    /// Wakes all, whatever word they sleep on.
    pub fn wake(_word: &AtomicU32) {
        let (wakes, woken) = &*QUEUE;
        *wakes.lock().expect("no thread panicked") += 1;
        woken.notify_all();
    }
}
