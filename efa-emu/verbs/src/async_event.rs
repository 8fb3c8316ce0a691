//! Asynchronous events. The device raises none: a read of the descriptor blocks, or is `EAGAIN` if
//! the program has made it non-blocking.

use core::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::abi::{ibv_async_event, ibv_context};
use crate::context::CONTEXTS;
use crate::errno::{self, Errno};

/// Takes one event from a counter made by [`crate::context::event_fd`], waiting for it unless the
/// descriptor is non-blocking.
fn take_one(descriptor: &OwnedFd) -> Result<(), Errno> {
    let mut count = 0u64;
    // SAFETY: `count` has room for the 8 bytes that an event counter delivers.
    let read = unsafe {
        libc::read(
            descriptor.as_raw_fd(),
            (&raw mut count).cast(),
            size_of::<u64>(),
        )
    };
    if read == size_of::<u64>() as isize {
        Ok(())
    } else {
        Err(Errno::last())
    }
}

/// Waits for an event on the context.
pub(crate) extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    _event: *mut ibv_async_event,
) -> c_int {
    errno::zero_or_minus_one(CONTEXTS.get(context).and_then(|context| {
        take_one(&*context.async_fd()?)?;
        // A count without an event was written by the program itself.
        Err(Errno::AGAIN)
    }))
}

pub(crate) extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {}
