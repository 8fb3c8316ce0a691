//! Full completion queues, and the descriptions of failures, through the C interface.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{AGAIN, Options, Pair, Side, close, message, piece, with_provider, with_side};

const ENTRIES: usize = 4;
const MESSAGES: usize = 400;

fn small() -> Options {
    Options::USUAL.with(|options| options.queue_size = ENTRIES)
}

/// Lets both sides make progress for a while, without reading anything.
fn progress(pair: &Pair) {
    for _ in 0..200 {
        for side in [&pair.left, &pair.right] {
            call!(side.queue => ops.read(null_mut(), 0));
        }
    }
}

/// Takes all completions that there are now, and returns their contexts.
fn take_all(side: &Side) -> Vec<usize> {
    let mut entries = [fi_cq_tagged_entry::default(); 2 * MESSAGES];
    let (to, room) = (entries.as_mut_ptr().cast(), entries.len());
    let count = call!(side.queue => ops.read(to, room));
    match usize::try_from(count) {
        Ok(count) => entries[..count]
            .iter()
            .map(|entry| entry.op_context.addr())
            .collect(),
        Err(_) => {
            assert_eq!(count, AGAIN);
            Vec::new()
        }
    }
}

fn context(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

#[test]
fn a_full_queue_holds_sends_back() {
    with_provider(|libfabric| {
        let (left, right) = (
            Side::open(libfabric, &small()),
            Side::open(libfabric, &Options::USUAL),
        );
        let pair = Pair::of(left, right);
        let mut buffers = [[0_u8; 8]; MESSAGES];
        for (number, buffer) in buffers.iter_mut().enumerate() {
            let (to, at) = (buffer.as_mut_ptr().cast(), pair.right.endpoint);
            let posted = call!(at => msg.recv(to, 8, null_mut(), u64::MAX, context(number)));
            assert_eq!(posted, 0);
        }
        let send = |number: usize| {
            let data = number.to_le_bytes();
            let from: *const c_void = data.as_ptr().cast();
            let (to, at) = (pair.to_right, pair.left.endpoint);
            // The data is copied, so that its memory may end with this call.
            let iov = piece(from, 8);
            let message = fi_msg {
                context: context(number),
                ..message(&iov, to)
            };
            call!(at => msg.sendmsg(&message, FI_COMPLETION | FI_INJECT))
        };
        let (mut sent, mut completed) = (0, Vec::new());
        while sent < MESSAGES {
            let before = sent;
            while sent < MESSAGES && send(sent) == 0 {
                sent += 1;
            }
            assert!(
                sent - before <= ENTRIES,
                "{sent} without a look at the queue"
            );
            progress(&pair);
            assert_eq!(send(sent), AGAIN, "the queue is still full");
            let read = take_all(&pair.left);
            assert_eq!(read.len(), ENTRIES);
            completed.extend(read);
        }
        assert!(completed.iter().copied().eq(0..MESSAGES), "{completed:?}");
        let mut received = Vec::new();
        pair.until("all messages", |_| {
            received.extend(take_all(&pair.right));
            (received.len() == MESSAGES).then_some(())
        });
        for (number, buffer) in buffers.iter().enumerate() {
            assert_eq!(*buffer, number.to_le_bytes());
        }
        pair.close(libfabric);
    });
}

#[test]
fn a_full_queue_holds_receives_and_peers_back() {
    with_provider(|libfabric| {
        let (left, right) = (
            Side::open(libfabric, &Options::USUAL),
            Side::open(libfabric, &small()),
        );
        let pair = Pair::of(left, right);
        let mut buffers = [[0_u8; 8]; MESSAGES];
        let mut posted = 0;
        let mut post = |pair: &Pair, posted: &mut usize| {
            let to = buffers[*posted].as_mut_ptr().cast();
            let at = pair.right.endpoint;
            let status = call!(at => msg.recv(to, 8, null_mut(), u64::MAX, context(*posted)));
            *posted += usize::from(status == 0);
            status
        };
        // Requests that were posted before the queue is full stay.
        while posted < MESSAGES / 2 {
            assert_eq!(post(&pair, &mut posted), 0);
        }
        let data = [7_u8; 8];
        for _ in 0..MESSAGES {
            let (from, to) = (data.as_ptr().cast(), pair.to_right);
            pair.start(|| call!(pair.left.endpoint => msg.inject(from, 8, to)));
        }
        progress(&pair);
        assert_eq!(post(&pair, &mut posted), AGAIN);
        let mut received = take_all(&pair.right);
        // The completions of one poll of the device, and no more.
        assert!(
            (ENTRIES..MESSAGES / 2).contains(&received.len()),
            "{received:?}"
        );
        pair.until("all messages", |pair| {
            if posted < MESSAGES {
                post(pair, &mut posted);
            }
            received.extend(take_all(&pair.right));
            (received.len() == MESSAGES).then_some(())
        });
        assert!(received.iter().copied().eq(0..MESSAGES), "{received:?}");
        pair.close(libfabric);
    });
}

#[test]
fn a_failure_says_what_happened_to_whom() {
    with_side(&Options::USUAL, |side| {
        side.enable();
        let gone = side.another();
        let to = side.insert(&crate::common::name_of(gone));
        assert_eq!(close(gone), 0);
        let fail = |room: Option<&mut [u8]>| {
            let data = [0_u8; 8];
            let from = data.as_ptr().cast();
            let sent = call!(side.endpoint => msg.send(from, 8, null_mut(), to, null_mut()));
            assert_eq!(sent, 0);
            while matches!(side.read(), Err(AGAIN)) {}
            let mut entry = fi_cq_err_entry::default();
            if let Some(room) = room {
                entry.err_data = room.as_mut_ptr().cast();
                entry.err_data_size = room.len();
            }
            assert_eq!(call!(side.queue => ops.readerr(&mut entry, 0)), 1);
            assert_eq!((entry.err, entry.prov_errno), (libc::ENOTCONN, 9));
            entry
        };
        let text = |pointer: *const c_void| {
            // SAFETY: a string of the provider, or of the test.
            let text = unsafe { CStr::from_ptr(pointer.cast()) };
            text.to_str().expect("it is ASCII").to_owned()
        };
        let entry = fail(None);
        let whole = text(entry.err_data);
        assert!(whole.starts_with("peer [fe80::"), "{whole}");
        assert_eq!(entry.err_data_size, whole.len() + 1);
        // SAFETY: infos have all attributes.
        let longest = unsafe { (*(*side.info).domain_attr).max_err_data };
        assert!((whole.len() + 1..=128).contains(&longest));
        // Written to the application's memory, as far as there is room.
        for room in [128, whole.len() + 1, 10, 1] {
            let mut memory = [0xff_u8; 130];
            let entry = fail(Some(&mut memory[..room]));
            let used = room.min(whole.len() + 1);
            assert_eq!(entry.err_data_size, used);
            assert_eq!(text(memory.as_ptr().cast()), whole[..used - 1]);
            assert!(memory[used..].iter().all(|byte| *byte == 0xff));
        }
        let entry = fail(None);
        let describe = |number: c_int, data: *const c_void, room: &mut [u8]| {
            let (buffer, length) = (room.as_mut_ptr().cast(), room.len());
            let found = call!(side.queue => ops.strerror(number, data, buffer, length));
            text(found.cast())
        };
        let found = describe(9, entry.err_data, &mut []);
        assert!(found.contains("endpoint is closed"), "{found}");
        assert!(
            found.contains(&whole) && found.contains("insert the new one"),
            "{found}"
        );
        let mut short = [0xff_u8; 9];
        assert_eq!(describe(9, entry.err_data, &mut short[..8]), found);
        assert_eq!(
            (&short[..7], &short[7..]),
            (&found.as_bytes()[..7], &[0, 0xff][..])
        );
        assert!(!describe(9, null_mut(), &mut []).contains("fe80"));
    });
}
