//! Noticing that a verb is called by a signal handler that interrupted another verb.
//!
//! Programs call `exit` in signal handlers (libfabric's shared memory provider does on `SIGTERM`),
//! and their exit handlers destroy what they have: objects, the device. Verbs of the kernel's devices
//! hold no lock that could stop them. Here the interrupted call may hold any lock, and would never
//! release it. Verbs that end objects therefore do nothing in this case: the process is about to end,
//! and everything ends with it.

use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

thread_local! {
    static LOCKS: Cell<u32> = const { Cell::new(0) };
}

/// Says that this thread holds, or is about to take, locks of this library. To be made before a
/// lock is taken and dropped after it was released; one is enough for all locks of a verb.
pub(crate) struct Locking {
    /// This thread's count: to find it takes a call, which is made once. The pointer also keeps the
    /// value in its thread.
    count: *const Cell<u32>,
}

impl Locking {
    #[inline]
    pub(crate) fn new() -> Locking {
        let count = LOCKS.with(|count| {
            count.set(count.get() + 1);
            core::ptr::from_ref(count)
        });
        // The handler runs in this thread, so it is enough that the compiler keeps the order.
        compiler_fence(Ordering::SeqCst);
        Locking { count }
    }
}

impl Drop for Locking {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the count needs no destructor and so lives as long as its thread, which is this one.
        let count = unsafe { &*self.count };
        count.set(count.get() - 1);
    }
}

/// Whether the running call interrupted one that may hold a lock.
pub(crate) fn inside_another_verb() -> bool {
    LOCKS.get() != 0
}
