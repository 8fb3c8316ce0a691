//! Buffers that take several messages (`FI_MULTI_RECV`), through the C interface.

use std::ffi::c_void;
use std::ptr::null_mut;

use efa_testing::pattern;

use crate::common::c::*;
use crate::common::{AGAIN, Options, Pair, message, piece, with_pair};

const OPTIONS: Options = Options {
    caps: FI_MSG | FI_TAGGED | FI_MULTI_RECV | FI_SOURCE,
    ..Options::USUAL
};

/// Posts a buffer on the right side. Its address is the context.
fn post(pair: &Pair, buffer: &mut [u8]) -> *mut c_void {
    let context: *mut c_void = buffer.as_mut_ptr().cast();
    let pieces = [piece(context, buffer.len())];
    let message = fi_msg {
        context,
        ..message(&pieces[0], FI_ADDR_UNSPEC)
    };
    let endpoint = pair.right.endpoint;
    pair.start(|| call!(endpoint => msg.recvmsg(&message, FI_MULTI_RECV | FI_COMPLETION)));
    context
}

/// A completion on the right side: the buffer, the offset in it, the length, and whether the
/// application owns the buffer again.
fn received(pair: &Pair) -> (*mut c_void, usize, usize, bool) {
    let (entry, source) = pair.right_completion();
    assert_eq!(source, pair.to_left);
    assert_eq!(entry.flags & !FI_MULTI_RECV, FI_RECV | FI_MSG);
    let offset = entry.buf.addr() - entry.op_context.addr();
    let is_free = entry.flags & FI_MULTI_RECV != 0;
    (entry.op_context, offset, entry.len, is_free)
}

#[test]
fn messages_are_packed_down_to_the_minimum() {
    with_pair(&OPTIONS, |pair| {
        // Applications set it on an enabled endpoint, too: MPICH does.
        assert_eq!(pair.right.set_option(FI_OPT_MIN_MULTI_RECV, 40), 0);
        assert_eq!(pair.right.option(FI_OPT_MIN_MULTI_RECV), 40);
        let (mut first, mut second) = ([0xee_u8; 100], [0xee_u8; 100]);
        let (a, b) = (post(pair, &mut first), post(pair, &mut second));
        // A buffer keeps the value that it was posted with.
        assert_eq!(pair.right.set_option(FI_OPT_MIN_MULTI_RECV, 1), 0);
        let parts = [
            (a, 0, 30, false),
            (a, 30, 30, false),
            (a, 60, 1, true),
            (b, 0, 0, false),
            (b, 0, 60, false),
        ];
        for (number, part) in parts.into_iter().enumerate() {
            pair.send(&pattern(part.2, number as u8), None);
            assert_eq!(received(pair), part, "message {number}");
        }
        assert_eq!(first[..30], pattern(30, 0));
        assert_eq!(first[30..60], pattern(30, 1));
        assert_eq!(first[60..61], pattern(1, 2));
        assert_eq!(first[61..], [0xee; 39]);

        // What is too long for the rest is cut off, and ends the buffer.
        pair.send(&pattern(50, 9), None);
        let failure = pair.right_failure();
        assert_eq!((failure.err, failure.op_context), (FI_ETRUNC as i32, b));
        assert_eq!((failure.len, failure.olen), (40, 10));
        assert_eq!(failure.flags, FI_RECV | FI_MSG | FI_MULTI_RECV);
        assert_eq!(second[..60], pattern(60, 4));
        assert_eq!(second[60..], pattern(50, 9)[..40]);
    });
}

#[test]
fn messages_that_wait_go_to_the_next_buffers() {
    let options = Options {
        // Receives are multi-receives by themselves.
        rx_op_flags: FI_MULTI_RECV,
        ..OPTIONS
    };
    with_pair(&options, |pair| {
        assert_eq!(pair.right.set_option(FI_OPT_MIN_MULTI_RECV, 30), 0);
        let lengths = [10, 20, 30, 40];
        for (number, length) in lengths.into_iter().enumerate() {
            pair.send(&pattern(length, number as u8), None);
        }
        // It was sent after the others: when it is there, so are they.
        let (mut last, endpoint, no) = ([0_u8; 1], pair.right.endpoint, null_mut());
        let to = last.as_mut_ptr().cast();
        pair.start(|| call!(endpoint => tagged.recv(to, 1, no, FI_ADDR_UNSPEC, 5, 0, no)));
        pair.send(&[1], Some(5));
        assert_eq!(pair.right_completion().0.tag, 5);

        let (mut first, mut second) = ([0_u8; 64], [0_u8; 41]);
        for buffer in [&mut first[..], &mut second] {
            let (to, length) = (buffer.as_mut_ptr().cast(), buffer.len());
            pair.start(|| call!(endpoint => msg.recv(to, length, no, FI_ADDR_UNSPEC, to)));
        }
        let (a, b) = (first.as_mut_ptr().cast(), second.as_mut_ptr().cast());
        let parts = [
            (a, 0, 10, false),
            (a, 10, 20, false),
            (a, 30, 30, true),
            (b, 0, 40, true),
        ];
        for part in parts {
            assert_eq!(received(pair), part);
        }
        assert_eq!(first[..10], pattern(10, 0));
        assert_eq!(first[10..30], pattern(20, 1));
        assert_eq!(first[30..60], pattern(30, 2));
        assert_eq!(second[..40], pattern(40, 3));
    });
}

