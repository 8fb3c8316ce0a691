//! Making, arming, acknowledging and destroying completion queues.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use efa_core::nic::DeviceCaps;

use super::{connected, poll};
use crate::abi::{
    EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF, EFADV_WC_EX_WITH_IS_UNSOLICITED, EFADV_WC_EX_WITH_SGID,
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_EX_WITH_TM_INFO, IBV_WC_STANDARD_FLAGS, efadv_cq_init_attr, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
};
use crate::ffi::errno::{self, Errno};
use crate::ffi::structures::read_masked;
use crate::objects::channel::Channel;
use crate::objects::comp_queue::{CompQueue, CompQueueC, Options};
use crate::objects::context::Context;
use crate::objects::handle::Handle;
use crate::registry::{CHANNELS, COMP_QUEUES, CONTEXTS, DOMAINS};

/// The channel of a new completion queue, if the program requests one. The completion vector is
/// checked as well.
fn channel(
    context: &Arc<Context>,
    channel: *mut ibv_comp_channel,
    vector: u32,
) -> Result<Option<Arc<Channel>>, Errno> {
    let profile = &context.device.profile;
    if vector >= profile.comp_vectors {
        return Err(Errno::INVAL);
    }
    if channel.is_null() {
        return Ok(None);
    }
    let channel = CHANNELS.get(channel)?;
    if !channel.belongs_to(context) {
        return Err(Errno::INVAL);
    }
    if !profile.cq_notifications {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(Some(channel))
}

/// Makes a completion queue with at least `entries` entries. `queue_context` is returned with its
/// events, which are sent to `channel` unless that is null.
///
/// Returns the queue, or null with `errno`: `EINVAL` for unknown handles or values that the device
/// does not have, `EOPNOTSUPP` for a channel if its generation has no events; or the device's
/// error.
pub(crate) extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    queue_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        let options = Options {
            entries: u32::try_from(entries).map_err(|_| Errno::INVAL)?,
            program_context: queue_context,
            channel: self::channel(
                &context,
                channel,
                u32::try_from(vector).map_err(|_| Errno::INVAL)?,
            )?,
            parent_domain: None,
        };
        let is_connected = context.device.profile.connected;
        let c = |base| c_structure(base, 0, 0, is_connected);
        let queue = CompQueue::create(context, options, c)?;
        Ok(COMP_QUEUES.insert(queue))
    }))
}

fn c_structure(base: ibv_cq, wc_flags: u64, efa_wc_flags: u64, is_connected: bool) -> CompQueueC {
    let ex = poll::extended(base, wc_flags);
    CompQueueC {
        ex: match is_connected {
            true => connected::extended(ex, wc_flags),
            false => ex,
        },
        efa: poll::efa_extension(efa_wc_flags),
    }
}

/// Makes a completion queue with the readers that `wc_flags` names. Slot of `verbs_context`.
///
/// Returns the queue, or null with the `errno` of [`ibv_create_cq`]; `EOPNOTSUPP` for options that
/// EFA does not have. The real number of entries is written to `cqe`.
///
/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names, and for
/// writes of `cqe`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let efa = efadv_cq_init_attr::default();
    // SAFETY: by contract.
    errno::pointer(unsafe { create_extended(context, attributes, &efa) })
}

/// Makes a completion queue with EFA's own options.
///
/// # Safety
/// `request` is null or valid for reads up to the last field that its `comp_mask` names, and for
/// writes of `cqe`.
pub(super) unsafe fn create_extended(
    context: *mut ibv_context,
    request: *mut ibv_cq_init_attr_ex,
    efa: &efadv_cq_init_attr,
) -> Result<*mut ibv_cq_ex, Errno> {
    let context = CONTEXTS.get(context)?;
    let attributes = read_masked!(request, ibv_cq_init_attr_ex, flags, {
        IBV_CQ_INIT_ATTR_MASK_FLAGS: flags,
        IBV_CQ_INIT_ATTR_MASK_PD: parent_domain,
    })?;
    let caps = context.device.profile.caps;
    let mut supported = 0;
    if caps.contains(DeviceCaps::CQ_WITH_SGID) {
        supported |= EFADV_WC_EX_WITH_SGID;
    }
    if caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV) {
        supported |= EFADV_WC_EX_WITH_IS_UNSOLICITED;
    }
    let is_connected = context.device.profile.connected;
    let known_wc_flags = match is_connected {
        true => IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO,
        false => IBV_WC_STANDARD_FLAGS,
    };
    if efa.wc_flags & !supported != 0
        // rdma-core checks no other flag of these.
        || efa.flags & EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF != 0
        || attributes.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || attributes.wc_flags & !known_wc_flags != 0
        // Zero if the program has not set the flags.
        || attributes.flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    let parent_domain = match attributes.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD {
        0 => None,
        _ => Some(DOMAINS.get(attributes.parent_domain)?),
    };
    if parent_domain
        .as_ref()
        .is_some_and(|domain| !domain.is_parent() || !Arc::ptr_eq(&domain.context, &context))
    {
        return Err(Errno::INVAL);
    }
    let options = Options {
        entries: attributes.cqe,
        program_context: attributes.cq_context,
        channel: channel(&context, attributes.channel, attributes.comp_vector)?,
        parent_domain,
    };
    let c = |base| c_structure(base, attributes.wc_flags, efa.wc_flags, is_connected);
    let queue = CompQueue::create(context, options, c)?;
    // SAFETY: by contract.
    unsafe { (*request).cqe = queue.entries() as u32 };
    Ok(COMP_QUEUES.insert(queue).cast())
}

/// Requests one event as soon as there is a completion that was not polled yet. Called through the
/// context's table.
///
/// Returns 0 or an errno: `EINVAL` for a null pointer, `EOPNOTSUPP` for events of solicited
/// completions only on a device without connected queue pairs.
///
/// # Safety
/// `queue` is null or a completion queue of this library.
pub(crate) unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: by contract.
    let Some(queue) = (unsafe { CompQueue::from_pointer(queue) }) else {
        return libc::EINVAL;
    };
    let solicited_only = solicited_only != 0;
    if solicited_only && !queue.context.device.profile.connected {
        return libc::EOPNOTSUPP;
    }
    queue.request_event(solicited_only);
    0
}

/// Acknowledges `events` events that the program read. Does nothing for a pointer that is not a
/// completion queue.
pub(crate) extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, events: c_uint) {
    if let Ok(queue) = COMP_QUEUES.get(queue) {
        queue.acknowledge_events(events.into());
    }
}

/// Destroys a completion queue. Waits until all events that the program read are acknowledged:
/// events of its channel and asynchronous events.
///
/// Returns 0 or an errno: `EBUSY` while queue pairs use the queue, `EINVAL` for a pointer that is
/// not a completion queue.
pub(crate) extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    errno::status_of_end(|| {
        let queue = COMP_QUEUES.get(queue)?;
        queue.destroy(|| COMP_QUEUES.remove(queue.c_pointer()).map(drop))
    })
}
