//! The cost of matching as a function of the number of posted receives or unexpected messages.
//!
//! Each row is the same work with 1, 100, 10,000 and 100,000 receives or messages: nanoseconds of
//! one round (a zero-length message from `send` to both completions, and the receive for it), and
//! the ratio to the row with one. Tags are used in an order that no cache or prefetcher can
//! predict, so that the larger rows include the cost of the machine's memory. The control is a hash
//! map of the standard library with as many entries of 64 bytes; one entry is removed and inserted
//! again.

use core::hint::black_box;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use efa_core::endpoint::{SourceFilter, TagFilter};

use efa_testing::self_talk::SelfTalk;

const COUNTS: [u64; 4] = [1, 100, 10_000, 100_000];
/// Coprime to every count, and far from neighbours.
const STRIDE: u64 = 7919;

/// One kind of matching, prepared for a count: does one round with a tag below the count.
type Round = Box<dyn FnMut(u64)>;

fn posted(count: u64, ignore: u64) -> Round {
    let mut subject = SelfTalk::default();
    let filter = move |tag| Some(TagFilter { tag, ignore });
    for tag in 0..count {
        subject.recv(SourceFilter::Any, filter(tag), 0);
    }
    Box::new(move |tag| {
        subject.send(Some(tag), 0);
        subject.finish(2);
        subject.recv(SourceFilter::Any, filter(tag), 0);
    })
}

/// As `posted`, but the receives name their source, and messages are also compared with a receive
/// with ignore bits that accepts none of them.
fn posted_mixed(count: u64) -> Round {
    let mut subject = SelfTalk::default();
    let source = SourceFilter::Peer(subject.peer);
    let other = TagFilter {
        tag: u64::MAX,
        ignore: 0xFFFF << 32,
    };
    subject.recv(SourceFilter::Any, Some(other), 0);
    for tag in 0..count {
        subject.recv(source, Some(TagFilter::exact(tag)), 0);
    }
    Box::new(move |tag| {
        subject.send(Some(tag), 0);
        subject.finish(2);
        subject.recv(source, Some(TagFilter::exact(tag)), 0);
    })
}

fn unexpected(count: u64, filter: impl Fn(u64) -> TagFilter + 'static) -> Round {
    let mut subject = SelfTalk::default();
    let mut sent = 0;
    while sent < count {
        let batch = (count - sent).min(64);
        for tag in sent..sent + batch {
            subject.send(Some(tag), 0);
        }
        sent += batch;
        subject.finish(batch as usize);
    }
    subject.progress();
    Box::new(move |tag| {
        subject.recv(SourceFilter::Any, Some(filter(tag)), 0);
        subject.send(Some(tag), 0);
        subject.finish(2);
    })
}

fn control(count: u64) -> Round {
    let mut map: HashMap<u64, [u64; 8]> = (0..count).map(|tag| (tag, [tag; 8])).collect();
    Box::new(move |tag| {
        if let Some(value) = map.remove(&tag) {
            map.insert(tag, black_box(value));
        }
    })
}

/// Nanoseconds of a round: the least of several batches, which other programs disturb least.
fn nanoseconds(round: &mut Round, count: u64) -> f64 {
    const BATCHES: u32 = 9;
    const LEAST: Duration = Duration::from_millis(30);
    let mut tag = 0;
    let mut run = |rounds: u32| {
        let start = Instant::now();
        for _ in 0..rounds {
            tag = (tag + STRIDE) % count;
            round(tag);
        }
        start.elapsed()
    };
    let mut rounds = 100;
    while run(rounds) < LEAST {
        rounds *= 2;
    }
    let best = (0..BATCHES).map(|_| run(rounds)).min().unwrap_or_default();
    best.as_secs_f64() * 1e9 / f64::from(rounds)
}

fn row(name: &str, prepare: impl Fn(u64) -> Round) {
    print!("{name:<42}");
    let mut first = None;
    for count in COUNTS {
        let time = nanoseconds(&mut prepare(count), count);
        let ratio = time / *first.get_or_insert(time);
        print!(" {time:>8.0} {ratio:>6.2}x");
    }
    println!();
}

fn main() {
    // Without this argument the program runs under `cargo test`, which only checks that it works.
    let full = std::env::args().any(|argument| argument == "--bench");
    if !full {
        let mut rounds = [posted(100, 0), posted_mixed(100), control(100)];
        for round in &mut rounds {
            round(7);
        }
        return;
    }
    print!("{:<42}", "ns per message, and ratio to the first");
    for count in COUNTS {
        print!(" {count:>16}");
    }
    println!();
    row("posted, exact", |count| posted(count, 0));
    row("posted, from one peer, beside a wildcard", posted_mixed);
    row("posted, ignoring 16 bits", |count| {
        posted(count, 0xFFFF << 32)
    });
    row("unexpected, exact", |count| {
        unexpected(count, TagFilter::exact)
    });
    row("unexpected, any", |count| {
        let ignore = u64::MAX;
        unexpected(count, move |tag| TagFilter { tag, ignore })
    });
    row("control: std HashMap, out and in", control);
}
