//! Messages that match receives: peeked and claimed messages, messages of one sender, scattered
//! messages.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{EINVAL, Options, Pair, Side, piece, with_pair, with_provider};

/// Calls `fi_trecvmsg` on the right side for a tag, into a buffer.
fn receive(pair: &Pair, tag: u64, flags: u64, buffer: &mut [u8], context: *mut c_void) -> isize {
    let pieces = [piece(buffer.as_mut_ptr(), buffer.len())];
    let message = fi_msg_tagged {
        msg_iov: pieces.as_ptr(),
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        tag,
        context,
        ..fi_msg_tagged::default()
    };
    let endpoint = pair.right.endpoint;
    call!(endpoint => tagged.recvmsg(&message, flags))
}

/// Peeks until there is a message, with `flags` in addition to `FI_PEEK`. Returns its length.
fn look(pair: &Pair, tag: u64, flags: u64, context: *mut c_void) -> usize {
    pair.until("the message is there", |pair| {
        assert_eq!(receive(pair, tag, FI_PEEK | flags, &mut [], context), 0);
        match pair.right.read() {
            Ok((entry, source)) => {
                assert_eq!((entry.op_context, entry.tag), (context, tag));
                assert_eq!(entry.flags, FI_RECV | FI_TAGGED);
                assert_eq!(source, pair.to_left);
                Some(entry.len)
            }
            Err(_) => {
                let failure = pair.right.read_error();
                assert_eq!((failure.err, failure.op_context), (libc::ENOMSG, context));
                None
            }
        }
    })
}

/// Starts to send a tagged message to the right side.
fn start(pair: &Pair, data: &[u8], tag: u64) {
    let (endpoint, to, no) = (pair.left.endpoint, pair.to_right, null_mut());
    let (from, length) = (data.as_ptr().cast(), data.len());
    pair.start(|| call!(endpoint => tagged.send(from, length, no, to, tag, no)));
}

/// Asserts that no message with this tag is there that a receive could take.
#[track_caller]
fn assert_none(pair: &Pair, tag: u64) {
    assert_eq!(receive(pair, tag, FI_PEEK, &mut [], null_mut()), 0);
    assert!(pair.right.read().is_err());
    let failure = pair.right.read_error();
    assert_eq!((failure.err, failure.tag), (libc::ENOMSG, tag));
}

#[test]
fn a_claimed_message_waits_for_its_receive() {
    with_pair(&Options::USUAL, |pair| {
        // libfabric requires these structures as contexts.
        let mut contexts = [fi_context::default(), fi_context::default()];
        let [first, second] = contexts
            .each_mut()
            .map(|context| std::ptr::from_mut(context).cast::<c_void>());
        let mut buffer = [0_u8; 16];
        assert_none(pair, 5);
        let nothing = receive(pair, 5, FI_CLAIM, &mut buffer, first);
        assert_eq!(nothing, EINVAL, "nothing is claimed");

        pair.send(b"first", Some(5));
        pair.send(b"second!", Some(5));
        assert_eq!(look(pair, 5, 0, second), 5);
        assert_eq!(look(pair, 5, FI_CLAIM, first), 5);
        // The next one of this tag is the second now.
        assert_eq!(look(pair, 5, FI_CLAIM, second), 7);
        assert_none(pair, 5);
        let mut posted = [0_u8; 16];
        assert_eq!(receive(pair, 5, 0, &mut posted, null_mut()), 0);
        for (context, expected) in [(second, &b"second!"[..]), (first, b"first")] {
            assert_eq!(receive(pair, 5, FI_CLAIM, &mut buffer, context), 0);
            let (entry, source) = pair.right_completion();
            assert_eq!((entry.op_context, entry.len), (context, expected.len()));
            assert_eq!((entry.tag, source), (5, pair.to_left));
            assert_eq!(buffer[..entry.len], *expected);
        }
        let again = receive(pair, 5, FI_CLAIM, &mut buffer, first);
        assert_eq!(again, EINVAL, "a claim is good for one call");
        pair.send(b"third", Some(5));
        assert_eq!(pair.right_completion().0.op_context, null_mut());
        assert_eq!(posted[..5], *b"third");
    });
}

