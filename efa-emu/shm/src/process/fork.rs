//! Noticing that a process is a forked child, without a system call.

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A page that the kernel wipes in a forked child, or `None` where it cannot.
static WIPED_PAGE: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();

/// Value of the wiped page in the process that made it.
const UNFORKED: u32 = 0xEFA0_0001;

fn wiped_page() -> Option<&'static AtomicU32> {
    *WIPED_PAGE.get_or_init(|| {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice affects no
        // existing memory; the result is checked before use.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the page is private to this code, and exists to be wiped in a child.
        if unsafe { libc::madvise(page, 4096, libc::MADV_WIPEONFORK) } != 0 {
            // SAFETY: no reference points into the page.
            unsafe { libc::munmap(page, 4096) };
            return None;
        }
        // SAFETY: the page is mapped, aligned, never unmapped and only used as this atomic.
        let word = unsafe { &*page.cast::<AtomicU32>() };
        word.store(UNFORKED, Ordering::Relaxed);
        Some(word)
    })
}

/// Remembers the process that made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HomeProcess {
    wiped: Option<&'static AtomicU32>,
    pid: u32,
}

impl HomeProcess {
    /// The calling process. In a forked child of a process that has called this before, the wiped
    /// page is of no more use, and the pid is compared instead.
    pub(crate) fn current() -> HomeProcess {
        HomeProcess {
            wiped: wiped_page().filter(|word| word.load(Ordering::Relaxed) == UNFORKED),
            pid: std::process::id(),
        }
    }

    /// Whether the caller runs in that process, and not in a forked child of it.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        match self.wiped {
            Some(word) => word.load(Ordering::Relaxed) == UNFORKED,
            None => std::process::id() == self.pid,
        }
    }
}

/// The word of a [`ForkSafeMutex`] that is free. No process has this number.
const FREE: u32 = 0;

/// A mutex that a forked child can use although another thread of its parent held it at the time of
/// the `fork`: its word is the pid of the holder. That thread may have been changing the value, so
/// the child starts again with the default value and leaks the old value without reading it. For
/// short and rare critical sections; a thread that waits yields.
pub(crate) struct ForkSafeMutex<T> {
    holder: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: a guard provides access to one thread at a time.
unsafe impl<T: Send> Sync for ForkSafeMutex<T> {}

impl<T: Default> ForkSafeMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        ForkSafeMutex {
            holder: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the mutex. Does not nest.
    pub(crate) fn lock(&self) -> ForkSafeGuard<'_, T> {
        let me = std::process::id();
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            if holder != me
                && self
                    .holder
                    .compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                // A holder with another pid is a thread of the parent that does not exist here.
                if holder != FREE {
                    // SAFETY: the exchange made this thread the only one of this process with
                    // access. `write` does not drop the value that it replaces, which may be half
                    // changed.
                    unsafe { self.value.get().write(T::default()) };
                }
                return ForkSafeGuard { mutex: self };
            }
            std::thread::yield_now();
        }
    }
}

/// Holds a [`ForkSafeMutex`].
pub(crate) struct ForkSafeGuard<'a, T> {
    mutex: &'a ForkSafeMutex<T>,
}

impl<T> std::ops::Deref for ForkSafeGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `lock` made this guard the only one of this process.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> std::ops::DerefMut for ForkSafeGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `lock` made this guard the only one of this process.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for ForkSafeGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.holder.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_forked_child_is_noticed() {
        let home = HomeProcess::current();
        let by_pid = HomeProcess {
            wiped: None,
            pid: std::process::id(),
        };
        assert!(home.is_current() && by_pid.is_current());
        // SAFETY: the child calls nothing but reads of memory, `getpid` and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let noticed = !home.is_current() && !by_pid.is_current();
            // SAFETY: ends the child without running the test harness's handlers.
            unsafe { libc::_exit(if noticed { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `child` is a child of this process and `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(home.is_current());
    }

    #[test]
    fn the_mutex_excludes_and_survives_vanished_holders() {
        let mutex = Arc::new(ForkSafeMutex::new(0u64));
        // The state for a child whose parent's other thread held the mutex and was changing the
        // value.
        *mutex.lock() = 0xdead;
        mutex
            .holder
            .store(std::process::id() + 1, Ordering::Relaxed);
        assert_eq!(*mutex.lock(), 0, "half a change is not seen");
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let mutex = Arc::clone(&mutex);
                std::thread::spawn(move || {
                    for _ in 0..1000 {
                        *mutex.lock() += 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*mutex.lock(), 4000);
    }
}
