//! Completion data of calls that take it by a flag, through the C interface.

use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{AGAIN, Options, close, message, piece, rma_message, with_pair};

/// Eager, by several packets, and read by the receiver.
const LENGTHS: [usize; 3] = [64, 60_000, 1 << 20];

/// Data that RDMA writes have room for, and data that they have not.
const DATA: [u64; 2] = [0x8765_4321, 0x1234_5678_9abc_def0];

/// Flags of a call with completion data, or without.
fn flags(with_data: bool) -> u64 {
    match with_data {
        true => FI_COMPLETION | FI_REMOTE_CQ_DATA,
        false => FI_COMPLETION,
    }
}

/// The receiver's entry for a call whose own flags are `kind`.
fn expected(kind: u64, data: u64, with_data: bool) -> (u64, u64) {
    match with_data {
        true => (kind | FI_REMOTE_CQ_DATA, data),
        false => (kind, 0),
    }
}

#[test]
fn message_data_comes_only_with_its_flag() {
    with_pair(&Options::USUAL, |pair| {
        let (left, right, no) = (pair.left.endpoint, pair.right.endpoint, null_mut());
        let (source, mut target) = (vec![1_u8; 1 << 20], vec![0_u8; 1 << 20]);
        let into = target.as_mut_ptr().cast();
        for length in LENGTHS {
            let local = piece(source.as_ptr(), length);
            for (data, with_data) in DATA.map(|data| [(data, true), (data, false)]).concat() {
                let message = fi_msg {
                    data,
                    ..message(&local, pair.to_right)
                };
                pair.start(|| call!(right => msg.recv(into, length, no, FI_ADDR_UNSPEC, no)));
                pair.start(|| call!(left => msg.sendmsg(&message, flags(with_data))));
                pair.left_completion();
                let (entry, _) = pair.right_completion();
                let kind = FI_RECV | FI_MSG;
                assert_eq!(
                    (entry.flags, entry.data),
                    expected(kind, data, with_data),
                    "fi_sendmsg of {length} bytes"
                );

                let message = fi_msg_tagged {
                    msg_iov: &raw const local,
                    iov_count: 1,
                    addr: pair.to_right,
                    tag: 3,
                    data,
                    ..fi_msg_tagged::default()
                };
                pair.start(
                    || call!(right => tagged.recv(into, length, no, FI_ADDR_UNSPEC, 3, 0, no)),
                );
                pair.start(|| call!(left => tagged.sendmsg(&message, flags(with_data))));
                pair.left_completion();
                let (entry, _) = pair.right_completion();
                let kind = FI_RECV | FI_TAGGED;
                assert_eq!(
                    (entry.flags, entry.data, entry.tag),
                    {
                        let (flags, data) = expected(kind, data, with_data);
                        (flags, data, 3)
                    },
                    "fi_tsendmsg of {length} bytes"
                );
            }
        }
    });
}

#[test]
fn write_data_comes_only_with_its_flag() {
    with_pair(&Options::USUAL, |pair| {
        let (left, source) = (pair.left.endpoint, vec![1_u8; 1 << 20]);
        let mut target = vec![0_u8; 1 << 20];
        let region = pair.right.register(&mut target);
        for length in LENGTHS {
            let local = piece(source.as_ptr(), length);
            let remote = fi_rma_iov {
                addr: target.as_ptr().addr() as u64,
                len: length,
                // SAFETY: the registration is open.
                key: unsafe { (*region).key },
            };
            for (data, with_data) in DATA.map(|data| [(data, true), (data, false)]).concat() {
                let message = fi_msg_rma {
                    data,
                    ..rma_message(&local, pair.to_right, &remote)
                };
                let flags = flags(with_data) | FI_DELIVERY_COMPLETE;
                pair.start(|| call!(left => rma.writemsg(&message, flags)));
                pair.left_completion();
                if with_data {
                    let (entry, _) = pair.right_completion();
                    assert_eq!(
                        (entry.flags, entry.data),
                        expected(FI_REMOTE_WRITE | FI_RMA, data, true),
                        "fi_writemsg of {length} bytes"
                    );
                }
                // Others say nothing to the target.
                assert_eq!(pair.right.read().err(), Some(AGAIN));
            }
        }
        assert_eq!(close(region), 0);
    });
}
