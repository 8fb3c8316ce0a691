//! Shared receive queues and their tag lists, which only a device with connected queue pairs has.

use core::ffi::c_int;
use std::sync::Arc;

use efa_device_model::device;
use efa_device_model::device::connected::{
    MAX_TAG_OPERATIONS, SrqAttributes, TagRequest, TagRequestOperation, TaggedBuffer,
};

use super::connected::{buffer_list, post_receives};
use super::post::report;
use crate::abi::{
    IBV_OPS_SIGNALED, IBV_OPS_TM_SYNC, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD,
    IBV_SRQ_INIT_ATTR_TM, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC,
    IBV_SRQT_TM, IBV_WR_TAG_ADD, IBV_WR_TAG_DEL, IBV_WR_TAG_SYNC, ibv_context, ibv_ops_wr, ibv_pd,
    ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::ffi::errno::{self, Errno};
use crate::ffi::structures::{read_masked, write};
use crate::objects::device::Device;
use crate::objects::domain::Domain;
use crate::objects::shared_queue::{Options, SharedQueue};
use crate::registry::{COMP_QUEUES, CONTEXTS, DOMAINS, SHARED_QUEUES};

/// The error of a call that no device of this process supports, independent of its handles.
fn unless_absent(errno: Errno) -> Errno {
    let has_any = |device: &Device| device.profile.connected;
    match Device::all().iter().any(has_any) {
        true => errno,
        false => Errno::OPNOTSUPP,
    }
}

fn domain(pd: *mut ibv_pd) -> Result<Arc<Domain>, Errno> {
    let domain = DOMAINS.get(pd).map_err(unless_absent)?;
    match domain.context.device.profile.connected {
        true => Ok(domain),
        false => Err(Errno::OPNOTSUPP),
    }
}

fn queue(pointer: *const ibv_srq) -> Result<Arc<SharedQueue>, Errno> {
    SHARED_QUEUES.get(pointer).map_err(unless_absent)
}

/// Makes a basic shared receive queue. The granted sizes are written to `attr`.
///
/// Returns the queue, or null with `errno`: `EOPNOTSUPP` on a device without connected queue pairs,
/// `EINVAL` for an unknown `pd`, null attributes, or sizes beyond the device; or the device's
/// error.
///
/// # Safety
/// `attributes` is null or valid for reads.
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attributes: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    errno::pointer(domain(pd).and_then(|domain| {
        // SAFETY: valid by contract.
        let attributes = unsafe { attributes.as_ref() }.ok_or(Errno::INVAL)?;
        let options = Options {
            max_wr: attributes.attr.max_wr,
            max_sge: attributes.attr.max_sge,
            program_context: attributes.srq_context,
            tags: None,
        };
        Ok(SHARED_QUEUES.insert(SharedQueue::create(domain, options)?))
    }))
}

/// Makes a shared receive queue, which may match tags. Slot of `verbs_context`.
///
/// Returns the queue, or null with the `errno` of [`ibv_create_srq`]; `EOPNOTSUPP` also for other
/// types.
///
/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let create = || {
        let context = CONTEXTS.get(context)?;
        let attributes = read_masked!(attributes, ibv_srq_init_attr_ex, srq_type, {
            IBV_SRQ_INIT_ATTR_TYPE: srq_type,
            IBV_SRQ_INIT_ATTR_PD: pd,
            IBV_SRQ_INIT_ATTR_CQ: cq,
            IBV_SRQ_INIT_ATTR_TM: tm_cap,
        })?;
        let domain = domain(attributes.pd)?;
        if !Arc::ptr_eq(&domain.context, &context) {
            return Err(Errno::INVAL);
        }
        let has = |bit: u32| attributes.comp_mask & bit != 0;
        let tags = match attributes.srq_type {
            IBV_SRQT_BASIC => None,
            IBV_SRQT_TM => {
                if !has(IBV_SRQ_INIT_ATTR_TM) || !has(IBV_SRQ_INIT_ATTR_CQ) {
                    return Err(Errno::INVAL);
                }
                let queue = COMP_QUEUES.get(attributes.cq)?;
                let cap = attributes.tm_cap;
                let is_fit = Arc::ptr_eq(&queue.context, &context)
                    && cap.max_num_tags > 0
                    && cap.max_ops <= MAX_TAG_OPERATIONS;
                if !is_fit {
                    return Err(Errno::INVAL);
                }
                Some((queue, cap.max_num_tags))
            }
            _ => return Err(Errno::OPNOTSUPP),
        };
        let options = Options {
            max_wr: attributes.attr.max_wr,
            max_sge: attributes.attr.max_sge,
            program_context: attributes.srq_context,
            tags,
        };
        Ok(SHARED_QUEUES.insert(SharedQueue::create(domain, options)?))
    };
    errno::pointer(create())
}

/// Changes the attributes of a shared receive queue that `mask` selects (`ibv_srq_attr_mask`).
///
/// Returns 0 or an errno: `EOPNOTSUPP` on a device without connected queue pairs, `EINVAL` for a
/// pointer that is not a shared receive queue, an unknown bit, a limit beyond the size, or a size
/// that is too small for the posted receives.
///
/// # Safety
/// `attributes` is null or valid for reads.
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    pointer: *mut ibv_srq,
    attributes: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    errno::status(queue(pointer).and_then(|queue| {
        // SAFETY: valid by contract.
        let attributes = unsafe { attributes.as_ref() }.ok_or(Errno::INVAL)?;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::INVAL);
        }
        let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attributes.srq_limit);
        let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attributes.max_wr);
        let hardware = queue.context.hardware()?;
        Ok(hardware.with_device(|device| device.modify_srq(queue.id, limit, max_wr))??)
    }))
}

