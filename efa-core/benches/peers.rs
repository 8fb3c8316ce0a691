//! The cost of an idle peer: bytes of memory, with many in the address vector.

use efa_core::endpoint::SourceFilter;

use efa_testing::heap::{self, CountingHeap};
use efa_testing::self_talk::SelfTalk;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

fn main() {
    // Without this argument the program runs under `cargo test`, which only checks that it works.
    let full = std::env::args().any(|argument| argument == "--bench");
    let counts: &[u32] = if full { &[10_000, 1_000_000] } else { &[100] };
    for &count in counts {
        let mut subject = SelfTalk::default();
        let before = heap::live_bytes();
        subject.insert_idle_peers(count);
        let bytes = heap::live_bytes() - before;
        println!(
            "{count:>9} idle peers: {:>5.1} bytes each",
            bytes as f64 / f64::from(count)
        );
        // The endpoint still works.
        subject.recv(SourceFilter::Any, None, 64);
        subject.send(None, 64);
        subject.finish(2);
    }
}
