//! Atomics through the C interface.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use crate::common::c::*;
use crate::common::{Options, Pair, close, with_provider};

/// The left side, and memory of the right side.
struct Target<'a> {
    pair: &'a Pair,
    address: u64,
    key: u64,
}

impl Target<'_> {
    /// Waits for the completion of an operation whose context is this address.
    #[track_caller]
    fn finish(&self, context: *const c_void, flags: u64) {
        let (entry, _) = self.pair.left_completion();
        assert_eq!(entry.op_context.cast_const(), context);
        assert_eq!(entry.flags, FI_ATOMIC | flags);
    }
}

/// Runs a test with a pair whose right side has registered these values, and returns the values
/// afterwards.
fn with_target<T: Clone>(
    libfabric: &crate::common::Libfabric,
    values: &[T],
    body: impl FnOnce(&Target<'_>),
) -> Vec<T> {
    let mut memory = values.to_vec();
    let pair = Pair::open(libfabric, &Options::USUAL);
    let region = pair.right.register(&mut memory);
    let target = Target {
        pair: &pair,
        address: memory.as_ptr().addr() as u64,
        // SAFETY: the registration is open.
        key: unsafe { (*region).key },
    };
    body(&target);
    // Atomics take turns: those before are done.
    let (no, mut first, to) = (null_mut(), [0_u8], pair.to_right);
    let result = first.as_mut_ptr().cast();
    let (endpoint, address, key) = (pair.left.endpoint, target.address, target.key);
    pair.start(|| {
        call!(endpoint => atomic.readwrite(null(), 1, no, result, no, to, address, key, FI_UINT8, FI_ATOMIC_READ, no))
    });
    target.finish(no, FI_READ);
    assert_eq!(close(region), 0);
    pair.close(libfabric);
    memory
}

#[test]
fn each_form_changes_and_fetches() {
    with_provider(|libfabric| {
        let after = with_target(libfabric, &[1_u64, 2, 3, 4, 5, 6], |target| {
            let Target { pair, address, key } = *target;
            let (endpoint, to) = (pair.left.endpoint, pair.to_right);
            let context = (&raw const address).cast::<c_void>().cast_mut();
            let no = null_mut();
            let piece = |value: &[u64]| fi_ioc {
                addr: value.as_ptr().cast_mut().cast(),
                count: value.len(),
            };

            // Each changes its own element; all have to be in place at the end.
            let operand = [10_u64];
            let buffer = operand.as_ptr().cast();
            pair.start(|| {
                call!(endpoint => atomic.write(buffer, 1, no, to, address, key, FI_UINT64, FI_SUM, context))
            });
            target.finish(context, FI_WRITE);
            let operands = [20_u64, 30];
            let list = [piece(&operands[..1]), piece(&operands[1..])];
            pair.start(|| {
                call!(endpoint => atomic.writev(list.as_ptr(), null_mut(), 2, to, address + 8, key, FI_UINT64, FI_SUM, context))
            });
            target.finish(context, FI_WRITE);
            pair.start(|| {
                call!(endpoint => atomic.inject(buffer, 1, to, address + 24, key, FI_UINT64, FI_SUM))
            });

            let mut old = [0_u64];
            let result = old.as_mut_ptr().cast();
            pair.start(|| {
                call!(endpoint => atomic.readwrite(buffer, 1, no, result, no, to, address + 32, key, FI_UINT64, FI_PROD, context))
            });
            target.finish(context, FI_READ);
            assert_eq!(old, [5]);
            // The injected one had its turn before.
            pair.start(|| {
                call!(endpoint => atomic.readwrite(null(), 1, no, result, no, to, address + 24, key, FI_UINT64, FI_ATOMIC_READ, context))
            });
            target.finish(context, FI_READ);
            assert_eq!(old, [14]);
            let mut results = [piece(&old)];
            pair.start(|| {
                call!(endpoint => atomic.readwritev(null(), null_mut(), 0, results.as_mut_ptr(), null_mut(), 1, to, address, key, FI_UINT64, FI_ATOMIC_READ, context))
            });
            target.finish(context, FI_READ);
            assert_eq!(old, [11]);

            let (new, compared, other) = ([7_u64], [6_u64], [0_u64]);
            let (new, compared, other) = (
                new.as_ptr().cast(),
                compared.as_ptr().cast(),
                other.as_ptr().cast(),
            );
            for comparand in [other, compared] {
                pair.start(|| {
                    call!(endpoint => atomic.compwrite(new, 1, no, comparand, no, result, no, to, address + 40, key, FI_UINT64, FI_CSWAP, context))
                });
                target.finish(context, FI_READ);
                assert_eq!(old, [6]);
            }
        });
        assert_eq!(after, [11, 22, 33, 14, 50, 7]);
    });
}

#[test]
fn messages_name_memory_in_elements() {
    with_provider(|libfabric| {
        let after = with_target(libfabric, &[1.5_f64, 2.5, 3.5], |target| {
            let Target { pair, address, key } = *target;
            let endpoint = pair.left.endpoint;
            let (mut operand, mut comparand, mut old) = ([0.5_f64; 2], [2.0_f64; 2], [0_f64; 2]);
            let piece = |values: &mut [f64; 2]| fi_ioc {
                addr: values.as_mut_ptr().cast(),
                count: 2,
            };
            let operands = [piece(&mut operand)];
            let mut results = [piece(&mut old)];
            // The first and the last element.
            let remote = [address, address + 16].map(|addr| fi_rma_ioc {
                addr,
                count: 1,
                key,
            });
            let mut message = fi_msg_atomic {
                msg_iov: operands.as_ptr(),
                iov_count: 1,
                addr: pair.to_right,
                rma_iov: remote.as_ptr(),
                rma_iov_count: 2,
                datatype: FI_DOUBLE,
                op: FI_SUM,
                context: (&raw const address).cast::<c_void>().cast_mut(),
                ..fi_msg_atomic::default()
            };
            let context = message.context;
            pair.start(|| call!(endpoint => atomic.writemsg(&message, FI_COMPLETION)));
            target.finish(context, FI_WRITE);
            pair.start(|| call!(endpoint => atomic.writemsg(&message, FI_DELIVERY_COMPLETE)));
            target.finish(context, FI_WRITE);
            // Without descriptors, as MPICH's windows call it.
            pair.start(|| {
                call!(endpoint => atomic.readwritemsg(&message, results.as_mut_ptr(), null_mut(), 1, 0))
            });
            target.finish(context, FI_READ);
            assert_eq!(old, [2.5, 4.5]);
            let one = [fi_rma_ioc {
                addr: address,
                count: 2,
                key,
            }];
            message.rma_iov = one.as_ptr();
            message.rma_iov_count = 1;
            message.op = FI_CSWAP_GT;
            let comparands = [piece(&mut comparand)];
            pair.start(|| {
                call!(endpoint => atomic.compwritemsg(&message, comparands.as_ptr(), null_mut(), 1, results.as_mut_ptr(), null_mut(), 1, 0))
            });
            target.finish(context, FI_READ);
            assert_eq!(old, [3.0, 2.5]);
        });
        assert_eq!(after, [3.0, 2.5, 5.0]);
    });
}

#[test]
fn queries_match_the_operations_that_calls_accept() {
    with_provider(|libfabric| {
        let after = with_target(libfabric, &[9_u64], |target| {
            let Target { pair, address, key } = *target;
            let endpoint = pair.left.endpoint;
            let query = |datatype, operation, flags| {
                let mut limits = fi_atomic_attr::default();
                let status = call!(pair.left.domain => ops.query_atomic(datatype, operation, &mut limits, flags));
                (status == 0).then_some(limits).ok_or(-status)
            };
            let sum = query(FI_UINT64, FI_SUM, 0).unwrap();
            assert_eq!(sum.size, 8);
            let swap = query(FI_UINT64, FI_CSWAP, FI_COMPARE_ATOMIC).unwrap();
            assert_eq!(swap.count, sum.count / 2);
            let unsupported = libc::EOPNOTSUPP;
            for (datatype, operation, flags) in [
                (FI_UINT64, FI_CSWAP, FI_FETCH_ATOMIC),
                (FI_UINT64, FI_SUM, FI_COMPARE_ATOMIC),
                (FI_UINT64, FI_ATOMIC_READ, 0),
                (FI_DOUBLE, FI_BXOR, 0),
                (FI_FLOAT_COMPLEX, FI_MIN, FI_FETCH_ATOMIC),
                (1000, FI_SUM, 0),
                (FI_UINT64, 1000, 0),
            ] {
                assert_eq!(query(datatype, operation, flags).err(), Some(unsupported));
            }
            assert_eq!(
                query(FI_UINT64, FI_SUM, FI_TAGGED).err(),
                Some(libc::EINVAL)
            );
            let mut count = 0;
            assert_eq!(
                call!(endpoint => atomic.writevalid(FI_UINT64, FI_SUM, &mut count)),
                0
            );
            assert_eq!(count, sum.count);
            assert_eq!(
                call!(endpoint => atomic.readwritevalid(FI_UINT64, FI_CSWAP, &mut count)),
                -unsupported
            );
            assert_eq!(
                call!(endpoint => atomic.compwritevalid(FI_UINT64, FI_CSWAP, &mut count)),
                0
            );
            assert_eq!(count, swap.count);

            // The handshake first, so that nothing below is refused for the lack of it.
            let values = vec![1_u64; sum.count + 1];
            let no = null_mut();
            let write = |count, to, datatype, operation| {
                let buffer = values.as_ptr().cast();
                call!(endpoint => atomic.write(buffer, count, no, to, address, key, datatype, operation, no))
                    as i32
            };
            pair.start(|| write(1, pair.to_right, FI_UINT64, FI_BXOR) as isize);
            target.finish(no, FI_WRITE);
            for (count, to, datatype, operation, errno) in [
                (0, pair.to_right, FI_UINT64, FI_SUM, libc::EINVAL),
                (
                    sum.count + 1,
                    pair.to_right,
                    FI_UINT64,
                    FI_SUM,
                    libc::EINVAL,
                ),
                (usize::MAX, pair.to_right, FI_UINT64, FI_SUM, libc::EINVAL),
                (1, pair.to_right + 1, FI_UINT64, FI_SUM, libc::EINVAL),
                (1, u64::MAX, FI_UINT64, FI_SUM, libc::EINVAL),
                (1, pair.to_right, 1000, FI_SUM, unsupported),
                (1, pair.to_right, FI_UINT64, FI_CSWAP, unsupported),
                (1, pair.to_right, FI_DOUBLE, FI_BOR, unsupported),
            ] {
                assert_eq!(write(count, to, datatype, operation), -errno);
            }
            assert_eq!(
                call!(endpoint => atomic.writemsg(null(), 0)),
                -(libc::EINVAL as isize)
            );
        });
        assert_eq!(after, [8]);
    });
}
