//! Address vectors through the C interface: two in a domain, and one of many entries.

use std::ffi::c_int;
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{
    AGAIN, NO_SHM, Options, Pair, STOCK, Side, bind, close, control, name_of, opened, with_pair,
    with_provider, with_provider_in, with_side,
};

fn open(side: &Side, count: usize) -> *mut fid_av {
    let mut attributes = fi_av_attr {
        type_: FI_AV_TABLE,
        count,
        ..fi_av_attr::default()
    };
    opened(|vector| call!(side.domain => ops.av_open(&mut attributes, vector, null_mut())))
}

fn insert(vector: *mut fid_av, names: &[[u8; 32]]) -> Vec<fi_addr_t> {
    let mut addresses = vec![u64::MAX; names.len()];
    let (from, to) = (names.as_ptr().cast(), addresses.as_mut_ptr());
    let count = call!(vector => ops.insert(from, names.len(), to, 0, null_mut()));
    assert_eq!(count as usize, names.len());
    addresses
}

fn remove(vector: *mut fid_av, addresses: &mut [fi_addr_t]) -> c_int {
    call!(vector => ops.remove(addresses.as_mut_ptr(), addresses.len(), 0))
}

#[test]
fn a_vector_keeps_peers_that_another_one_removes() {
    with_pair(&Options::USUAL, |pair| {
        let name = pair.right.name();
        let others = [open(&pair.left, 0), open(&pair.left, 0)];
        for (vector, is_closed) in others.into_iter().zip([false, true]) {
            // In another order than in the first vector, and twice.
            let mut addresses = insert(vector, &[pair.left.name(), name, name]);
            assert_eq!(addresses, [0, 1, 1]);
            if !is_closed {
                assert_eq!(remove(vector, &mut addresses), 0);
                assert_eq!(remove(vector, &mut addresses[1..2]), -libc::EINVAL);
            }
            assert_eq!(close(vector), 0);
            let mut buffer = [0_u8; 4];
            let (to, no) = (buffer.as_mut_ptr().cast(), null_mut());
            pair.start(|| call!(pair.right.endpoint => msg.recv(to, 4, no, pair.to_left, no)));
            let data = b"1234".as_ptr().cast();
            pair.start(|| call!(pair.left.endpoint => msg.inject(data, 4, pair.to_right)));
            assert_eq!(pair.right_completion().1, pair.to_left);
            assert_eq!(&buffer, b"1234");
        }
    });
}

#[test]
fn endpoints_of_a_domain_have_separate_vectors() {
    with_pair(&Options::USUAL, |pair| {
        let side = &pair.left;
        let vector = open(side, 0);
        let second = side.bare();
        assert_eq!(bind(second, vector, 0), 0);
        assert_eq!(bind(second, side.queue, FI_TRANSMIT | FI_RECV), 0);
        assert_eq!(control(second, FI_ENABLE, &mut 0), 0);
        // The same peer has another address here.
        let addresses = insert(vector, &[side.name(), name_of(second), pair.right.name()]);
        let of_second = pair.right.insert(&name_of(second));
        let mut buffers = [[0_u8; 4]; 2];
        let no = null_mut();
        for (endpoint, buffer) in [side.endpoint, second].into_iter().zip(&mut buffers) {
            let to = buffer.as_mut_ptr().cast();
            pair.start(|| call!(endpoint => msg.recv(to, 4, no, u64::MAX, no)));
        }
        for (to, expected) in [(pair.to_left, pair.to_right), (of_second, addresses[2])] {
            let data = b"1234".as_ptr().cast();
            pair.start(|| call!(pair.right.endpoint => msg.inject(data, 4, to)));
            assert_eq!(pair.left_completion().1, expected);
        }
        assert_ne!(pair.to_right, addresses[2]);
        assert_eq!(buffers, [*b"1234"; 2]);
        assert_eq!((close(second), close(vector)), (0, 0));
    });
}

/// Has three messages go from left to right and back, before and after some sides have removed each
/// other and inserted each other again.
fn reinsert(libfabric: &crate::common::Libfabric, right: &Options, [of_left, of_right]: [bool; 2]) {
    let usual = Options::USUAL;
    let sides = (Side::open(libfabric, &usual), Side::open(libfabric, right));
    let mut pair = Pair::of(sides.0, sides.1);
    let no = null_mut();
    for round in 0..3_u8 {
        for number in 0..3_u8 {
            let data = [round, number];
            let ends = [
                (&pair.left, pair.to_right, &pair.right),
                (&pair.right, pair.to_left, &pair.left),
            ];
            for (from, to, at) in ends {
                let mut buffer = [u8::MAX; 2];
                let place = buffer.as_mut_ptr().cast();
                pair.start(|| call!(at.endpoint => msg.recv(place, 2, no, u64::MAX, no)));
                let data = data.as_ptr().cast();
                pair.start(|| call!(from.endpoint => msg.send(data, 2, no, to, no)));
                for side in [from, at] {
                    let done = pair.until("a message arrives", |_| match side.read() {
                        Err(AGAIN) => None,
                        other => Some(other),
                    });
                    done.expect("it succeeds");
                }
                assert_eq!(buffer, [round, number]);
            }
        }
        let names = [pair.left.name(), pair.right.name()];
        if of_left {
            assert_eq!(remove(pair.left.vector, &mut [pair.to_right]), 0);
            pair.to_right = pair.left.insert(&names[1]);
        }
        if of_right {
            assert_eq!(remove(pair.right.vector, &mut [pair.to_left]), 0);
            pair.to_left = pair.right.insert(&names[0]);
        }
    }
    pair.close(libfabric);
}

