//! Receiving into the application's buffers through the C interface.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{
    AGAIN, EINVAL, Libfabric, MAX_MSG_SIZE, Options, Pair, SHARED_MEMORY_PERMITTED, Side, bind,
    close, piece, with_provider,
};

const EOPNOTSUPP: isize = -(libc::EOPNOTSUPP as isize);
/// The result of `fi_cancel` for an unknown context, where it cancels receives.
const ENOENT: isize = -(libc::ENOENT as isize);

/// The largest packet of the emulated device in bytes.
const MTU: usize = 8928;

/// libfabric's number of a message with a header at an endpoint that receives into the
/// application's buffers.
const HEADER_AT_ZERO_COPY_RECEIVER: c_int = 4125;

/// The options of an application that receives into its own buffers.
const OPTIONS: Options = Options {
    caps: FI_MSG | FI_RMA | FI_SOURCE,
    msg_order: 0,
    ..Options::USUAL
};

/// A disabled endpoint of an application that makes the needed promises if `max_message` is short
/// enough.
fn promising(libfabric: &Libfabric, options: &Options, max_message: usize) -> Side {
    let side = Side::open(libfabric, options);
    assert_eq!(side.set(MAX_MSG_SIZE, max_message), 0);
    assert_eq!(side.set(SHARED_MEMORY_PERMITTED, false), 0);
    side
}

fn pair(libfabric: &Libfabric) -> Pair {
    Pair::of(
        promising(libfabric, &OPTIONS, MTU),
        promising(libfabric, &OPTIONS, MTU),
    )
}

/// Returns whether an endpoint receives into the application's buffers: then it cannot cancel
/// receives.
fn is_zero_copy(side: &Side) -> bool {
    let mut nothing = 0_u64;
    match side.cancel((&raw mut nothing).cast()) {
        EOPNOTSUPP => true,
        ENOENT => false,
        other => panic!("{other}"),
    }
}

/// Memory with a registration for the messages of a side.
struct Memory {
    bytes: Vec<u8>,
    region: *mut fid_mr,
}

impl Memory {
    fn new(side: &Side, length: usize) -> Memory {
        let mut bytes = vec![0; length];
        let region = side.register_for(&mut bytes, FI_SEND | FI_RECV);
        Memory { bytes, region }
    }

    fn descriptor(&self) -> *mut c_void {
        // SAFETY: the registration is open.
        unsafe { (*self.region).mem_desc }
    }

    fn receive(&mut self, side: &Side, context: *mut c_void) -> isize {
        let (to, length) = (self.bytes.as_mut_ptr().cast(), self.bytes.len());
        let endpoint = side.endpoint;
        call!(endpoint => msg.recv(to, length, self.descriptor(), FI_ADDR_UNSPEC, context))
    }

    /// Starts to send the first `length` bytes to the right.
    #[track_caller]
    fn send(&self, pair: &Pair, length: usize) {
        let (endpoint, to) = (pair.left.endpoint, pair.to_right);
        let from = self.bytes.as_ptr().cast();
        pair.start(|| call!(endpoint => msg.send(from, length, self.descriptor(), to, null_mut())));
    }

    fn end(self) {
        assert_eq!(close(self.region), 0);
    }
}