/// As MPICH probes: without memory, and with a request for the data that completions have.
#[test]
fn peeking_shows_the_completion_data() {
    const DATA: u64 = 0x0123_4567_89ab_cdef;
    with_pair(&Options::USUAL, |pair| {
        let mut context = fi_context::default();
        let context = std::ptr::from_mut(&mut context).cast::<c_void>();
        let (from, to, no) = (pair.left.endpoint, pair.to_right, null_mut());
        let bytes = b"data".as_ptr().cast();
        pair.start(|| call!(from => tagged.senddata(bytes, 4, no, DATA, to, 3, no)));
        let probe = fi_msg_tagged {
            addr: FI_ADDR_UNSPEC,
            tag: 3,
            context,
            ..fi_msg_tagged::default()
        };
        let flags = FI_PEEK | FI_CLAIM | FI_COMPLETION | FI_REMOTE_CQ_DATA;
        let endpoint = pair.right.endpoint;
        let expected = (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA, DATA, 4);
        let (found, _) = pair.until("the message is there", |pair| {
            assert_eq!(call!(endpoint => tagged.recvmsg(&probe, flags)), 0);
            let found = pair.right.read();
            found.map_err(|_| pair.right.read_error()).ok()
        });
        assert_eq!((found.flags, found.data, found.len), expected);
        let mut buffer = [0_u8; 4];
        assert_eq!(receive(pair, 3, FI_CLAIM, &mut buffer, context), 0);
        let (entry, _) = pair.right_completion();
        assert_eq!((entry.flags, entry.data, entry.len), expected);
        assert_eq!(buffer, *b"data");
        pair.left_completion();
    });
}

#[test]
fn discarded_messages_are_gone() {
    with_pair(&Options::USUAL, |pair| {
        let mut context = fi_context::default();
        let context = std::ptr::from_mut(&mut context).cast::<c_void>();
        let data = [1_u8; 20_000];
        for (tag, length) in [(1, 3), (1, 4), (1, 20_000), (2, 6)] {
            start(pair, &data[..length], tag);
        }
        assert_eq!(look(pair, 1, FI_DISCARD, context), 3);
        assert_eq!(look(pair, 1, FI_CLAIM, context), 4);
        assert_eq!(receive(pair, 1, FI_CLAIM | FI_DISCARD, &mut [], context), 0);
        let (entry, source) = pair.right_completion();
        // The discarded message.
        assert_eq!((entry.op_context, entry.len), (context, 4));
        assert_eq!((entry.tag, source), (1, pair.to_left));
        // A message of several packets.
        assert_eq!(look(pair, 1, FI_DISCARD, context), 20_000);
        assert_none(pair, 1);
        let mut buffer = [0_u8; 8];
        assert_eq!(receive(pair, 2, 0, &mut buffer, context), 0);
        assert_eq!(pair.right_completion().0.len, 6);
        for _ in 0..4 {
            pair.left_completion();
        }
    });
}

#[test]
fn directed_receives_take_only_their_senders_messages() {
    with_provider(|libfabric| {
        let pair = Pair::open(libfabric, &Options::USUAL);
        let other = Side::open(libfabric, &Options::USUAL);
        other.enable();
        let from_other = pair.right.insert(&other.name());
        let to_right = other.insert(&pair.right.name());
        let (mut named, mut tagged, mut any) = ([0_u8; 4], [0_u8; 4], [0_u8; 4]);
        let [a, b, c] =
            [&mut named, &mut tagged, &mut any].map(|buffer| buffer.as_mut_ptr().cast::<c_void>());
        let (endpoint, no) = (pair.right.endpoint, null_mut());
        let left = pair.to_left;
        pair.start(|| call!(endpoint => msg.recv(a, 4, no, left, a)));
        pair.start(|| call!(endpoint => tagged.recv(b, 4, no, left, 0, u64::MAX, b)));
        pair.start(|| call!(endpoint => msg.recv(c, 4, no, FI_ADDR_UNSPEC, c)));
        // An address that is in no vector matches no sender.
        let nobody = call!(endpoint => msg.recv(c, 4, no, 77, c));
        assert_eq!(nobody, EINVAL);

        let from = other.endpoint;
        let bytes = b"else".as_ptr().cast();
        pair.start(|| call!(from => msg.send(bytes, 4, no, to_right, no)));
        pair.start(|| call!(from => tagged.send(bytes, 4, no, to_right, 9, no)));
        let (entry, source) = pair.until("the other's message", |pair| {
            call!(other.queue => ops.read(null_mut(), 0));
            pair.right.read().ok()
        });
        assert_eq!((entry.op_context, source), (c, from_other));
        // Its tagged message waits for a receive that takes it, although there is one with its tag.
        pair.until("the other's tagged message", |pair| {
            call!(other.queue => ops.read(null_mut(), 0));
            assert_eq!(receive(pair, 9, FI_PEEK, &mut [], null_mut()), 0);
            match pair.right.read() {
                Ok((entry, source)) => {
                    assert_eq!((entry.tag, source), (9, from_other));
                    Some(())
                }
                Err(_) => {
                    assert_eq!(pair.right.read_error().err, libc::ENOMSG);
                    None
                }
            }
        });
        pair.send(b"left", None);
        let (entry, source) = pair.right_completion();
        assert_eq!((entry.op_context, source), (a, pair.to_left));
        pair.send(b"tags", Some(3));
        let (entry, source) = pair.right_completion();
        assert_eq!((entry.op_context, source), (b, pair.to_left));
        assert_eq!((&named, &tagged, &any), (b"left", b"tags", b"else"));
        other.close(libfabric);
        pair.close(libfabric);
    });
}

