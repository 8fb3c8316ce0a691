//! A message between two opened devices allocates nothing in the steady state: counted.

#[path = "transport/client.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod client;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use client::{Client, config};
use efa_emu::provider::{SendData, WcOpcode};

thread_local! {
    /// Allocations of this thread. Those of the devices' own threads go by time, not by message.
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
fn a_message_allocates_nothing() {
    const LENGTH: usize = 64;
    assert_eq!(
        allocations(|| drop(black_box(Box::new(7)))),
        1,
        "the counter counts"
    );
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut alpha = Client::open(root.path(), &config("alpha"));
    let mut beta = Client::open(root.path(), &config("beta"));
    let source = alpha.register(vec![1; LENGTH]);
    let room = beta.register(vec![0; LENGTH]);
    let to = alpha.connect(beta.address());
    beta.connect(alpha.address());
    let mut exchange = |messages: u64| {
        for number in 0..messages {
            beta.post_recv(number, room.buffer(0, LENGTH));
            let data = [source.buffer(0, LENGTH)];
            assert!(alpha.post_send(number, to, SendData::Buffers(&data)));
            let received = loop {
                if let Some(completion) = beta.poll() {
                    break completion;
                }
            };
            assert_eq!((received.code(), received.opcode()), (0, WcOpcode::Recv));
            alpha.wait_ok();
        }
    };
    exchange(100);
    assert_eq!(allocations(|| exchange(5_000)), 0);
}
