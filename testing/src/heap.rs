//! The system's allocator, counting what the calling thread does with it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

/// Use it as the `#[global_allocator]`.
pub struct CountingHeap;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// Allocations and reallocations of this thread so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Allocations and reallocations of this thread during some work.
///
/// # Panics
/// If [`CountingHeap`] is not the global allocator, so that nothing would be counted.
pub fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = allocations();
    drop(black_box(Box::new(7)));
    assert_eq!(allocations() - before, 1, "the counter counts");
    let before = allocations();
    work();
    allocations() - before
}

/// Bytes that this thread has allocated and not freed.
pub fn live_bytes() -> i64 {
    LIVE_BYTES.get()
}

fn count(allocations: u64, bytes: i64) {
    ALLOCATIONS.set(ALLOCATIONS.get() + allocations);
    LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller's contract is the same, and `alloc` took it from the system.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as i64 - layout.size() as i64);
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
