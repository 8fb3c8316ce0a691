//! Parsing, emitting and walking fields allocate nothing, for every packet type: counted.

#[path = "wire/recipe.rs"]
mod recipe;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use efa_core::wire::fields::fields_of;
use efa_core::wire::{Packet, Repr};

use recipe::{Recipe, typed};

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

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    let counted = allocations(|| drop(black_box(Box::new(7))));
    assert_eq!(counted, 1);
}

#[test]
fn no_packet_type_allocates() {
    for recipe in typed().flat_map(|ty| [Recipe::full(ty), Recipe::bare(ty)]) {
        let packet_type = recipe.packet_type;
        let packet = recipe.packet();
        let header = Packet::parse(&packet).expect("valid").header;
        let mut buffer = [0; 512];
        let counted = allocations(|| {
            black_box(header.emit(black_box(&mut buffer))).expect("large enough");
            black_box(Packet::parse(black_box(&packet))).expect("valid");
            for field in fields_of(black_box(&packet)).into_iter().flatten() {
                black_box(field);
            }
        });
        assert_eq!(counted, 0, "{packet_type}");

        // Neither does a refusal.
        let counted = allocations(|| {
            for length in 0..packet.len() {
                let _ = black_box(Packet::parse(black_box(&packet[..length])));
            }
        });
        assert_eq!(counted, 0, "{packet_type}, truncated");
    }
}
