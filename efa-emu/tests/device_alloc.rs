//! The path of a message through the device allocates nothing in the steady state: counted.

mod device_rig;

use std::hint::black_box;

use device_rig::Rig;
use efa_testing::heap::{self, CountingHeap};

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

fn allocations(mut work: impl FnMut()) -> u64 {
    let before = heap::allocations();
    work();
    heap::allocations() - before
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
