//! An idle peer takes little memory, however many there are.

use efa_testing::heap::{self, CountingHeap};
use efa_testing::self_talk::SelfTalk;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

#[test]
fn an_idle_peer_takes_at_most_128_bytes() {
    // Tables have just doubled when there is one more than a power of two.
    for count in [10_000, 16_385, 28_673, 65_537] {
        let mut subject = SelfTalk::default();
        let before = heap::live_bytes();
        subject.insert_idle_peers(count);
        let bytes = (heap::live_bytes() - before) / i64::from(count);
        assert!((1..=128).contains(&bytes), "{bytes} with {count} peers");
    }
}
