//! In the steady state no message allocates memory, whatever its subprotocol.

use efa_core::endpoint::*;
use efa_core::nic::{Access, Region, UserSlice};
use efa_core::wire::{AtomicDatatype, AtomicOp};

#[path = "support/loopback.rs"]
mod loopback;

use efa_testing::heap::{self, CountingHeap};
use loopback::{Loopback, LoopbackDomain};

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

struct Loop {
    endpoint: Endpoint<Loopback>,
    peer: PeerId,
    region: Region,
}

impl Loop {
    fn new(config: EndpointConfig, swap: bool) -> Self {
        Self::with_device(config, LoopbackDomain::new(swap).open())
    }

    fn with_device(config: EndpointConfig, device: Loopback) -> Self {
        let mut endpoint = Endpoint::new(device, config).unwrap();
        let peer = endpoint.insert_address(endpoint.address()).unwrap();
        let memory = UserSlice {
            address: 0,
            length: 1 << 20,
        };
        let region = endpoint.register(memory, Access::all()).unwrap();
        let mut this = Loop {
            endpoint,
            peer,
            region,
        };
        // The handshake.
        this.recv(0, None);
        this.send(0, None, OperationFlags::empty());
        this.finish(2);
        this
    }

    fn piece(&self, address: u64, length: usize) -> IoVec {
        IoVec {
            memory: UserSlice { address, length },
            region: Some(self.region),
        }
    }

    fn send(&mut self, length: usize, tag: Option<u64>, flags: OperationFlags) {
        let data = [self.piece(0, length)];
        self.endpoint
            .send(SendArgs {
                peer: self.peer,
                data: &data,
                tag,
                cq_data: Some(1),
                flags: flags | OperationFlags::COMPLETION,
                context: 1,
            })
            .unwrap();
    }

    fn recv(&mut self, length: usize, tag: Option<TagFilter>) {
        let buffer = [self.piece(1 << 19, length)];
        self.endpoint
            .recv(RecvArgs {
                source: SourceFilter::Any,
                buffer: &buffer,
                tag,
                flags: OperationFlags::COMPLETION,
                context: 2,
            })
            .unwrap();
    }

    fn progress(&mut self) {
        while self.endpoint.progress(Instant::START) > 0 {}
    }

    /// Runs until so many operations have completed.
    fn finish(&mut self, mut completions: usize) {
        for _ in 0..1000 {
            self.progress();
            while let Some(entry) = self.endpoint.poll_completion() {
                entry.unwrap();
                completions -= 1;
            }
            if completions == 0 {
                self.progress();
                assert_eq!(self.endpoint.poll_event(), None);
                return;
            }
        }
        panic!("{completions} completions are missing");
    }
}

/// Runs a round until the engine has grown to what it needs, and then counts.
fn assert_no_allocation(name: &str, subject: &mut Loop, mut round: impl FnMut(&mut Loop, u64)) {
    for number in 0..300 {
        round(subject, number);
    }
    let counted = heap::allocations_of(|| {
        for number in 300..1300 {
            round(subject, number);
        }
    });
    assert_eq!(counted, 0, "{name}");
}

fn config() -> EndpointConfig {
    EndpointConfig {
        max_medium_size: 4000,
        min_read_message_size: usize::MAX,
        min_read_write_size: usize::MAX,
        cts_window_packets: 4,
        ..EndpointConfig::default()
    }
}

#[test]
fn expected_messages() {
    let dc = OperationFlags::DELIVERY_COMPLETE;
    for (name, length, flags, config) in [
        ("eager", 64, OperationFlags::empty(), config()),
        ("eager, delivery complete", 64, dc, config()),
        ("medium", 3000, OperationFlags::empty(), config()),
        ("medium, delivery complete", 3000, dc, config()),
        ("injected", 64, OperationFlags::INJECT, config()),
        ("long-CTS", 50_000, OperationFlags::empty(), config()),
        ("long-CTS, delivery complete", 50_000, dc, config()),
        (
            "long-read",
            50_000,
            OperationFlags::empty(),
            EndpointConfig {
                min_read_message_size: 4000,
                ..config()
            },
        ),
        (
            "runting read",
            50_000,
            OperationFlags::empty(),
            EndpointConfig {
                min_read_message_size: 4000,
                runt_size: 2000,
                ..config()
            },
        ),
    ] {
        let mut subject = Loop::new(config, false);
        assert_no_allocation(name, &mut subject, |subject, number| {
            subject.recv(length, Some(TagFilter::exact(number)));
            subject.send(length, Some(number), flags);
            // Injected messages complete for the receiver only.
            subject.finish(2 - usize::from(flags == OperationFlags::INJECT));
        });
    }
}

