//! Detects that a verb is called by a signal handler that interrupted another verb.
//!
//! Programs call `exit` in signal handlers (libfabric's shared memory provider does on `SIGTERM`),
//! and their exit handlers destroy their objects and close the device. Verbs of the kernel's
//! devices hold no lock that could block them. In this library the interrupted call may hold any
//! lock, and would never release it. Verbs that destroy objects therefore do nothing in this case:
//! the process is about to end, and its objects end with it.

use core::marker::PhantomData;
use core::sync::atomic::{Ordering, compiler_fence};

use efa_lock_free::spin::{self, ThreadMark};

/// Marks that this thread holds, or is about to acquire, locks of this library. It is created
/// before a lock is acquired, and dropped after the lock was released; one is enough for all locks
/// of a verb.
pub(crate) struct Locking {
    /// Makes the type neither `Send` nor `Sync`.
    _thread: PhantomData<*const ()>,
}

impl Locking {
    #[inline(always)]
    pub(crate) fn new() -> Locking {
        locks::add();
        // The handler runs in this thread, so a compiler fence is sufficient.
        compiler_fence(Ordering::SeqCst);
        Locking {
            _thread: PhantomData,
        }
    }
}

impl Drop for Locking {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        locks::subtract();
    }
}

/// Whether the running call interrupted a call that may hold a lock.
pub(crate) fn inside_another_verb() -> bool {
    locks::count() != 0
}

impl ThreadMark for Locking {
    /// The address of one of the thread's variables.
    #[inline(always)]
    fn this_thread() -> usize {
        locks::address()
    }
}

/// A value behind a lock that one verb may acquire and a later one release.
pub(crate) type SpinCell<T> = spin::SpinCell<T, Locking>;

/// The thread's count of [`Locking`]s, in the instructions of the processor.
#[cfg_attr(target_arch = "x86_64", path = "interrupted/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "interrupted/aarch64.rs")]
mod locks;

// A shared library finds a thread-local variable by a function of the C library, unless every
// thread has the variable from its start (the initial-exec model). The C library reserves some room
// for variables of that model in libraries that are loaded late; this variable uses 4 bytes of it.
// Rust has no stable way to request the model, so the variable is declared in assembly. It saves a
// call in each verb of the data path.
core::arch::global_asm!(
    ".pushsection .tbss.efa_emu_verbs_locks, \"awT\", @nobits",
    ".globl efa_emu_verbs_locks",
    ".hidden efa_emu_verbs_locks",
    ".type efa_emu_verbs_locks, @object",
    ".size efa_emu_verbs_locks, 4",
    ".balign 4",
    "efa_emu_verbs_locks:",
    ".zero 4",
    ".popsection",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_counts_its_own_locks() {
        assert!(!inside_another_verb());
        let first = Locking::new();
        let second = Locking::new();
        drop(first);
        assert!(inside_another_verb());
        let elsewhere = std::thread::spawn(|| {
            let before = inside_another_verb();
            let locking = Locking::new();
            let during = inside_another_verb();
            drop(locking);
            (before, during, inside_another_verb())
        });
        assert_eq!(elsewhere.join().unwrap(), (false, true, false));
        assert!(inside_another_verb());
        drop(second);
        assert!(!inside_another_verb());
    }
}
