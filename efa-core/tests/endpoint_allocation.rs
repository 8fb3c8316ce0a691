//! In the steady state no message allocates memory, whatever its subprotocol.

use efa_core::endpoint::*;
use efa_core::nic::DeviceCaps;
use efa_core::wire::{AtomicDatatype, AtomicOp};

use efa_testing::heap::{self, CountingHeap};
use efa_testing::nic::Loopback;
use efa_testing::self_talk::SelfTalk;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

fn talk(config: EndpointConfig) -> SelfTalk {
    SelfTalk::new(config, Loopback::ALL, false)
}

fn recv(subject: &mut SelfTalk, tag: Option<TagFilter>, length: usize) {
    subject.recv(SourceFilter::Any, tag, length);
}

/// CQ data goes with every message.
fn send(subject: &mut SelfTalk, tag: Option<u64>, length: usize, flags: OperationFlags) {
    subject.send_with(tag, length, Some(1), flags);
}

/// Runs until this many operations have completed and no work is left.
fn finish(subject: &mut SelfTalk, completions: usize) {
    subject.finish(completions);
    while subject.progress() > 0 {}
    assert_eq!(subject.endpoint.poll_event(), None);
}

/// Runs a round until the engine's tables have grown to their final size, and then counts
/// allocations.
fn assert_no_allocation(
    name: &str,
    subject: &mut SelfTalk,
    mut round: impl FnMut(&mut SelfTalk, u64),
) {
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
        let mut subject = talk(config);
        assert_no_allocation(name, &mut subject, |subject, number| {
            recv(subject, Some(TagFilter::exact(number)), length);
            send(subject, Some(number), length, flags);
            // Injected messages complete for the receiver only.
            finish(subject, 2 - usize::from(flags == OperationFlags::INJECT));
        });
    }
}

/// Segments that come out of order, for receives that wait and for those that come later.
#[test]
fn messages_out_of_order() {
    let none = OperationFlags::empty();
    for length in [3000, 50_000] {
        let mut subject = SelfTalk::new(config(), Loopback::ALL, true);
        let name = format!("{length} bytes out of order");
        assert_no_allocation(&name, &mut subject, |subject, number| {
            let is_expected = number % 2 == 0;
            if is_expected {
                recv(subject, Some(TagFilter::exact(number)), length);
            }
            send(subject, Some(number), length, none);
            if !is_expected {
                while subject.progress() > 0 {}
                recv(subject, Some(TagFilter::exact(number)), length);
            }
            finish(subject, 2);
        });
    }
}

#[test]
fn unexpected_messages_and_wildcards() {
    let none = OperationFlags::empty();
    let mut subject = talk(config());
    assert_no_allocation("unexpected", &mut subject, |subject, number| {
        for tag in 0..80 {
            send(subject, Some(number * 100 + tag), 64, none);
        }
        while subject.progress() > 0 {}
        for tag in 0..80 {
            let ignore = if tag % 2 == 0 { 0 } else { u64::MAX };
            let tag = number * 100 + tag;
            recv(subject, Some(TagFilter { tag, ignore }), 64);
        }
        finish(subject, 160);
    });
}

#[test]
fn messages_that_arrive_out_of_order() {
    let mut subject = SelfTalk::new(config(), Loopback::ALL, true);
    assert_no_allocation("out of order", &mut subject, |subject, _| {
        for _ in 0..10 {
            recv(subject, None, 64);
            send(subject, None, 64, OperationFlags::empty());
        }
        finish(subject, 20);
    });
    assert!(subject.endpoint.statistics().out_of_order > 1000);
}

/// A one-sided operation on memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OneSidedKind {
    Write,
    WriteWithData,
    Read,
    WriteAtomic,
    FetchAtomic,
    CompareAtomic,
}

fn one_sided(subject: &mut SelfTalk, kind: OneSidedKind, length: usize, flags: OperationFlags) {
    let remote = [RemoteIoVec {
        address: 1 << 17,
        length: length as u64,
        key: subject.region.remote_key,
    }];
    let local = [subject.piece(0, length)];
    let (comparand, result) = ([subject.piece(64, length)], [subject.piece(128, length)]);
    let (peer, context) = (subject.peer, 1);
    let flags = flags | OperationFlags::COMPLETION;
    let atomic = match kind {
        OneSidedKind::Write | OneSidedKind::WriteWithData => {
            let args = WriteArgs {
                peer,
                data: &local,
                remote: &remote,
                cq_data: (kind == OneSidedKind::WriteWithData).then_some(7),
                flags,
                context,
            };
            return subject.endpoint.write(args).unwrap();
        }
        OneSidedKind::Read => {
            let args = ReadArgs {
                peer,
                buffer: &local,
                remote: &remote,
                flags,
                context,
            };
            return subject.endpoint.read(args).unwrap();
        }
        OneSidedKind::WriteAtomic => AtomicKind::Write,
        OneSidedKind::FetchAtomic => AtomicKind::Fetch { result: &result },
        OneSidedKind::CompareAtomic => AtomicKind::Compare {
            comparand: &comparand,
            result: &result,
        },
    };
    let operation = match kind {
        OneSidedKind::CompareAtomic => AtomicOp::CSWAP,
        _ => AtomicOp::SUM,
    };
    subject
        .endpoint
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
        ("direct write", OneSidedKind::Write, 9000, none, &direct),
        (
            "write with immediate",
            OneSidedKind::WriteWithData,
            3000,
            none,
            &direct,
        ),
        ("direct read", OneSidedKind::Read, 9000, none, &direct),
        ("eager write", OneSidedKind::Write, 100, none, &emulated),
        (
            "eager write, data",
            OneSidedKind::WriteWithData,
            100,
            none,
            &emulated,
        ),
        (
            "eager write, delivery complete",
            OneSidedKind::Write,
            100,
            dc,
            &emulated,
        ),
        ("long-CTS write", OneSidedKind::Write, 9000, none, &emulated),
        (
            "long-CTS write, delivery complete",
            OneSidedKind::Write,
            9000,
            dc,
            &emulated,
        ),
        ("short read", OneSidedKind::Read, 100, none, &emulated),
        ("long-CTS read", OneSidedKind::Read, 9000, none, &emulated),
        ("write atomic", OneSidedKind::WriteAtomic, 8, none, &direct),
        (
            "write atomic, delivery complete",
            OneSidedKind::WriteAtomic,
            8,
            dc,
            &direct,
        ),
        ("fetch atomic", OneSidedKind::FetchAtomic, 8, none, &direct),
        (
            "compare atomic",
            OneSidedKind::CompareAtomic,
            8,
            none,
            &direct,
        ),
    ] {
        let mut subject = talk(config.clone());
        let completions = if kind == OneSidedKind::WriteWithData {
            2
        } else {
            1
        };
        assert_no_allocation(name, &mut subject, |subject, _| {
            one_sided(subject, kind, length, flags);
            finish(subject, completions);
        });
    }
}

#[test]
fn long_read_writes() {
    let config = EndpointConfig {
        min_read_write_size: 4000,
        ..config()
    };
    let mut subject = SelfTalk::new(config, DeviceCaps::RDMA_READ, false);
    assert_no_allocation("long-read write", &mut subject, |subject, _| {
        one_sided(subject, OneSidedKind::Write, 9000, OperationFlags::empty());
        finish(subject, 1);
    });
}
