//! Misuse by the application is reported by an error number, and changes nothing. Other objects
//! than a call wants are in `newest`.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{
    AGAIN, NO_SHM, Options, STOCK, Side, bind, close, message, piece, with_pair, with_provider,
    with_provider_in, with_side,
};

const EINVAL: c_int = -libc::EINVAL;
const REFUSED: isize = EINVAL as isize;
const BAD_FLAGS: isize = -(FI_EBADFLAGS as isize);

/// A flag that no operation has.
const UNKNOWN: u64 = 1 << 50;

#[test]
fn an_object_in_use_stays_open() {
    with_side(&Options::USUAL, |side| {
        let busy = -libc::EBUSY;
        assert_eq!(close(side.fabric), busy);
        assert_eq!(close(side.domain), busy);
        assert_eq!(close(side.queue), busy);
        assert_eq!(close(side.vector), busy);
        // All of them work, and can be closed in the right order.
        side.enable();
        let own = side.insert(&side.name());
        assert_eq!(own, 0);
    });
}

#[test]
fn an_endpoint_that_lacks_something_says_what() {
    with_provider(|libfabric| {
        let side = Side::open(libfabric, &Options::USUAL);
        let bare = side.bare();
        // SAFETY: the endpoints are open.
        let enable = |endpoint: *mut fid_ep| unsafe {
            let fid = endpoint.cast::<fid>();
            ((*(*fid).ops).control.expect("the tables are complete"))(
                fid,
                FI_ENABLE as c_int,
                null_mut(),
            )
        };
        assert_eq!(enable(bare), -(FI_ENOAV as c_int));
        assert_eq!(bind(bare, side.vector, 0), 0);
        assert_eq!(enable(bare), -(FI_ENOCQ as c_int));
        assert_eq!(bind(bare, side.queue, 0), EINVAL, "no direction");
        assert_eq!(bind(bare, side.domain, 0), EINVAL, "not an object to bind");
        assert_eq!(bind(bare, null_mut::<fid>(), 0), EINVAL);
        let buffer = [0_u8; 8];
        let sent = call!(bare => msg.send(buffer.as_ptr().cast(), 8, null_mut(), 0, null_mut()));
        assert_eq!(sent, -(FI_EOPBADSTATE as isize), "it is not enabled");
        // Objects of another domain do not go with it.
        let other = Side::open(libfabric, &Options::USUAL);
        assert_ne!(bind(bare, other.vector, 0), 0);
        other.close(libfabric);
        assert_eq!(close(bare), 0);
        side.close(libfabric);
    });
}

#[test]
fn wrong_arguments_of_operations_are_refused() {
    with_pair(&Options::USUAL, |pair| {
        let (endpoint, no) = (pair.left.endpoint, null_mut());
        let mut buffer = [0_u8; 8];
        let memory: *mut c_void = buffer.as_mut_ptr().cast();
        for address in [pair.to_right + 1, 1 << 40, u64::MAX] {
            let status = call!(endpoint => msg.send(memory, 8, no, address, no));
            assert_eq!(status, REFUSED, "to {address:#x}");
        }
        let piece = piece(memory, 8);
        let mut pieces = [piece; 5];
        let list = pieces.as_mut_ptr();
        for count in [5, usize::MAX] {
            let status = call!(endpoint => msg.sendv(list, no.cast(), count, pair.to_right, no));
            assert_eq!(status, REFUSED, "{count} pieces");
            let status = call!(endpoint => msg.recvv(list, no.cast(), count, pair.to_right, no));
            assert_eq!(status, REFUSED, "{count} pieces");
        }
        let status = call!(endpoint => msg.sendv(null_mut(), no.cast(), 1, pair.to_right, no));
        assert_eq!(status, REFUSED, "no vector");
        let message = message(&piece, pair.to_right);
        for flags in [UNKNOWN, FI_TRIGGER, FI_FENCE, FI_MULTICAST, FI_PEEK] {
            assert_eq!(
                call!(endpoint => msg.sendmsg(&message, flags)),
                BAD_FLAGS,
                "{flags:#x}"
            );
        }
        assert_eq!(call!(endpoint => msg.recvmsg(&message, UNKNOWN)), BAD_FLAGS);
        assert_eq!(call!(endpoint => msg.sendmsg(null_mut(), 0)), REFUSED);
        // More than a packet cannot be injected; a size beyond the address space is an error too.
        let huge = call!(endpoint => msg.inject(memory, usize::MAX, pair.to_right));
        assert!(huge < 0 && huge != AGAIN, "{huge}");
        // A descriptor that is an object of another kind.
        let status =
            call!(endpoint => msg.send(memory, 8, pair.left.queue.cast(), pair.to_right, no));
        assert_eq!(status, REFUSED);
        // None of these operations was started, and the endpoint still works.
        assert!(matches!(pair.left.read(), Err(error) if error == AGAIN));
        pair.start(|| call!(pair.right.endpoint => msg.recv(memory, 8, no, pair.to_left, no)));
        pair.start(|| call!(endpoint => msg.inject(b"it works".as_ptr().cast(), 8, pair.to_right)));
        pair.right_completion();
        assert_eq!(&buffer, b"it works");
    });
}

