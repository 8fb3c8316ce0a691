//! Counters through the C interface.

use std::ffi::CStr;
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{
    AGAIN, Libfabric, NO_SHM, Options, Pair, STOCK, Side, bind, close, with_provider,
    with_provider_in,
};

fn values(counter: *mut fid_cntr) -> (u64, u64) {
    (
        call!(counter => ops.read()),
        call!(counter => ops.readerr()),
    )
}

/// Two sides, with a counter of the left side's sends and reads, and one of the right side's
/// receives.
fn with_counters(libfabric: &Libfabric, body: impl FnOnce(&Pair, *mut fid_cntr, *mut fid_cntr)) {
    let options = Options::USUAL.with(|options| options.queue_flags = FI_SELECTIVE_COMPLETION);
    let (left, right) = Side::open_two(libfabric, &options);
    let (sent, received) = (left.counter(FI_WAIT_UNSPEC), right.counter(FI_WAIT_UNSPEC));
    assert_eq!(bind(left.endpoint, sent, FI_SEND | FI_READ), 0);
    assert_eq!(bind(right.endpoint, received, FI_RECV), 0);
    let pair = Pair::of(left, right);
    body(&pair, sent, received);
    let (counted, busy) = (values(sent), close(sent));
    assert_eq!(busy, -libc::EBUSY, "an endpoint uses it");
    assert_eq!(close(pair.left.endpoint), 0);
    assert_eq!(close(pair.right.endpoint), 0);
    assert_eq!(values(sent), counted, "the endpoint's counts stay");
    assert_eq!((close(sent), close(received)), (0, 0));
    for side in [pair.left, pair.right] {
        side.close_rest(libfabric);
    }
}

/// Sends a tagged message without a report, and waits until both counters have counted it.
fn exchange(pair: &Pair, sent: *mut fid_cntr, received: *mut fid_cntr) {
    let before = (values(sent).0, values(received).0);
    let (data, mut buffer) = ([7_u8; 16], [0_u8; 16]);
    let (from, no) = (pair.to_left, null_mut());
    let receive = || {
        let buffer = buffer.as_mut_ptr().cast();
        call!(pair.right.endpoint => tagged.recv(buffer, 16, no, from, 1, 0, no))
    };
    pair.start(receive);
    pair.start(|| {
        let data = data.as_ptr().cast();
        call!(pair.left.endpoint => tagged.send(data, 16, no, pair.to_right, 1, no))
    });
    pair.until("both are counted", |_| {
        let now = (values(sent).0, values(received).0);
        (now.0 == before.0 + 1 && now.1 == before.1 + 1).then_some(())
    });
    assert_eq!(buffer, data);
}

#[test]
fn operations_without_reports_are_counted() {
    with_provider(|libfabric| {
        with_counters(libfabric, |pair, sent, received| {
            assert_eq!((values(sent), values(received)), ((0, 0), (0, 0)));
            exchange(pair, sent, received);
            exchange(pair, sent, received);
            assert_eq!((values(sent), values(received)), ((2, 0), (2, 0)));
            assert_eq!(pair.left.read().err(), Some(AGAIN));
            // A value that is already reached needs no wait; the wait for another one times out.
            assert_eq!(call!(received => ops.wait(2, 0)), 0);
            assert_eq!(call!(received => ops.wait(3, 1)), -libc::ETIMEDOUT);
        });
    });
}

#[test]
fn values_can_be_set_and_added_to() {
    with_provider(|libfabric| {
        with_counters(libfabric, |pair, sent, received| {
            exchange(pair, sent, received);
            assert_eq!(call!(sent => ops.add(10)), 0);
            assert_eq!(call!(sent => ops.adderr(3)), 0);
            assert_eq!(values(sent), (11, 3));
            assert_eq!(call!(sent => ops.set(0)), 0);
            assert_eq!(call!(sent => ops.seterr(0)), 0);
            assert_eq!(values(sent), (0, 0));
            exchange(pair, sent, received);
            assert_eq!((values(sent), values(received)), ((1, 0), (2, 0)));
        });
    });
}

#[test]
fn failures_count_as_errors() {
    with_provider(|libfabric| {
        with_counters(libfabric, |pair, sent, received| {
            exchange(pair, sent, received);
            let mut buffer = [0_u8; 4];
            let context = buffer.as_mut_ptr().cast();
            let no = null_mut();
            pair.start(|| {
                call!(pair.right.endpoint => tagged.recv(context, 4, no, u64::MAX, 9, 0, context))
            });
            // SAFETY: the endpoint is open.
            let cancel = unsafe { (*(*pair.right.endpoint).ops).cancel.expect("complete") };
            // SAFETY: likewise.
            assert_eq!(unsafe { cancel(pair.right.endpoint.cast(), context) }, 0);
            assert_eq!(values(received), (1, 1));
            let entry = pair.right.read_error();
            assert_eq!((entry.err, entry.op_context), (libc::ECANCELED, context));
        });
    });
}

/// An access of a peer to the right side.
#[derive(Clone, Copy, Debug)]
enum Access {
    Message,
    WriteWithData,
    Write,
    Read,
    Add,
    FetchAdd,
}

