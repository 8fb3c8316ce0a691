//! Elements of user memory that peers change by atomics.
//!
//! An element of 1, 2, 4 or 8 bytes at an address that is a multiple of its size is read and
//! changed by the processor's atomic instructions, so that concurrent changes by the application's
//! threads, other processes and peers are not lost, as in stock libfabric. There are no such
//! instructions for other elements: a lock excludes the domains of this process from each other,
//! and an application must not change such an element while a peer does.
//!
//! The lock is acquired for all elements. Otherwise two peers that use elements of different sizes
//! in the same word could make atomic accesses of different sizes at the same time, which is
//! undefined in Rust.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock() -> MutexGuard<'static, ()> {
    static ELEMENTS: Mutex<()> = Mutex::new(());
    // A panic cannot leave an element half changed.
    ELEMENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls a macro with the atomic type for elements of this size, if there is one.
macro_rules! by_size {
    ($size:expr, $from:expr, $one_step:ident, $otherwise:expr) => {
        match $size {
            1 => $one_step!(AtomicU8, u8),
            2 if $from.addr() % 2 == 0 => $one_step!(AtomicU16, u16),
            4 if $from.addr() % 4 == 0 => $one_step!(AtomicU32, u32),
            8 if $from.addr() % 8 == 0 => $one_step!(AtomicU64, u64),
            _ => $otherwise,
        }
    };
}

/// Reads an element.
///
/// # Safety
/// `from` points to that many readable bytes. Others access it at the same time only atomically, by
/// elements of the same size.
pub(crate) unsafe fn read(from: *mut u8, target: &mut [u8]) {
    let _lock = lock();
    macro_rules! one_step {
        ($atomic:ty, $word:ty) => {{
            // SAFETY: as the caller promises; it is aligned.
            let word = unsafe { <$atomic>::from_ptr(from.cast()) }.load(Ordering::SeqCst);
            target.copy_from_slice(&word.to_ne_bytes());
        }};
    }
    by_size!(target.len(), from, one_step, {
        // SAFETY: as the caller promises; a unique reference does not overlap with others.
        unsafe { std::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len()) }
    });
}

/// Changes an element from `expected` to `new`. If the element has another value, stores that value
/// in `expected` and returns false.
///
/// # Safety
/// `at` points to as many bytes as `expected` has, readable and writable. Others access them at the
/// same time only atomically, by elements of the same size.
pub(crate) unsafe fn exchange(at: *mut u8, expected: &mut [u8], new: &[u8]) -> bool {
    debug_assert_eq!(expected.len(), new.len());
    let _lock = lock();
    macro_rules! one_step {
        ($atomic:ty, $word:ty) => {{
            let word = |bytes: &[u8]| {
                let mut word = [0; size_of::<$word>()];
                word.copy_from_slice(bytes);
                <$word>::from_ne_bytes(word)
            };
            // SAFETY: as the caller promises; it is aligned.
            let there = unsafe { <$atomic>::from_ptr(at.cast()) };
            let (old, new) = (word(expected), word(new));
            match there.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => true,
                Err(found) => {
                    expected.copy_from_slice(&found.to_ne_bytes());
                    false
                }
            }
        }};
    }
    by_size!(new.len(), at, one_step, {
        // SAFETY: as the caller promises; the lock excludes other domains, and no one else may
        // access it.
        let there = unsafe { std::slice::from_raw_parts_mut(at, new.len()) };
        let is_expected = there == expected;
        match is_expected {
            true => there.copy_from_slice(new),
            false => expected.copy_from_slice(there),
        }
        is_expected
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: usize = 4;
    const TURNS: u64 = 20_000;

    /// Adds 1 to an element, as an endpoint does for a peer.
    fn add_one(address: usize, size: usize) {
        let at = std::ptr::with_exposed_provenance_mut(address);
        let mut old = [0; 16];
        let old = &mut old[..size];
        // SAFETY: the tests' memory, which they access as they may.
        unsafe { read(at, old) };
        loop {
            let mut wide = [0; 16];
            wide[..size].copy_from_slice(old);
            let new = u128::from_le_bytes(wide).wrapping_add(1).to_le_bytes();
            // SAFETY: as above.
            if unsafe { exchange(at, old, &new[..size]) } {
                return;
            }
        }
    }

    fn value(bytes: &[u8]) -> u128 {
        let mut wide = [0; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        u128::from_le_bytes(wide)
    }

    /// Elements of each size, aligned and not.
    #[test]
    fn no_change_of_several_endpoints_is_lost() {
        for (size, offset) in [
            (1, 3),
            (2, 2),
            (4, 4),
            (8, 8),
            (16, 0),
            (4, 1),
            (8, 5),
            (16, 3),
        ] {
            let mut memory = vec![0_u128; 4];
            let base = memory.as_mut_ptr().expose_provenance();
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(move || (0..TURNS).for_each(|_| add_one(base + offset, size)));
                }
            });
            let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let expected = u128::from(THREADS as u64 * TURNS) & (u128::MAX >> (128 - 8 * size));
            let found = value(&bytes[offset..offset + size]);
            assert_eq!(found, expected, "size {size} at {offset}");
            let rest = bytes[..offset].iter().chain(&bytes[offset + size..]);
            assert!(
                rest.clone().all(|byte| *byte == 0),
                "size {size} at {offset}"
            );
        }
    }

    #[test]
    fn no_change_of_the_applications_threads_is_lost() {
        let word = AtomicU64::new(0);
        let small = AtomicU16::new(0);
        let (word_at, small_at) = (word.as_ptr(), small.as_ptr());
        let word_at = word_at.expose_provenance();
        let small_at = small_at.expose_provenance();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..TURNS {
                        word.fetch_add(1, Ordering::Relaxed);
                        small.fetch_add(1, Ordering::Relaxed);
                    }
                });
                scope.spawn(move || {
                    for _ in 0..TURNS {
                        add_one(word_at, 8);
                        add_one(small_at, 2);
                    }
                });
            }
        });
        assert_eq!(word.into_inner(), 4 * TURNS);
        assert_eq!(u64::from(small.into_inner()), 4 * TURNS % (1 << 16));
    }
}
