//! An idle peer takes little memory, however many there are.

#[path = "support/subject.rs"]
#[allow(dead_code, reason = "only the address vector is looked at")]
mod subject;

use efa_testing::heap::{self, CountingHeap};
use subject::Subject;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

#[test]
fn an_idle_peer_takes_at_most_128_bytes() {
    // Tables have just doubled when there is one more than a power of two.
    for count in [10_000, 16_385, 28_673, 65_537] {
        let mut subject = Subject::new();
        let before = heap::live_bytes();
        subject.insert_idle_peers(count);
        let bytes = (heap::live_bytes() - before) / i64::from(count);
        assert!((1..=128).contains(&bytes), "{bytes} with {count} peers");
    }
}