/// Carries out an operation from left to right, and waits until the left side has its completion.
fn access(pair: &Pair, what: Access, local: &mut [u64; 1], remote: &mut [u64; 1], key: u64) {
    let (left, to, no) = (pair.left.endpoint, pair.to_right, null_mut());
    let target = remote.as_mut_ptr().addr() as u64;
    let right = pair.right.endpoint;
    let into = remote.as_mut_ptr().cast();
    let from = local.as_mut_ptr();
    let (result, sum) = (from, FI_SUM);
    if let Access::Message = what {
        pair.start(|| call!(right => msg.recv(into, 8, no, FI_ADDR_UNSPEC, no)));
    }
    pair.start(|| match what {
        Access::Message => call!(left => msg.send(from.cast(), 8, no, to, no)),
        Access::WriteWithData => {
            call!(left => rma.writedata(from.cast(), 8, no, 5, to, target, key, no))
        }
        Access::Write => call!(left => rma.write(from.cast(), 8, no, to, target, key, no)),
        Access::Read => call!(left => rma.read(from.cast(), 8, no, to, target, key, no)),
        Access::Add => {
            call!(left => atomic.write(from.cast(), 1, no, to, target, key, FI_UINT64, sum, no))
        }
        Access::FetchAdd => call!(left => atomic.readwrite(
            from.cast(), 1, no, result.cast(), no, to, target, key, FI_UINT64, sum, no
        )),
    });
    pair.left_completion();
}

/// Checks how often the right side counts each of these accesses, in one counter of all accesses to
/// it.
fn check_counts(libfabric: &Libfabric, provider: &'static CStr, all: &[(Access, u64)]) {
    let options = Options::USUAL.with(|options| options.provider = provider);
    let (left, right) = Side::open_two(libfabric, &options);
    let counter = right.counter(FI_WAIT_NONE);
    let targets = FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
    assert_eq!(bind(right.endpoint, counter, targets), 0);
    let pair = Pair::of(left, right);
    let (mut local, mut remote) = ([1_u64], [1_u64]);
    let regions = [
        pair.left.register(&mut local),
        pair.right.register(&mut remote),
    ];
    // SAFETY: the region is open.
    let key = unsafe { (*regions[1]).key };
    let mut total = 0;
    for (what, count) in all {
        access(&pair, *what, &mut local, &mut remote, key);
        // The message arrives after all other packets of the access.
        access(&pair, Access::Message, &mut local, &mut remote, key);
        total += count + 1;
        pair.until("the target counts it", |_| {
            (values(counter).0 >= total).then_some(())
        });
        assert_eq!(values(counter), (total, 0), "{what:?}");
    }
    for region in regions {
        assert_eq!(close(region), 0);
    }
    let Pair { left, right, .. } = pair;
    assert_eq!(close(right.endpoint), 0);
    assert_eq!(close(counter), 0);
    right.close_rest(libfabric);
    left.close(libfabric);
}

#[test]
fn targets_count_what_the_device_tells() {
    use Access::*;
    with_provider_in(&[STOCK, NO_SHM], |libfabric| {
        let counted = [(Message, 1), (WriteWithData, 1), (Write, 0), (Read, 0)];
        for provider in [c"efa_rs", c"efa"] {
            check_counts(libfabric, provider, &counted);
        }
        // Stock counts no atomics.
        check_counts(libfabric, c"efa_rs", &[(Add, 1), (FetchAdd, 1)]);
        check_counts(libfabric, c"efa", &[(Add, 0), (FetchAdd, 0)]);
    });
}

#[test]
fn targets_count_accesses_by_packets() {
    use Access::*;
    with_provider_in(&[("FI_EFA_USE_DEVICE_RDMA", "0")], |libfabric| {
        let all = [WriteWithData, Write, Read, Add, FetchAdd].map(|access| (access, 1));
        check_counts(libfabric, c"efa_rs", &all);
    });
}

#[test]
fn counters_refuse_what_they_cannot_count() {
    with_provider(|libfabric| {
        let pair = Pair::open(libfabric, &Options::USUAL);
        let side = Side::open(libfabric, &Options::USUAL);
        let (own, others) = (side.counter(FI_WAIT_NONE), pair.left.counter(FI_WAIT_NONE));
        assert_eq!(bind(side.endpoint, own, 0), -libc::EINVAL);
        assert_eq!(bind(side.endpoint, own, FI_MSG), -libc::EINVAL);
        assert_eq!(bind(side.endpoint, others, FI_SEND), -libc::EINVAL);
        assert_eq!(
            call!(own => ops.wait(0, 0)),
            -libc::EINVAL,
            "opened without waiting"
        );
        let mut attributes = fi_cntr_attr {
            flags: 1,
            ..fi_cntr_attr::default()
        };
        let mut counter = null_mut();
        let status = call!(side.domain => ops.cntr_open(&mut attributes, &mut counter, null_mut()));
        assert_eq!((status, counter), (-libc::EINVAL, null_mut()));
        assert_eq!((close(own), close(others)), (0, 0));
        side.close(libfabric);
        pair.close(libfabric);
    });
}
