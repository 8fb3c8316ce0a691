//! The first reads and writes of a peer's memory, before its capabilities are known.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{AGAIN, Options, Pair, close, with_pair, with_provider};

/// Reads and writes that may wait.
const WAITING: usize = 16;

fn context(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

#[test]
fn first_accesses_start_before_the_peer_answers() {
    with_pair(&Options::USUAL, |pair| {
        let endpoint = pair.left.endpoint;
        let (mut written, mut read) = ([0_u64; WAITING / 2], [7_u64; WAITING / 2]);
        let (targets, sources) = (
            pair.right.register(&mut written),
            pair.right.register(&mut read),
        );
        // SAFETY: the registrations are open.
        let keys = unsafe { [(*targets).key, (*sources).key] };
        let places = [written.as_ptr().addr() as u64, read.as_ptr().addr() as u64];
        let (data, mut got) = ([5_u64; WAITING / 2], [0_u64; WAITING / 2]);
        let no = null_mut();
        let to = pair.to_right;
        for number in 0..WAITING / 2 {
            let at = |place: u64| place + 8 * number as u64;
            // Without progress so far, the right side does not know the left one yet.
            let from = data[number..].as_ptr().cast();
            let write = context(2 * number);
            let status =
                call!(endpoint => rma.write(from, 8, no, to, at(places[0]), keys[0], write));
            assert_eq!(status, 0);
            let into = got[number..].as_mut_ptr().cast();
            let read = context(2 * number + 1);
            let status = call!(endpoint => rma.read(into, 8, no, to, at(places[1]), keys[1], read));
            assert_eq!(status, 0);
        }
        let from = data.as_ptr().cast();
        let more = call!(endpoint => rma.write(from, 8, no, to, places[0], keys[0], no));
        assert_eq!(more, AGAIN, "there is an end to it");
        // Data that is copied within the call is sent at once, in a packet.
        let copied = call!(endpoint => rma.inject(from, 8, to, places[0], keys[0]));
        assert_eq!(copied, 0);
        let mut done: Vec<usize> = (0..WAITING)
            .map(|_| pair.left_completion().0.op_context.addr())
            .collect();
        done.sort_unstable();
        assert!(done.into_iter().eq(0..WAITING));
        assert_eq!(got, [7; WAITING / 2]);
        pair.until("the data is there", |_| {
            let written = std::hint::black_box(&written);
            (*written == data).then_some(())
        });
        assert_eq!((close(targets), close(sources)), (0, 0));
    });
}

#[test]
fn accesses_of_a_dead_peer_fail() {
    with_provider(|libfabric| {
        let pair = Pair::open(libfabric, &Options::USUAL);
        let gone = pair.right.another();
        let to = pair.left.insert(&crate::common::name_of(gone));
        assert_eq!(close(gone), 0);
        let (mut data, no) = ([0_u64; 1], null_mut());
        let (endpoint, place) = (pair.left.endpoint, data.as_mut_ptr().cast());
        let read = call!(endpoint => rma.read(place, 8, no, to, 4096, 1, context(9)));
        assert_eq!(read, 0);
        let failed = pair.until("it fails", |pair| match pair.left.read() {
            Err(AGAIN) => None,
            Ok((entry, _)) => panic!("{entry:?}"),
            Err(_) => Some(pair.left.read_error()),
        });
        assert_eq!(
            (failed.op_context, failed.err),
            (context(9), libc::ENOTCONN)
        );
        assert_eq!(failed.flags, FI_RMA | FI_READ);
        // The same for a peer that is removed meanwhile.
        let pair = Pair::open(libfabric, &Options::USUAL);
        let (endpoint, to) = (pair.left.endpoint, pair.to_right);
        let write = call!(endpoint => rma.write(place, 8, no, to, 4096, 1, context(8)));
        assert_eq!(write, 0);
        let vector = pair.left.vector;
        assert_eq!(call!(vector => ops.remove(&mut [to][0], 1, 0)), 0);
        let failed = pair.until("it is cancelled", |pair| match pair.left.read() {
            Err(AGAIN) => None,
            Ok((entry, _)) => panic!("{entry:?}"),
            Err(_) => Some(pair.left.read_error()),
        });
        assert_eq!(
            (failed.op_context, failed.err),
            (context(8), libc::ECANCELED)
        );
    });
}