#[test]
fn unexpected_messages_and_wildcards() {
    let mut subject = Loop::new(config(), false);
    assert_no_allocation("unexpected", &mut subject, |subject, number| {
        for tag in 0..80 {
            subject.send(64, Some(number * 100 + tag), OperationFlags::empty());
        }
        subject.progress();
        for tag in 0..80 {
            let ignore = if tag % 2 == 0 { 0 } else { u64::MAX };
            subject.recv(
                64,
                Some(TagFilter {
                    tag: number * 100 + tag,
                    ignore,
                }),
            );
        }
        subject.finish(160);
    });
}

#[test]
fn messages_that_come_out_of_order() {
    let mut subject = Loop::new(config(), true);
    assert_no_allocation("out of order", &mut subject, |subject, _| {
        for _ in 0..10 {
            subject.recv(64, None);
            subject.send(64, None, OperationFlags::empty());
        }
        subject.finish(20);
    });
    assert!(subject.endpoint.statistics().out_of_order > 1000);
}

/// A one-sided operation on memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    WriteWithData,
    Read,
    WriteAtomic,
    FetchAtomic,
    CompareAtomic,
}

impl Loop {
    fn one_sided(&mut self, kind: Kind, length: usize, flags: OperationFlags) {
        let remote = [RemoteIoVec {
            address: 1 << 17,
            length: length as u64,
            key: self.region.remote_key,
        }];
        let local = [self.piece(0, length)];
        let (comparand, result) = ([self.piece(64, length)], [self.piece(128, length)]);
        let (peer, context) = (self.peer, 1);
        let flags = flags | OperationFlags::COMPLETION;
        let atomic = match kind {
            Kind::Write | Kind::WriteWithData => {
                let args = WriteArgs {
                    peer,
                    data: &local,
                    remote: &remote,
                    cq_data: (kind == Kind::WriteWithData).then_some(7),
                    flags,
                    context,
                };
                return self.endpoint.write(args).unwrap();
            }
            Kind::Read => {
                let args = ReadArgs {
                    peer,
                    buffer: &local,
                    remote: &remote,
                    flags,
                    context,
                };
                return self.endpoint.read(args).unwrap();
            }
            Kind::WriteAtomic => AtomicKind::Write,
            Kind::FetchAtomic => AtomicKind::Fetch { result: &result },
            Kind::CompareAtomic => AtomicKind::Compare {
                comparand: &comparand,
                result: &result,
            },
        };
        let operation = match kind {
            Kind::CompareAtomic => AtomicOp::CSWAP,
            _ => AtomicOp::SUM,
        };
        self.endpoint
            .atomic(AtomicArgs {
                peer,
                datatype: AtomicDatatype::UINT64,
                operation,
                operand: &local,
                kind: atomic,
                remote: &remote,
                flags,
                context,
            })
            .unwrap();
    }
}

#[test]
fn one_sided_operations() {
    let none = OperationFlags::empty();
    let dc = OperationFlags::DELIVERY_COMPLETE;
    let direct = config();
    let emulated = EndpointConfig {
        use_device_rdma: false,
        ..config()
    };
    for (name, kind, length, flags, config) in [
        ("direct write", Kind::Write, 9000, none, &direct),
        (
            "write with immediate",
            Kind::WriteWithData,
            3000,
            none,
            &direct,
        ),
        ("direct read", Kind::Read, 9000, none, &direct),
        ("eager write", Kind::Write, 100, none, &emulated),
        (
            "eager write, data",
            Kind::WriteWithData,
            100,
            none,
            &emulated,
        ),
        (
            "eager write, delivery complete",
            Kind::Write,
            100,
            dc,
            &emulated,
        ),
        ("long-CTS write", Kind::Write, 9000, none, &emulated),
        (
            "long-CTS write, delivery complete",
            Kind::Write,
            9000,
            dc,
            &emulated,
        ),
        ("short read", Kind::Read, 100, none, &emulated),
        ("long-CTS read", Kind::Read, 9000, none, &emulated),
        ("write atomic", Kind::WriteAtomic, 8, none, &direct),
        (
            "write atomic, delivery complete",
            Kind::WriteAtomic,
            8,
            dc,
            &direct,
        ),
        ("fetch atomic", Kind::FetchAtomic, 8, none, &direct),
        ("compare atomic", Kind::CompareAtomic, 8, none, &direct),
    ] {
        let mut subject = Loop::new(config.clone(), false);
        let completions = if kind == Kind::WriteWithData { 2 } else { 1 };
        assert_no_allocation(name, &mut subject, |subject, _| {
            subject.one_sided(kind, length, flags);
            subject.finish(completions);
        });
    }
}

#[test]
fn long_read_writes() {
    let config = EndpointConfig {
        min_read_write_size: 4000,
        ..config()
    };
    let mut subject = Loop::with_device(
        config,
        LoopbackDomain::new(false).without_rdma_write().open(),
    );
    assert_no_allocation("long-read write", &mut subject, |subject, _| {
        subject.one_sided(Kind::Write, 9000, OperationFlags::empty());
        subject.finish(1);
    });
}
