//! In the steady state no message allocates memory, whatever its subprotocol.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use efa_core::endpoint::*;
use efa_core::nic::{Access, Region, UserSlice};
use efa_core::wire::{AtomicDatatype, AtomicOp};

#[path = "support/loopback.rs"]
mod loopback;

use loopback::Loopback;

/// The system's allocator, counting the calls of this thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same, and `alloc` took it from the system.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Loop {
    endpoint: Endpoint<Loopback>,
    peer: PeerId,
    region: Region,
}

impl Loop {
    fn new(config: EndpointConfig, swap: bool) -> Self {
        let mut endpoint = Endpoint::new(Loopback::new(swap), config).unwrap();
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
    let before = ALLOCATIONS.get();
    for number in 0..1000 {
        round(subject, 300 + number);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0, "{name}");
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
            subject.finish(2);
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

#[test]
fn one_sided_operations() {
    for (name, use_device_rdma, length) in [
        ("direct", true, 3000),
        ("emulated, short", false, 100),
        ("emulated, long", false, 9000),
    ] {
        let config = EndpointConfig {
            use_device_rdma,
            ..config()
        };
        let mut subject = Loop::new(config, false);
        let key = subject.region.remote_key;
        let remote = move |address, length: usize| RemoteIoVec {
            address,
            length: length as u64,
            key,
        };
        assert_no_allocation(name, &mut subject, |subject, _| {
            let local = [subject.piece(0, length)];
            let operand = [subject.piece(0, 8)];
            let result = [subject.piece(64, 8)];
            let (peer, flags, context) = (subject.peer, OperationFlags::COMPLETION, 0);
            let endpoint = &mut subject.endpoint;
            endpoint
                .write(WriteArgs {
                    peer,
                    data: &local,
                    remote: &[remote(1 << 17, length)],
                    cq_data: None,
                    flags,
                    context,
                })
                .unwrap();
            endpoint
                .read(ReadArgs {
                    peer,
                    buffer: &local,
                    remote: &[remote(1 << 17, length)],
                    flags,
                    context,
                })
                .unwrap();
            endpoint
                .atomic(AtomicArgs {
                    peer,
                    datatype: AtomicDatatype::UINT64,
                    operation: AtomicOp::SUM,
                    operand: &operand,
                    kind: AtomicKind::Fetch { result: &result },
                    remote: &[remote(128, 8)],
                    flags,
                    context,
                })
                .unwrap();
            subject.finish(3);
        });
    }
}
