//! The cost of the protocol engine alone, without a device or a network: a whole message from
//! `send` to both completions.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use efa_core::endpoint::{SourceFilter, TagFilter};

use efa_testing::self_talk::SelfTalk;

fn messages(c: &mut Criterion) {
    let mut group = c.benchmark_group("endpoint/message");
    for (name, length) in [
        ("eager_64", 64),
        ("eager_900", 900),
        ("medium_8192", 8192),
        ("long_cts_262144", 262_144),
    ] {
        let mut subject = SelfTalk::default();
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                subject.recv(SourceFilter::Any, Some(TagFilter::exact(7)), length);
                subject.send(Some(7), length);
                subject.finish(2);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, messages);
criterion_main!(benches);
