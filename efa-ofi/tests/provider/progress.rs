//! Automatic progress: a target that makes no call while peers send to it and access its memory.

use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{
    AGAIN, Options, Pair, Side, close, message, piece, rma_message, with_provider,
    with_provider_under,
};
use efa_testing::patience::Wait;
use efa_testing::test_name;

/// Longer than all that is sent without an agreement with the receiver.
const LONG: usize = 3 << 20;

/// A pair whose right side makes automatic progress.
fn with_automatic_target(body: impl FnOnce(&Pair)) {
    with_provider_under(
        &[],
        test_name(&body),
        |_| (),
        |libfabric| {
            let automatic = Options::USUAL.with(|options| options.progress = FI_PROGRESS_AUTO);
            let right = Side::open(libfabric, &automatic);
            // SAFETY: an info that was given has all attributes.
            let offered = unsafe { &*(*right.info).domain_attr };
            assert_eq!(offered.data_progress, FI_PROGRESS_AUTO);
            assert_eq!(offered.control_progress, FI_PROGRESS_AUTO);
            let pair = Pair::of(Side::open(libfabric, &Options::USUAL), right);
            body(&pair);
            pair.close(libfabric);
        },
    );
}

/// Starts an operation on the left, and waits until it has completed there. Only the left side
/// makes progress.
#[track_caller]
fn complete(left: &Side, what: &str, mut call: impl FnMut() -> isize) {
    let wait = Wait::start();
    let mut started = false;
    loop {
        if !started {
            match call() {
                0 => started = true,
                again => assert_eq!(again, AGAIN, "{what}"),
            }
        }
        match left.read() {
            Ok(_) => return,
            Err(again) => assert_eq!(again, AGAIN, "{what}"),
        }
        wait.check(|| what.to_owned());
        std::thread::yield_now();
    }
}

#[test]
fn messages_arrive_without_the_receivers_calls() {
    with_automatic_target(|pair| {
        for length in [64, 20_000, LONG] {
            let data = efa_testing::pattern(length, 0);
            let mut buffer = vec![0_u8; length];
            let no = null_mut();
            let to = buffer.as_mut_ptr().cast();
            let posted = call!(pair.right.endpoint => msg.recv(to, length, no, pair.to_left, no));
            assert_eq!(posted, 0);
            let piece = piece(data.as_ptr(), length);
            let message = message(&piece, pair.to_right);
            complete(
                &pair.left,
                "a message is delivered",
                || call!(pair.left.endpoint => msg.sendmsg(&message, FI_DELIVERY_COMPLETE)),
            );
            assert!(buffer == data, "{length} bytes");
            // The receiver's completion is there, too: looking at it is all that is left.
            assert_eq!(pair.right_completion().0.len, length);
        }
    });
}

#[test]
fn memory_is_accessed_without_its_owners_calls() {
    with_automatic_target(|pair| {
        let mut memory = vec![0_u8; LONG];
        let data = vec![7_u8; LONG];
        let mut back = vec![0_u8; LONG];
        let region = pair.right.register(&mut memory);
        // SAFETY: the registration is open.
        let key = unsafe { (*region).key };
        let (left, no) = (pair.left.endpoint, null_mut());
        for length in [64, LONG] {
            let remote = fi_rma_iov {
                addr: memory.as_ptr().addr() as u64,
                len: length,
                key,
            };
            let piece = piece(data.as_ptr(), length);
            let message = rma_message(&piece, pair.to_right, &remote);
            complete(
                &pair.left,
                "a write is delivered",
                || call!(left => rma.writemsg(&message, FI_DELIVERY_COMPLETE)),
            );
            assert!(memory[..length] == data[..length]);
            let to = back.as_mut_ptr().cast();
            complete(
                &pair.left,
                "a read",
                || call!(left => rma.read(to, length, no, pair.to_right, remote.addr, key, no)),
            );
            assert!(back[..length] == data[..length]);
        }
        let (one, mut before) = (1_u64, 0_u64);
        let (operand, result) = ((&raw const one).cast(), (&raw mut before).cast());
        complete(&pair.left, "an atomic that fetches", || {
            let address = memory.as_ptr().addr() as u64;
            call!(left => atomic.readwrite(
                operand, 1, no, result, no, pair.to_right, address, key, FI_UINT64, FI_SUM, no
            ))
        });
        assert_eq!(before, u64::from_ne_bytes([7; 8]));
        assert_eq!(memory[..8], (before + 1).to_ne_bytes());
        assert_eq!(close(region), 0);
    });
}

#[test]
fn a_domain_closes_while_its_thread_works() {
    with_provider(|libfabric| {
        let automatic = Options::USUAL.with(|options| options.progress = FI_PROGRESS_AUTO);
        for _ in 0..2 {
            let pair = Pair::open(libfabric, &automatic);
            let no = null_mut();
            for _ in 0..50 {
                let data = b"1234".as_ptr().cast();
                let to = pair.to_right;
                pair.start(|| call!(pair.left.endpoint => msg.send(data, 4, no, to, no)));
            }
            pair.close(libfabric);
        }
    });
}
