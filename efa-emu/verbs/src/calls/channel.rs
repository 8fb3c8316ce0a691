//! Completion channels.

use core::ffi::{c_int, c_void};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::ffi::errno::{self, Errno};
use crate::objects::channel::Channel;
use crate::objects::handle::Handle;
use crate::registry::{CHANNELS, COMP_QUEUES, CONTEXTS};

/// Makes a completion channel.
///
/// Returns the channel, or null with `errno`: `EINVAL` for an unknown context, or the reason why
/// there is no descriptor.
pub(crate) extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    let channel = CONTEXTS.get(context).and_then(Channel::create);
    errno::pointer(channel.map(|channel| CHANNELS.insert(channel)))
}

/// Destroys a completion channel and its descriptor.
///
/// Returns 0 or an errno: `EBUSY` while completion queues use the channel, `EINVAL` for a pointer
/// that is not a channel.
pub(crate) extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    errno::status_of_end(|| {
        let remove = || CHANNELS.remove(channel).map(drop);
        CHANNELS.get(channel)?.destroy(remove)
    })
}

/// Waits for the next event of the channel, unless its descriptor is non-blocking, and writes the
/// completion queue that raised it to `*queue`, its `cq_context` to `*queue_context`. Each event
/// that was read has to be acknowledged before its completion queue can be destroyed.
///
/// Returns 0, or -1 with `errno`: `EAGAIN` if there is no event and the descriptor is non-blocking,
/// `EINVAL` for a pointer that is null or not a channel.
///
/// # Safety
/// `queue` and `queue_context` are null or valid for writes.
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    queue_context: *mut *mut c_void,
) -> c_int {
    let result = CHANNELS.get(channel).and_then(|channel| {
        if queue.is_null() || queue_context.is_null() {
            return Err(Errno::INVAL);
        }
        // Counted immediately: a completion queue that is being destroyed finds the event either in
        // the channel or in its count.
        let queue = channel.events()?.take(|address| {
            let queue = COMP_QUEUES.get(address.pointer()).ok()?;
            queue.count_event();
            Some(queue)
        })?;
        queue.catch_up();
        Ok((queue.c_pointer(), queue.program_context()))
    });
    errno::zero_or_minus_one(result.map(|(found, context)| {
        // SAFETY: valid by contract.
        unsafe {
            queue.write(found);
            queue_context.write(context);
        }
    }))
}
