//! What the protocol engine costs by itself, without a device or a network: a whole message from
//! `send` to both completions, and matching as a function of how much is posted.

use core::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use efa_core::endpoint::*;
use efa_core::nic::{Access, Region, UserSlice};

#[path = "../tests/support/loopback.rs"]
mod loopback;

use loopback::Loopback;

struct Subject {
    endpoint: Endpoint<Loopback>,
    peer: PeerId,
    region: Region,
}

impl Subject {
    fn new() -> Self {
        let config = EndpointConfig {
            completion_queue: 1 << 20,
            ..EndpointConfig::default()
        };
        let mut endpoint = Endpoint::new(Loopback::new(false), config).unwrap();
        let peer = endpoint.insert_address(endpoint.address()).unwrap();
        let memory = UserSlice {
            address: 0,
            length: 1 << 20,
        };
        let region = endpoint.register(memory, Access::all()).unwrap();
        let mut subject = Subject {
            endpoint,
            peer,
            region,
        };
        subject.recv(SourceFilter::Any, None, 0);
        subject.send(None, 0);
        subject.finish(2);
        subject
    }

    fn piece(&self, address: u64, length: usize) -> IoVec {
        IoVec {
            memory: UserSlice { address, length },
            region: Some(self.region),
        }
    }

    fn send(&mut self, tag: Option<u64>, length: usize) {
        let data = [self.piece(0, length)];
        self.endpoint
            .send(SendArgs {
                peer: self.peer,
                data: &data,
                tag,
                cq_data: None,
                flags: OperationFlags::COMPLETION,
                context: 1,
            })
            .unwrap();
    }

    fn recv(&mut self, source: SourceFilter, tag: Option<TagFilter>, length: usize) -> ReceiveId {
        let buffer = [self.piece(1 << 19, length)];
        self.endpoint
            .recv(RecvArgs {
                source,
                buffer: &buffer,
                tag,
                flags: OperationFlags::COMPLETION,
                context: 2,
            })
            .unwrap()
    }

    fn finish(&mut self, mut completions: usize) {
        while completions > 0 {
            self.endpoint.progress(Instant::START);
            while let Some(entry) = self.endpoint.poll_completion() {
                black_box(entry).unwrap();
                completions -= 1;
            }
        }
    }
}

fn messages(c: &mut Criterion) {
    let mut group = c.benchmark_group("endpoint/message");
    for (name, length) in [
        ("eager_64", 64),
        ("eager_900", 900),
        ("medium_8192", 8192),
        ("long_cts_262144", 262_144),
    ] {
        let mut subject = Subject::new();
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

const COUNTS: [u64; 4] = [1, 100, 10_000, 100_000];

/// A message for one of many posted receives, which is posted again.
fn posted(c: &mut Criterion) {
    for (name, ignore) in [("exact", 0), ("wildcard", 0xFFFF_0000_0000)] {
        let mut group = c.benchmark_group(format!("endpoint/match_posted_{name}"));
        for count in COUNTS {
            let mut subject = Subject::new();
            for tag in 0..count {
                subject.recv(SourceFilter::Any, Some(TagFilter { tag, ignore }), 0);
            }
            let mut tag = 0;
            group.bench_with_input(BenchmarkId::from_parameter(count), &count, |b, count| {
                b.iter(|| {
                    tag = (tag + 7919) % count;
                    subject.send(Some(tag), 0);
                    subject.finish(2);
                    subject.recv(SourceFilter::Any, Some(TagFilter { tag, ignore }), 0);
                });
            });
        }
        group.finish();
    }
}

/// A receive for one of many unexpected messages, which is sent again.
fn unexpected(c: &mut Criterion) {
    let mut group = c.benchmark_group("endpoint/match_unexpected_exact");
    for count in COUNTS {
        let mut subject = Subject::new();
        let mut sent = 0;
        while sent < count {
            let batch = (count - sent).min(64);
            for tag in sent..sent + batch {
                subject.send(Some(tag), 0);
            }
            sent += batch;
            subject.finish(batch as usize);
        }
        // The handshake is in, and everything that was sent has arrived.
        subject.endpoint.progress(Instant::START);
        let mut tag = 0;
        group.bench_with_input(BenchmarkId::from_parameter(count), &count, |b, count| {
            b.iter(|| {
                tag = (tag + 7919) % count;
                subject.recv(SourceFilter::Any, Some(TagFilter::exact(tag)), 0);
                subject.send(Some(tag), 0);
                subject.finish(2);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, messages, posted, unexpected);
criterion_main!(benches);