#[test]
fn a_buffer_returns_with_its_last_message() {
    const LONG: usize = 2 << 20;
    with_pair(&OPTIONS, |pair| {
        assert_eq!(pair.right.set_option(FI_OPT_MIN_MULTI_RECV, 64), 0);
        let mut buffer = vec![0_u8; LONG + 100];
        let context = post(pair, &mut buffer);
        // The bytes of the long message come later than its announcement, and than the short
        // message.
        let (long, short) = (pattern(LONG, 1), pattern(50, 2));
        let (endpoint, to, no) = (pair.left.endpoint, pair.to_right, null_mut());
        for data in [&long, &short] {
            let (from, length) = (data.as_ptr().cast(), data.len());
            pair.start(|| call!(endpoint => msg.send(from, length, no, to, no)));
        }
        let mut parts = [received(pair), received(pair)];
        assert_eq!(parts.map(|part| part.3), [false, true]);
        parts.sort_unstable();
        assert_eq!(
            parts.map(|part| (part.0, part.1, part.2)),
            [(context, 0, LONG), (context, LONG, 50)]
        );
        assert!(buffer[..LONG] == long && buffer[LONG..LONG + 50] == short);
        for _ in 0..2 {
            pair.left_completion();
        }

        // A buffer without received messages is returned at once.
        let context = post(pair, &mut buffer);
        assert_eq!(pair.right.cancel(context), 0);
        let failure = pair.right.read_error();
        assert_eq!(
            (failure.err, failure.op_context),
            (libc::ECANCELED, context)
        );
        assert_eq!(failure.flags, FI_RECV | FI_MSG | FI_MULTI_RECV);
    });
}

#[test]
fn a_failure_comes_behind_what_completed_before_it() {
    with_pair(&OPTIONS, |pair| {
        assert_eq!(pair.right.set_option(FI_OPT_MIN_MULTI_RECV, 64), 0);
        let (mut buffer, mut last) = (vec![0_u8; 4096], [0_u8; 1]);
        let context = post(pair, &mut buffer);
        let (right, to, no) = (pair.right.endpoint, last.as_mut_ptr().cast(), null_mut());
        pair.start(|| call!(right => tagged.recv(to, 1, no, FI_ADDR_UNSPEC, 5, 0, no)));
        // The third has no room, and so releases the buffer.
        let data = pattern(2000, 1);
        for _ in 0..3 {
            pair.send(&data, None);
        }
        let piece = piece(data.as_ptr(), 1);
        let message = fi_msg_tagged {
            msg_iov: &piece,
            iov_count: 1,
            addr: pair.to_right,
            tag: 5,
            ..fi_msg_tagged::default()
        };
        let left = pair.left.endpoint;
        pair.start(|| call!(left => tagged.sendmsg(&message, FI_DELIVERY_COMPLETE)));
        pair.left_completion();
        // All are there.
        let queue = pair.right.queue;
        let mut entries = [fi_cq_tagged_entry::default(); 8];
        let to = entries.as_mut_ptr().cast();
        let mut error = fi_cq_err_entry::default();
        assert_eq!(call!(queue => ops.readerr(&mut error, 0)), AGAIN);
        assert_eq!(call!(queue => ops.read(to, 8)), 2);
        assert!(
            entries[..2]
                .iter()
                .all(|entry| entry.len == 2000 && entry.flags & FI_MULTI_RECV == 0)
        );
        assert_eq!(call!(queue => ops.read(to, 8)), -(FI_EAVAIL as isize));
        assert_eq!(call!(queue => ops.readerr(&mut error, 0)), 1);
        assert_eq!((error.op_context, error.err), (context, FI_ETRUNC as i32));
        assert_ne!(error.flags & FI_MULTI_RECV, 0);
        assert_eq!(call!(queue => ops.read(to, 8)), 1);
        assert_eq!(entries[0].tag, 5);
    });
}
