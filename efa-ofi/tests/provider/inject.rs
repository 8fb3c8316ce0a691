//! Operations whose data is copied within the call, through the C interface.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{
    AGAIN, Options, Pair, Side, bind, close, piece, rma_message, with_pair, with_provider,
};

#[test]
fn a_copied_operation_is_reported_once_on_request() {
    let options = Options::USUAL.with(|options| options.queue_flags = FI_SELECTIVE_COMPLETION);
    with_pair(&options, |pair| {
        let endpoint = pair.left.endpoint;
        let mut memory = [1_u64, 2];
        let region = pair.right.register(&mut memory);
        // SAFETY: the registration is open.
        let key = unsafe { (*region).key };
        let address = memory.as_ptr().addr() as u64;
        let value = [5_u64];
        let context = value.as_ptr().cast_mut().cast::<c_void>();

        let local = [piece(context, 8)];
        let remote = [fi_rma_iov {
            addr: address,
            len: 8,
            key,
        }];
        let write = fi_msg_rma {
            context,
            ..rma_message(&local[0], pair.to_right, &remote[0])
        };
        let elements = [fi_ioc {
            addr: context,
            count: 1,
        }];
        let target = [fi_rma_ioc {
            addr: address + 8,
            count: 1,
            key,
        }];
        let add = fi_msg_atomic {
            msg_iov: elements.as_ptr(),
            iov_count: 1,
            addr: pair.to_right,
            rma_iov: target.as_ptr(),
            rma_iov_count: 1,
            datatype: FI_UINT64,
            op: FI_SUM,
            context,
            ..fi_msg_atomic::default()
        };
        let quiet = FI_INJECT;
        let loud = FI_INJECT | FI_COMPLETION;
        pair.start(|| call!(endpoint => rma.writemsg(&write, quiet)));
        pair.start(|| call!(endpoint => rma.writemsg(&write, loud)));
        pair.start(|| call!(endpoint => atomic.writemsg(&add, quiet)));
        pair.start(|| call!(endpoint => atomic.writemsg(&add, loud)));
        for kind in [FI_RMA, FI_ATOMIC] {
            let (entry, _) = pair.left_completion();
            assert_eq!((entry.op_context, entry.flags), (context, kind | FI_WRITE));
        }
        pair.until("the peer's memory changes", |_| {
            // SAFETY: the memory is registered, and only read to find the peer's writes.
            let now = unsafe { (&raw const memory).read_volatile() };
            (now == [5, 12]).then_some(())
        });
        assert_eq!(pair.left.read().err(), Some(AGAIN));
        assert_eq!(close(region), 0);
    });
}

#[test]
fn reads_ignore_the_inject_flag() {
    with_pair(&Options::USUAL, |pair| {
        let endpoint = pair.left.endpoint;
        let mut memory = [7_u64];
        let region = pair.right.register(&mut memory);
        // SAFETY: the registration is open.
        let key = unsafe { (*region).key };
        let mut buffer = [0_u64];
        let context = buffer.as_mut_ptr().cast::<c_void>();
        let local = [piece(context, 8)];
        let remote = [fi_rma_iov {
            addr: memory.as_ptr().addr() as u64,
            len: 8,
            key,
        }];
        let read = fi_msg_rma {
            context,
            ..rma_message(&local[0], pair.to_right, &remote[0])
        };
        pair.start(|| call!(endpoint => rma.readmsg(&read, FI_INJECT | FI_COMPLETION)));
        let (entry, _) = pair.left_completion();
        assert_eq!((entry.op_context, entry.flags), (context, FI_RMA | FI_READ));
        // SAFETY: the read has completed.
        assert_eq!(unsafe { context.cast::<u64>().read() }, 7);
        assert_eq!(pair.left.read().err(), Some(AGAIN));
        assert_eq!(close(region), 0);
    });
}

#[test]
fn failures_without_completions_reach_the_event_queue() {
    with_provider(|libfabric| {
        let options = Options::USUAL;
        let (left, right) = Side::open_two(libfabric, &options);
        let events = left.event_queue(FI_WAIT_NONE);
        assert_eq!(bind(left.endpoint, events, 0), 0);
        let pair = Pair::of(left, right);
        let (endpoint, to) = (pair.left.endpoint, pair.to_right);
        assert_eq!(close(pair.right.endpoint), 0);

        let data = [1_u8; 8];
        pair.start(|| call!(endpoint => msg.inject(data.as_ptr().cast(), 8, to)));
        let mut event = 0;
        pair.until("the failure is reported", |pair| {
            assert_eq!(pair.left.read().err(), Some(AGAIN));
            let status = call!(events => ops.read(&mut event, null_mut(), 0, 0));
            (status != AGAIN).then(|| assert_eq!(status, -(FI_EAVAIL as isize)))
        });
        let mut entry = fi_eq_err_entry::default();
        let size = size_of_val(&entry) as isize;
        assert_eq!(call!(events => ops.readerr(&mut entry, FI_PEEK)), size);
        assert_eq!(call!(events => ops.readerr(&mut entry, 0)), size);
        assert_eq!(entry.fid, endpoint.cast::<fid>());
        assert_ne!((entry.err, entry.prov_errno), (0, 0));
        assert_eq!(call!(events => ops.readerr(&mut entry, 0)), AGAIN);

        assert_eq!(close(events), -libc::EBUSY);
        assert_eq!(close(endpoint), 0);
        assert_eq!(close(events), 0);
        for side in [pair.left, pair.right] {
            side.close_rest(libfabric);
        }
    });
}
