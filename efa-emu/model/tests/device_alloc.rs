//! The path of a message through the device makes no allocations in the steady state. They are
//! counted.

use efa_testing::device::BareLink;
use efa_testing::heap::{self, CountingHeap};

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

#[test]
fn messages_and_rdma_allocate_nothing() {
    let mut link = BareLink::default();
    link.message(0);
    link.write(0);
    let counted = heap::allocations_of(|| {
        for wr_id in 1..10_000 {
            link.message(wr_id);
            link.write(wr_id);
            link.idle();
        }
    });
    assert_eq!(counted, 0);
}