#[test]
fn messages_land_in_the_buffers() {
    with_provider(|libfabric| {
        let pair = pair(libfabric);
        assert!(is_zero_copy(&pair.left) && is_zero_copy(&pair.right));
        let mut source = Memory::new(&pair.left, MTU + 1);
        for length in [0, 1, 64, 4096, MTU] {
            source.bytes.fill(length as u8);
            let mut target = Memory::new(&pair.right, MTU);
            let context = target.bytes.as_mut_ptr().cast();
            assert_eq!(target.receive(&pair.right, context), 0);
            source.send(&pair, length);
            pair.left_completion();
            let (entry, from) = pair.right_completion();
            assert_eq!((entry.op_context, entry.len), (context, length));
            assert_eq!((entry.flags, from), (FI_RECV | FI_MSG, pair.to_left));
            assert!(
                target.bytes[..length]
                    .iter()
                    .all(|byte| *byte == length as u8)
            );
            assert!(target.bytes[length..].iter().all(|byte| *byte == 0));
            target.end();
        }
        // Data comes with the message, also with one that is copied within the call.
        let (endpoint, to, no) = (pair.left.endpoint, pair.to_right, null_mut());
        let from = source.bytes.as_ptr().cast();
        for injects in [false, true] {
            let mut target = Memory::new(&pair.right, 64);
            assert_eq!(target.receive(&pair.right, no), 0);
            pair.start(|| match injects {
                true => call!(endpoint => msg.injectdata(from, 8, 0x1234_5678, to)),
                false => {
                    call!(endpoint => msg.senddata(from, 8, source.descriptor(), 0x1234_5678, to, no))
                }
            });
            let (entry, _) = pair.right_completion();
            assert_eq!((entry.len, entry.data), (8, 0x1234_5678));
            assert_ne!(entry.flags & FI_REMOTE_CQ_DATA, 0);
            if !injects {
                pair.left_completion();
            }
            target.end();
        }
        let too_long = MTU + 1;
        let refused = call!(endpoint => msg.send(from, too_long, source.descriptor(), to, no));
        assert_eq!(refused, EINVAL, "a message is a packet");
        source.end();
        pair.close(libfabric);
    });
}

#[test]
fn rma_works_as_without_zero_copy() {
    with_provider(|libfabric| {
        let pair = pair(libfabric);
        let (mut own, mut theirs) = ([5_u64; 100], [0_u64; 100]);
        let regions = [
            pair.left.register(&mut own),
            pair.right.register(&mut theirs),
        ];
        // SAFETY: both are open.
        let (descriptor, key) = unsafe { ((*regions[0]).mem_desc, (*regions[1]).key) };
        let (endpoint, to, no) = (pair.left.endpoint, pair.to_right, null_mut());
        let from = own.as_ptr().cast();
        let address = theirs.as_ptr().addr() as u64;
        // A receive that is there stays there.
        let mut target = Memory::new(&pair.right, 64);
        assert_eq!(target.receive(&pair.right, no), 0);
        pair.start(
            || call!(endpoint => rma.writedata(from, 800, descriptor, 7, to, address, key, no)),
        );
        pair.left_completion();
        let (entry, _) = pair.right_completion();
        assert_eq!(
            (entry.flags & FI_REMOTE_WRITE, entry.data),
            (FI_REMOTE_WRITE, 7)
        );
        assert_eq!(theirs, [5; 100]);
        let source = Memory::new(&pair.left, 64);
        source.send(&pair, 3);
        assert_eq!(pair.right_completion().0.len, 3);
        pair.left_completion();
        assert_eq!(regions.map(close), [0, 0]);
        source.end();
        target.end();
        pair.close(libfabric);
    });
}

