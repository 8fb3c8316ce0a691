//! Memory that is registered for one use only, through the C interface.

use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{Options, close, piece, rma_message, with_pair};

/// Shorter and longer than all that is sent without an agreement with the receiver.
const LENGTHS: [usize; 3] = [64, 60_000, 3 << 20];

#[test]
fn memory_needs_no_more_than_its_own_use() {
    with_pair(&Options::USUAL, |pair| {
        let (left, right, no) = (&pair.left, &pair.right, null_mut());
        for length in LENGTHS {
            let mut data = efa_testing::pattern(length, 0);
            let mut buffer = vec![0_u8; length];
            let (from, to) = (data.as_mut_ptr(), buffer.as_mut_ptr());
            let open = |left_use, right_use| {
                // SAFETY: each is as long as said, and used by one operation at a time.
                let (data, buffer) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(from, length),
                        std::slice::from_raw_parts_mut(to, length),
                    )
                };
                let regions = [
                    left.register_for(data, left_use),
                    right.register_for(buffer, right_use),
                ];
                // SAFETY: they are open.
                let [(own, _), (peers, key)] =
                    regions.map(|region| unsafe { ((*region).mem_desc, (*region).key) });
                (regions, own, peers, key)
            };
            let end = |regions: [*mut fid_mr; 2]| assert_eq!(regions.map(close), [0, 0]);

            // Without flags a registration permits sends and receives: the second message is from a
            // peer that is known to read long ones.
            for (send, receive) in [(FI_SEND, FI_RECV), (0, 0)] {
                let (regions, own, peers, _) = open(send, receive);
                pair.start(
                    || call!(right.endpoint => msg.recv(to.cast(), length, peers, pair.to_left, no)),
                );
                pair.start(
                    || call!(left.endpoint => msg.send(from.cast(), length, own, pair.to_right, no)),
                );
                pair.left_completion();
                pair.right_completion();
                assert!(buffer == data, "a message of {length} bytes");
                end(regions);
                buffer.fill(0);
            }

            let (regions, own, _, key) = open(FI_WRITE, FI_REMOTE_WRITE);
            let address = to.addr() as u64;
            let piece = piece(from, length);
            let remote = fi_rma_iov {
                addr: address,
                len: length,
                key,
            };
            let mut descriptor = own;
            let message = fi_msg_rma {
                desc: &mut descriptor,
                ..rma_message(&piece, pair.to_right, &remote)
            };
            pair.start(|| call!(left.endpoint => rma.writemsg(&message, FI_DELIVERY_COMPLETE)));
            pair.left_completion();
            assert!(buffer == data, "a write of {length} bytes");
            end(regions);

            data.fill(0);
            let (regions, own, _, key) = open(FI_READ, FI_REMOTE_READ);
            pair.start(|| {
                let peer = pair.to_right;
                call!(left.endpoint => rma.read(from.cast(), length, own, peer, address, key, no))
            });
            pair.left_completion();
            assert!(buffer == data, "a read of {length} bytes");
            end(regions);
        }
    });
}