/// Writes the attributes of a shared receive queue.
///
/// Returns 0 or an errno: `EOPNOTSUPP` on a device without connected queue pairs, `EINVAL` for a
/// pointer that is not a shared receive queue or null attributes; or the device's error.
///
/// # Safety
/// `attributes` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_query_srq(
    pointer: *mut ibv_srq,
    attributes: *mut ibv_srq_attr,
) -> c_int {
    errno::status(queue(pointer).and_then(|queue| {
        let hardware = queue.context.hardware()?;
        let found = hardware.with_device(|device| device.query_srq(queue.id))??;
        let SrqAttributes {
            max_wr,
            max_sge,
            limit,
        } = found;
        let found = ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit: limit,
        };
        // SAFETY: valid by contract.
        unsafe { write(attributes, found) }
    }))
}

/// Destroys a shared receive queue. Waits until all asynchronous events that the program read are
/// acknowledged.
///
/// Returns 0 or an errno: `EOPNOTSUPP` on a device without connected queue pairs, `EINVAL` for a
/// pointer that is not a shared receive queue, `EBUSY` while queue pairs receive from the queue.
pub(crate) extern "C" fn ibv_destroy_srq(pointer: *mut ibv_srq) -> c_int {
    errno::status_of_end(|| {
        let remove = || SHARED_QUEUES.remove(pointer).map(drop);
        queue(pointer)?.destroy(remove)
    })
}

/// Posts receives to a shared receive queue. Called through the context's table.
///
/// Returns 0 or an errno. With an errno, `*bad` is the first request that was not posted: `EINVAL`
/// for a null or destroyed queue or too many buffers, `ENOMEM` for a full queue.
///
/// # Safety
/// `pointer` is null or a shared receive queue of this library. `requests` is null or a valid list
/// with valid scatter lists. `bad` is null or valid for a write.
pub(crate) unsafe extern "C" fn post_srq_recv(
    pointer: *mut ibv_srq,
    requests: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by contract.
    let Some(queue) = (unsafe { SharedQueue::from_pointer(pointer) }) else {
        // SAFETY: by contract.
        return unsafe { report(Err(Errno::INVAL), requests, bad) };
    };
    let post = |device: &mut device::Device, wr| device.post_srq_recv(queue.id, wr);
    // SAFETY: by contract.
    unsafe { post_receives(&queue.hardware, requests, bad, post) }
}

/// Executes operations on the tag list of a shared receive queue. The handle of an added tag is
/// written to its operation. Slot of `verbs_context`.
///
/// Returns 0 or an errno. With an errno, `*bad` is the first operation that was not executed:
/// `EINVAL` for a null or destroyed queue, one without tags, unknown operations or flags, too many
/// buffers, or a handle of no tag; `ENOMEM` for a full list.
///
/// # Safety
/// `pointer` is null or a shared receive queue of this library. `requests` is null or a valid list
/// with valid scatter lists. `bad` is null or valid for a write.
pub(crate) unsafe extern "C" fn post_srq_ops(
    pointer: *mut ibv_srq,
    requests: *mut ibv_ops_wr,
    bad: *mut *mut ibv_ops_wr,
) -> c_int {
    let mut next = requests;
    let mut post = || {
        // SAFETY: by contract.
        let queue = unsafe { SharedQueue::from_pointer(pointer) }.ok_or(Errno::INVAL)?;
        queue.hardware.post(|device| {
            // SAFETY: the list is valid by contract.
            while let Some(request) = unsafe { next.as_mut() } {
                // SAFETY: the scatter list is valid by contract.
                let tag_request = unsafe { tag_request(request) }?;
                let handle = device.post_tag_request(queue.id, &tag_request)?;
                if request.opcode == IBV_WR_TAG_ADD {
                    request.tm.handle = handle;
                }
                next = request.next;
            }
            Ok(())
        })?
    };
    let result = post();
    // SAFETY: by contract.
    unsafe { report(result, next, bad) }
}

/// An operation on a tag list, in the device's format.
///
/// # Safety
/// The scatter list of an operation that adds a tag is valid.
unsafe fn tag_request(request: &ibv_ops_wr) -> Result<TagRequest, Errno> {
    if request.flags & !(IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC) != 0 {
        return Err(Errno::INVAL);
    }
    let add = &request.tm.add;
    let operation = match request.opcode {
        IBV_WR_TAG_ADD => TagRequestOperation::Add(TaggedBuffer {
            wr_id: add.recv_wr_id,
            // SAFETY: by contract.
            buffers: unsafe { buffer_list(add.sg_list, add.num_sge) }?,
            tag: add.tag,
            mask: add.mask,
        }),
        IBV_WR_TAG_DEL => TagRequestOperation::Delete(request.tm.handle),
        IBV_WR_TAG_SYNC => TagRequestOperation::Sync,
        _ => return Err(Errno::INVAL),
    };
    let says_count = request.opcode == IBV_WR_TAG_SYNC || request.flags & IBV_OPS_TM_SYNC != 0;
    Ok(TagRequest {
        wr_id: request.wr_id,
        is_signaled: request.flags & IBV_OPS_SIGNALED != 0,
        handled: says_count.then_some(request.tm.unexpected_cnt),
        operation,
    })
}

/// Posting to a shared receive queue, which EFA does not have. Called through the context's table.
///
/// Returns `EOPNOTSUPP`, with `requests` in `*bad`.
///
/// # Safety
/// `bad` is null or valid for a write.
pub(crate) unsafe extern "C" fn no_srq_recv(
    _queue: *mut ibv_srq,
    requests: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by contract.
    unsafe { report(Err(Errno::OPNOTSUPP), requests, bad) }
}
