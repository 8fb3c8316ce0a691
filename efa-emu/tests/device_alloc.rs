//! The path of a message through the device allocates nothing in the steady state: counted.

mod device_rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use device_rig::Rig;

thread_local! {
    /// Allocations of this thread. The test harness's own threads do not disturb it.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a counter.
struct Counting;

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the contract. The
// counter has no destructor and needs no allocation, so it is usable in every call.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same, and the memory came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(mut work: impl FnMut()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn messages_and_rdma_allocate_nothing() {
    assert_eq!(
        allocations(|| drop(black_box(Box::new(7)))),
        1,
        "the counter counts"
    );
    let mut rig = Rig::new();
    rig.message(0);
    rig.write(0);
    let counted = allocations(|| {
        for wr_id in 1..10_000 {
            rig.message(wr_id);
            rig.write(wr_id);
            rig.idle();
        }
    });
    assert_eq!(counted, 0);
}