#[test]
fn only_what_promises_enough_receives_into_its_buffers() {
    with_provider(|libfabric| {
        let with = |caps| OPTIONS.with(|options| options.caps = OPTIONS.caps | caps);
        let ordered = OPTIONS.with(|options| options.msg_order = FI_ORDER_SAS);
        let unregistered = OPTIONS.with(|options| options.mr_mode = OPTIONS.mr_mode & !FI_MR_LOCAL);
        for (what, options, max_message, expected) in [
            ("everything", OPTIONS, MTU, true),
            ("tags", with(FI_TAGGED), MTU, false),
            ("atomics", with(FI_ATOMIC), MTU, false),
            ("directed receives", with(FI_DIRECTED_RECV), MTU, false),
            ("buffers for many", with(FI_MULTI_RECV), MTU, false),
            ("order", ordered, MTU, false),
            ("no registrations", unregistered, MTU, false),
            ("long messages", OPTIONS, MTU + 1, false),
        ] {
            let side = promising(libfabric, &options, max_message);
            side.enable();
            assert_eq!(is_zero_copy(&side), expected, "{what}");
            side.close(libfabric);
        }
        let opened = |max_message| {
            let side = Side::open(libfabric, &OPTIONS);
            assert_eq!(side.set(MAX_MSG_SIZE, max_message), 0);
            side.enable();
            let result = is_zero_copy(&side);
            side.close(libfabric);
            result
        };
        assert!(!opened(MTU), "shared memory is permitted");
        // SAFETY: the process has no other thread that reads the environment now.
        unsafe { std::env::set_var("FI_EFA_ENABLE_SHM_TRANSFER", "0") };
        assert!(opened(MTU), "nor by the environment");
        // SAFETY: as above.
        unsafe { std::env::set_var("FI_EFA_USE_ZCPY_RX", "0") };
        assert!(!opened(MTU), "it is turned off");
    });
}

#[test]
fn registration_is_required_only_where_it_helps() {
    with_provider(|libfabric| {
        for (options, expected) in [(OPTIONS, FI_MR_LOCAL), (Options::USUAL, 0)] {
            let side = Side::open(libfabric, &options);
            // SAFETY: an info has all attributes.
            let mode = unsafe { (*(*side.info).domain_attr).mr_mode } as u64;
            assert_eq!(mode & FI_MR_LOCAL, expected);
            side.close(libfabric);
        }
    });
}

#[test]
fn too_long_a_message_fails_both_sides() {
    with_provider(|libfabric| {
        let pair = pair(libfabric);
        let source = Memory::new(&pair.left, 128);
        let mut targets = [Memory::new(&pair.right, 64), Memory::new(&pair.right, 64)];
        let contexts = [1_usize, 2].map(|number| number as *mut c_void);
        for (target, context) in targets.iter_mut().zip(contexts) {
            assert_eq!(target.receive(&pair.right, context), 0);
        }
        source.send(&pair, 65);
        let failure = pair.right_failure();
        assert_eq!(
            (failure.err, failure.op_context),
            (libc::EMSGSIZE, contexts[0])
        );
        let failure = pair.until("a failure on the left", |pair| match pair.left.read() {
            Err(error) if error == AGAIN => None,
            other => {
                other.expect_err("the message does not fit");
                Some(pair.left.read_error())
            }
        });
        assert_eq!(failure.err, libc::EMSGSIZE);
        source.send(&pair, 64);
        assert_eq!(pair.right_completion().0.op_context, contexts[1]);
        pair.left_completion();
        targets.into_iter().for_each(Memory::end);
        source.end();
        pair.close(libfabric);
    });
}

#[test]
fn features_that_the_device_lacks_are_refused() {
    with_provider(|libfabric| {
        let pair = pair(libfabric);
        let endpoint = pair.right.endpoint;
        let mut target = Memory::new(&pair.right, 64);
        let (to, any, no) = (target.bytes.as_mut_ptr().cast(), FI_ADDR_UNSPEC, null_mut());
        let unregistered = call!(endpoint => msg.recv(to, 64, no, any, no));
        assert_eq!(unregistered, EINVAL);
        let tagged = call!(endpoint => tagged.recv(to, 64, target.descriptor(), any, 1, 0, no));
        assert_eq!(tagged, EOPNOTSUPP);
        let piece = piece(to, 32);
        let (pieces, mut descriptors) = ([piece; 2], [target.descriptor(); 2]);
        let mut message = fi_msg {
            msg_iov: pieces.as_ptr(),
            desc: descriptors.as_mut_ptr(),
            iov_count: 2,
            addr: any,
            ..fi_msg::default()
        };
        assert_eq!(call!(endpoint => msg.recvmsg(&message, 0)), EINVAL);
        message.iov_count = 1;
        for flags in [FI_PEEK, FI_PEEK | FI_CLAIM, FI_CLAIM, FI_MULTI_RECV] {
            let refused = call!(endpoint => msg.recvmsg(&message, flags));
            assert_eq!(refused, EOPNOTSUPP, "{flags:#x}");
        }
        assert_eq!(call!(endpoint => msg.recvmsg(&message, 0)), 0);
        assert_eq!(target.receive(&pair.right, to), 0);
        assert_eq!(pair.right.cancel(to), EOPNOTSUPP);
        // An endpoint can be closed while the device has receives, and nothing is reported of them.
        assert_eq!(pair.right.read().err(), Some(AGAIN));
        assert_eq!(close(pair.right.endpoint), 0);
        assert_eq!(pair.right.read().err(), Some(AGAIN));
        target.end();
        pair.right.close_rest(libfabric);
        pair.left.close(libfabric);
    });
}