#[test]
fn removed_peers_are_heard_again_after_insertion() {
    with_provider(|libfabric| {
        for sides in [[true, false], [false, true], [true, true]] {
            reinsert(libfabric, &Options::USUAL, sides);
        }
    });
}

#[test]
fn stock_peers_hear_who_has_reinserted_them() {
    with_provider_in(&[STOCK, NO_SHM], |libfabric| {
        let stock = Options::USUAL.with(|options| options.provider = c"efa");
        reinsert(libfabric, &stock, [true, false]);
    });
}

#[test]
fn a_vector_of_many_entries_ends() {
    // All of one queue pair, as if it had been opened that often. A removal that walks along the
    // others would take some hundred million steps.
    const COUNT: usize = 20_000;
    with_side(&Options::USUAL, |side| {
        side.enable();
        let own = side.name();
        let names: Vec<[u8; 32]> = (0..COUNT as u32)
            .map(|qkey| {
                let mut name = own;
                name[20..24].copy_from_slice(&qkey.to_ne_bytes());
                name
            })
            .collect();
        let vector = open(side, COUNT);
        let mut addresses = insert(vector, &names);
        assert!(addresses.iter().copied().eq(0..COUNT as u64));
        let removed = remove(vector, &mut addresses[..COUNT / 2]);
        assert_eq!(removed, 0);
        let (mut found, mut length) = ([0_u8; 32], 32);
        let mut lookup =
            |address| call!(vector => ops.lookup(address, found.as_mut_ptr().cast(), &mut length));
        assert_eq!(lookup(0), -libc::EINVAL);
        assert_eq!(lookup(COUNT as u64 - 1), 0);
        assert_eq!(found, names[COUNT - 1]);
        // The rest ends with the vector, in no order.
        assert_eq!(close(vector), 0);
    });
}

#[test]
fn senders_are_reported_only_on_request() {
    with_provider(|libfabric| {
        for caps in [FI_MSG, FI_MSG | FI_SOURCE] {
            let options = Options::USUAL.with(|options| options.caps = caps);
            let pair = Pair::open(libfabric, &options);
            let (mut buffer, no) = ([0_u8; 4], null_mut());
            let to = buffer.as_mut_ptr().cast();
            pair.start(|| call!(pair.right.endpoint => msg.recv(to, 4, no, pair.to_left, no)));
            let data = b"1234".as_ptr().cast();
            pair.start(|| call!(pair.left.endpoint => msg.inject(data, 4, pair.to_right)));
            let expected = match caps & FI_SOURCE {
                0 => FI_ADDR_UNSPEC,
                _ => pair.to_left,
            };
            assert_eq!(pair.right_completion().1, expected);
            pair.close(libfabric);
        }
    });
}

#[test]
fn addresses_as_text_report_their_needed_size() {
    with_side(&Options::USUAL, |side| {
        side.enable();
        let (vector, name) = (side.vector, side.name());
        // SAFETY: the vector is open, and there is room for `length` bytes.
        let text = |room: usize| unsafe {
            let straddr = (*(*vector).ops).straddr.expect("the tables are complete");
            let (mut text, mut length) = (vec![0xff_u8; 200], room);
            let result = straddr(
                vector,
                name.as_ptr().cast(),
                text.as_mut_ptr().cast(),
                &mut length,
            );
            assert_eq!(result, text.as_ptr().cast());
            assert!(text[room..].iter().all(|byte| *byte == 0xff));
            (text, length)
        };
        let (whole, needed) = text(200);
        assert_eq!((whole[needed - 1], whole[needed]), (0, 0xff));
        assert!(whole.starts_with(b"[fe80::"), "{whole:?}");
        for room in [1, 20, needed - 1, needed] {
            let (part, length) = text(room);
            assert_eq!(length, needed, "of {room}");
            assert_eq!((&part[..room - 1], part[room - 1]), (&whole[..room - 1], 0));
        }
    });
}