#[test]
fn wrong_registrations_are_refused() {
    with_side(&Options::USUAL, |side| {
        let mut memory = [0_u8; 64];
        let buffer: *mut c_void = memory.as_mut_ptr().cast();
        let register = |buffer, length, access, flags, result| {
            // SAFETY: the domain is open; the rest is the tested misuse.
            unsafe {
                let reg = (*(*side.domain).mr).reg.expect("the tables are complete");
                reg(
                    side.domain.cast(),
                    buffer,
                    length,
                    access,
                    0,
                    0,
                    flags,
                    result,
                    null_mut(),
                )
            }
        };
        let mut region = null_mut();
        assert_eq!(register(buffer, 0, FI_RECV, 0, &mut region), EINVAL);
        assert_eq!(register(buffer, 64, FI_RECV, 0, null_mut()), EINVAL);
        assert_eq!(register(buffer, 64, UNKNOWN, 0, &mut region), EINVAL);
        let refused = register(buffer, 64, FI_RECV, UNKNOWN, &mut region);
        assert_eq!(refused as isize, BAD_FLAGS);
        for (buffer, length) in [(null_mut(), 64), (buffer, usize::MAX)] {
            assert!(
                register(buffer, length, FI_RECV, 0, &mut region) < 0,
                "{buffer:?} {length:#x}"
            );
        }
        assert!(region.is_null(), "nothing was written");
    });
}

/// The results of calls that copy a value to `room` bytes: their status, the returned length, and
/// whether they wrote no more than that.
fn copied_out(side: &Side, room: usize) -> Vec<(&'static str, c_int, usize, bool)> {
    let own = side.insert(&side.name());
    let mut bytes = [0xff_u8; 128];
    let mut copy = |what, call: &mut dyn FnMut(*mut c_void, &mut usize) -> c_int| {
        let mut length = room;
        bytes.fill(0xff);
        let status = call(bytes.as_mut_ptr().cast(), &mut length);
        let keeps_within = bytes[room..].iter().all(|byte| *byte == 0xff);
        (what, status, length, keeps_within)
    };
    let (endpoint, vector) = (side.endpoint, side.vector);
    // SAFETY: the objects are open, and there is room for `length` bytes.
    unsafe {
        let getname = (*(*endpoint).cm).getname.expect("complete");
        let lookup = (*(*vector).ops).lookup.expect("complete");
        let getopt = (*(*endpoint).ops).getopt.expect("complete");
        let level = FI_OPT_ENDPOINT as c_int;
        let option = FI_OPT_MIN_MULTI_RECV as c_int;
        vec![
            copy("fi_getname", &mut |to, length| {
                getname(endpoint.cast(), to, length)
            }),
            copy("fi_av_lookup", &mut |to, length| {
                lookup(vector, own, to, length)
            }),
            copy("fi_getopt", &mut |to, length| {
                getopt(endpoint.cast(), level, option, to, length)
            }),
        ]
    }
}

#[test]
fn short_buffers_get_the_needed_length() {
    with_provider_in(&[STOCK, NO_SHM], |libfabric| {
        let [ours, stock] = [c"efa_rs", c"efa"].map(|provider| {
            let options = Options::USUAL.with(|options| options.provider = provider);
            let side = Side::open(libfabric, &options);
            side.enable();
            let found = [0, 1, 8, 20, 31, 32, 33, 64].map(|room| (room, copied_out(&side, room)));
            side.close(libfabric);
            found
        });
        for ((room, ours), (_, stock)) in ours.iter().zip(&stock) {
            let (room, too_small) = (*room, -(FI_ETOOSMALL as c_int));
            let unless = |fits: bool| if fits { 0 } else { too_small };
            // An address is truncated, and the returned length is the whole one (`fi_av(3)`).
            let expected = [
                ("fi_getname", unless(room >= 32), 32, true),
                ("fi_av_lookup", 0, 32, true),
                ("fi_getopt", unless(room >= 8), 8, true),
            ];
            assert_eq!(ours[..], expected, "room for {room}");
            // Stock 1.17 returns the copied length, and writes options beyond their room.
            let [name, lookup, option] = expected;
            let lookup = (lookup.0, lookup.1, room.min(32), true);
            let option = (option.0, 0, 8, room >= 8);
            assert_eq!(stock[..], [name, lookup, option], "stock, room for {room}");
        }
    });
}