#[test]
fn a_message_waits_for_a_receive() {
    with_provider(|libfabric| {
        let pair = pair(libfabric);
        let source = Memory::new(&pair.left, 64);
        let mut target = Memory::new(&pair.right, 64);
        source.send(&pair, 64);
        // The device refuses it meanwhile.
        for _ in 0..1000 {
            assert_eq!(pair.left.read().err(), Some(AGAIN));
            assert_eq!(pair.right.read().err(), Some(AGAIN));
        }
        assert_eq!(target.receive(&pair.right, null_mut()), 0);
        assert_eq!(pair.right_completion().0.len, 64);
        pair.left_completion();
        source.end();
        target.end();
        pair.close(libfabric);
    });
}

#[test]
fn a_message_with_header_is_refused_and_reported() {
    with_provider(|libfabric| {
        // Its messages do not wait for the handshake.
        let left = Side::open(libfabric, &Options::USUAL);
        let right = promising(libfabric, &OPTIONS, MTU);
        let events = right.event_queue(FI_WAIT_NONE);
        assert_eq!(bind(right.endpoint, events, 0), 0);
        let pair = Pair::of(left, right);
        assert!(!is_zero_copy(&pair.left) && is_zero_copy(&pair.right));
        let mut source = Memory::new(&pair.left, 64);
        let mut target = Memory::new(&pair.right, 64);
        assert_eq!(target.receive(&pair.right, null_mut()), 0);
        source.send(&pair, 64);
        pair.left_completion();
        let mut event = 0;
        pair.until("the message is refused", |pair| {
            assert_eq!(pair.right.read().err(), Some(AGAIN));
            let status = call!(events => ops.read(&mut event, null_mut(), 0, 0));
            (status != AGAIN).then(|| assert_eq!(status, -(FI_EAVAIL as isize)))
        });
        let mut entry = fi_eq_err_entry::default();
        let size = size_of_val(&entry) as isize;
        assert_eq!(call!(events => ops.readerr(&mut entry, 0)), size);
        assert_eq!(entry.fid, pair.right.endpoint.cast::<fid>());
        let expected = (libc::EINVAL, HEADER_AT_ZERO_COPY_RECEIVER);
        assert_eq!((entry.err, entry.prov_errno), expected);
        // By now the sender knows the receiver, so that the next message has no header. The
        // HANDSHAKE may still be on its way.
        let length = pair.until("a message arrives", |pair| {
            source.bytes.fill(3);
            source.send(pair, 64);
            pair.left_completion();
            match pair.right.read() {
                Ok((entry, _)) => Some(entry.len),
                Err(_) => None,
            }
        });
        assert_eq!(length, 64);
        assert_eq!(target.bytes, [3; 64]);
        source.end();
        target.end();
        assert_eq!(close(pair.right.endpoint), 0);
        assert_eq!(close(events), 0);
        pair.right.close_rest(libfabric);
        pair.left.close(libfabric);
    });
}
