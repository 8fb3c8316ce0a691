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

/// Says that this thread holds, or is about to take, a lock of this library. To be made before the
/// lock is taken and dropped after it was released.
pub(crate) struct Locking(());

impl Locking {
    #[inline]
    pub(crate) fn new() -> Locking {
        LOCKS.set(LOCKS.get() + 1);
        // The handler runs in this thread, so it is enough that the compiler keeps the order.
        compiler_fence(Ordering::SeqCst);
        Locking(())
    }
}

impl Drop for Locking {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        LOCKS.set(LOCKS.get() - 1);
    }
}

/// Whether the running call interrupted one that may hold a lock.
pub(crate) fn inside_another_verb() -> bool {
    LOCKS.get() != 0
}