/// Consecutive pieces of memory of these lengths.
fn pieces<const N: usize>(memory: &mut [u8], lengths: [usize; N]) -> [iovec; N] {
    let mut rest = memory;
    lengths.map(|length| {
        let (own, after) = std::mem::take(&mut rest).split_at_mut(length);
        rest = after;
        piece(own.as_mut_ptr(), length)
    })
}

#[test]
fn messages_are_gathered_and_scattered_in_all_forms() {
    with_pair(&Options::USUAL, |pair| {
        let (left, right) = (pair.left.endpoint, pair.right.endpoint);
        let (to, any, no) = (pair.to_right, FI_ADDR_UNSPEC, null_mut());
        // Within a packet, several packets, and read by the receiver.
        for (round, length) in [100, 20_000, 2 << 20].into_iter().enumerate() {
            let round = round as u8;
            let mut data: Vec<u8> = (0..length).map(|at| round ^ (at % 249) as u8).collect();
            let expected = data.clone();
            let out = pieces(&mut data, [1, 30, length - 31]);
            let mut memory = vec![0_u8; length];
            for tag in [None, Some(7)] {
                for is_msg in [false, true] {
                    memory.fill(0);
                    let scattered =
                        pieces(&mut memory, [length / 2, 3, 0, length - length / 2 - 3]);
                    let into = scattered.as_ptr();
                    let untagged = fi_msg {
                        msg_iov: into,
                        iov_count: 4,
                        addr: any,
                        ..fi_msg::default()
                    };
                    let with_tag = fi_msg_tagged {
                        msg_iov: into,
                        iov_count: 4,
                        addr: any,
                        tag: 7,
                        ..fi_msg_tagged::default()
                    };
                    pair.start(|| match (tag, is_msg) {
                        (None, false) => call!(right => msg.recvv(into, null_mut(), 4, any, no)),
                        (None, true) => call!(right => msg.recvmsg(&untagged, FI_COMPLETION)),
                        (Some(tag), false) => {
                            call!(right => tagged.recvv(into, null_mut(), 4, any, tag, 0, no))
                        }
                        (Some(_), true) => call!(right => tagged.recvmsg(&with_tag, FI_COMPLETION)),
                    });
                    let from = out.as_ptr();
                    let untagged = fi_msg {
                        msg_iov: from,
                        iov_count: 3,
                        addr: to,
                        data: 11,
                        ..fi_msg::default()
                    };
                    let with_tag = fi_msg_tagged {
                        msg_iov: from,
                        iov_count: 3,
                        addr: to,
                        tag: 7,
                        data: 11,
                        ..fi_msg_tagged::default()
                    };
                    let flags = FI_COMPLETION | FI_REMOTE_CQ_DATA;
                    pair.start(|| match (tag, is_msg) {
                        (None, false) => call!(left => msg.sendv(from, null_mut(), 3, to, no)),
                        (None, true) => call!(left => msg.sendmsg(&untagged, flags)),
                        (Some(tag), false) => {
                            call!(left => tagged.sendv(from, null_mut(), 3, to, tag, no))
                        }
                        (Some(_), true) => call!(left => tagged.sendmsg(&with_tag, flags)),
                    });
                    let (entry, _) = pair.right_completion();
                    assert_eq!((entry.len, entry.tag), (length, tag.unwrap_or(0)));
                    let data = (entry.flags & FI_REMOTE_CQ_DATA != 0).then_some(entry.data);
                    assert_eq!(data, is_msg.then_some(11));
                    pair.left_completion();
                    assert!(memory == expected, "{length} {tag:?} {is_msg}");
                }
            }
        }
        let mut bytes = [0_u8; 5];
        let many = pieces(&mut bytes, [1; 5]);
        let list = many.as_ptr();
        assert_eq!(
            call!(left => msg.sendv(list, null_mut(), 5, to, no)),
            EINVAL
        );
        assert_eq!(
            call!(right => msg.recvv(list, null_mut(), 5, any, no)),
            EINVAL
        );
    });
}

#[test]
fn a_cancelled_receive_has_its_tag() {
    with_pair(&Options::USUAL, |pair| {
        let (mut buffer, endpoint) = ([0_u8; 4], pair.right.endpoint);
        let place = buffer.as_mut_ptr().cast();
        let (tag, ignore) = (0x1234_5678_9abc, 0xff);
        let context: *mut c_void = std::ptr::without_provenance_mut(5);
        let posted = call!(
            endpoint => tagged.recv(place, 4, null_mut(), u64::MAX, tag, ignore, context)
        );
        assert_eq!((posted, pair.right.cancel(context)), (0, 0));
        let cancelled = pair.right_failure();
        assert_eq!((cancelled.err, cancelled.tag), (libc::ECANCELED, tag));
    });
}
