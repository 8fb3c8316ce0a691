//! The calls of libefa. A separate library re-exports them (package `efa-emu-efadv`).
//!
//! Programs pass the size of the structure that they were compiled with. A shorter structure than
//! today's is filled up to its size; a longer one is accepted if its unknown bytes are zero.

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::null_mut;

use efa_device_model::device::QpRings;
use efa_device_model::device::queue::{CompletionRing, ReceiveRing, RequestIdSize};
use efa_device_model::limits::INLINE_SIZE_WIDE;
use efa_device_model::profile::Profile;

use super::{builder, comp_queue, queue_pair};
use crate::abi::{
    EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE,
    EFADV_SQ_DEPTH_ATTR_INLINE_WRITE, EFADV_WQ_CAPS_64_BIT_REQ_ID, IBV_QPT_DRIVER, efadv_ah_attr,
    efadv_cq, efadv_cq_attr, efadv_cq_init_attr, efadv_device_attr, efadv_mr_attr, efadv_qp,
    efadv_qp_init_attr, efadv_rq_depth_attr, efadv_sq_depth_attr, efadv_wq_attr, ibv_ah,
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::ffi::errno::{self, Errno};
use crate::ffi::structures::{read_known, read_sized, write_sized};
use crate::objects::comp_queue::CompQueueC;
use crate::objects::context::Context;
use crate::objects::qp_plan;
use crate::registry::{ADDRESS_HANDLES, COMP_QUEUES, CONTEXTS, QUEUE_PAIRS, REGIONS};

/// The bytes of a structure up to the end of a field: the size of the shortest version.
macro_rules! up_to {
    ($type:ty, $field:ident) => {
        offset_of!($type, $field) + 1
    };
}

/// The device of a context, if it is an EFA. libefa supports no other device, and clients such as
/// UCX identify an EFA by this.
fn efa_profile(context: &Context) -> Result<&Profile, Errno> {
    match context.device.profile.connected {
        false => Ok(&context.device.profile),
        true => Err(Errno::OPNOTSUPP),
    }
}

/// Writes the attributes of the device that only EFA has.
///
/// Returns 0 or an errno: `EOPNOTSUPP` for a context of another library or a device other than an
/// EFA, so that clients try another device; `EINVAL` for null attributes or too few bytes.
///
/// # Safety
/// `attributes` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_device(
    context: *mut ibv_context,
    attributes: *mut efadv_device_attr,
    size: u32,
) -> c_int {
    let context = CONTEXTS.get(context).map_err(|_| Errno::OPNOTSUPP);
    errno::status(context.and_then(|context| {
        let profile = efa_profile(&context)?;
        let size = size as usize;
        let mut caps = profile.device_caps();
        // A structure without the field of the largest RDMA size reports no RDMA.
        if size <= offset_of!(efadv_device_attr, max_rdma_size) {
            caps &= !(EFADV_DEVICE_ATTR_CAPS_RDMA_READ | EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE);
        }
        let answer = efadv_device_attr {
            comp_mask: 0,
            max_sq_wr: profile.max_sq_wr,
            max_rq_wr: profile.max_rq_wr,
            max_sq_sge: profile.max_sq_sge as u16,
            max_rq_sge: profile.max_rq_sge as u16,
            inline_buf_size: profile.inline_size as u16,
            inline_buf_size_ex: INLINE_SIZE_WIDE as u16,
            device_caps: caps,
            max_rdma_size: profile.max_rdma_size,
        };
        let shortest = up_to!(efadv_device_attr, inline_buf_size_ex);
        // SAFETY: by contract.
        unsafe { write_sized(attributes, &answer, size, shortest) }
    }))
}

/// Writes the number of an address handle.
///
/// Returns 0 or an errno: `EINVAL` for a pointer that is not a handle, null attributes or too few
/// bytes.
///
/// # Safety
/// `attributes` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_ah(
    handle: *mut ibv_ah,
    attributes: *mut efadv_ah_attr,
    size: u32,
) -> c_int {
    errno::status(ADDRESS_HANDLES.get(handle).and_then(|handle| {
        efa_profile(&handle.domain.context)?;
        let answer = efadv_ah_attr {
            ahn: handle.ahn.0,
            ..efadv_ah_attr::default()
        };
        let shortest = up_to!(efadv_ah_attr, ahn);
        // SAFETY: by contract.
        unsafe { write_sized(attributes, &answer, size as usize, shortest) }
    }))
}

/// Writes the paths by which the device reaches the memory. They are not known: the validity bits
/// are 0.
///
/// Returns 0 or an errno: `EINVAL` for a pointer that is not a region, null attributes or too few
/// bytes.
///
/// # Safety
/// `attributes` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_mr(
    region: *mut ibv_mr,
    attributes: *mut efadv_mr_attr,
    size: u32,
) -> c_int {
    errno::status(REGIONS.get(region).and_then(|region| {
        efa_profile(&region.domain.context)?;
        let shortest = up_to!(efadv_mr_attr, rdma_recv_ic_id);
        // SAFETY: by contract.
        unsafe {
            write_sized(
                attributes,
                &efadv_mr_attr::default(),
                size as usize,
                shortest,
            )
        }
    }))
}

/// Checks the destination of an answer before the object is changed.
fn check_out<T>(to: *mut T, size: usize, shortest: usize) -> Result<(), Errno> {
    match to.is_null() || size < shortest {
        true => Err(Errno::INVAL),
        false => Ok(()),
    }
}

/// Writes the addresses of the memory and the doorbell of a completion queue. From now on the
/// client may read entries and write the doorbell without a call, so the device polls the doorbell
/// by itself.
///
/// Returns 0 or an errno: `EINVAL` for a pointer that is not a completion queue, null attributes,
/// too few bytes, or a queue that was destroyed; or the device's error.
///
/// # Safety
/// `attributes` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_cq(
    queue: *mut ibv_cq,
    attributes: *mut efadv_cq_attr,
    size: u32,
) -> c_int {
    errno::status(COMP_QUEUES.get(queue).and_then(|queue| {
        efa_profile(&queue.context)?;
        let (size, shortest) = (size as usize, up_to!(efadv_cq_attr, num_entries));
        check_out(attributes, size, shortest)?;
        let ring = queue.watch()?;
        let answer = efadv_cq_attr {
            comp_mask: 0,
            buffer: ring.direct().ok_or(Errno::INVAL)?.as_ptr(),
            entry_size: CompletionRing::ENTRY_SIZE as u32,
            num_entries: ring.entries(),
            doorbell: ring.doorbell().as_ptr(),
        };
        // SAFETY: by contract.
        unsafe { write_sized(attributes, &answer, size, shortest) }
    }))
}

/// Writes the addresses of the memory and the doorbells of a queue pair's queues. From now on the
/// client may use them without a call, so the device polls the doorbells by itself.
///
/// Returns 0 or an errno: `EINVAL` for a pointer that is not a queue pair, null attributes, or too
/// few bytes; or the device's error.
///
/// # Safety
/// `send` and `receive` are null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_qp_wqs(
    pair: *mut ibv_qp,
    send: *mut efadv_wq_attr,
    receive: *mut efadv_wq_attr,
    size: u32,
) -> c_int {
    errno::status(QUEUE_PAIRS.get(pair).and_then(|pair| {
        efa_profile(&pair.context)?;
        let (size, shortest) = (size as usize, up_to!(efadv_wq_attr, max_batch));
        check_out(send, size, shortest)?;
        check_out(receive, size, shortest)?;
        let QpRings {
            send: send_ring,
            recv: receive_ring,
        } = &pair.watch()?;
        let send_doorbell = send_ring.direct_doorbell().ok_or(Errno::INVAL)?;
        let answer = |buffer, entry_size: usize, num_entries, doorbell, caps| efadv_wq_attr {
            comp_mask: 0,
            buffer,
            entry_size: entry_size as u32,
            num_entries,
            doorbell,
            max_batch: num_entries,
            caps,
            reserved: [0; 2],
        };
        let of_send = answer(
            send_ring.memory().as_ptr(),
            send_ring.wqe_size().bytes(),
            send_ring.entries(),
            send_doorbell.doorbell().as_ptr(),
            match pair.plan.request_ids {
                RequestIdSize::Bits16 => 0,
                RequestIdSize::Bits64 => EFADV_WQ_CAPS_64_BIT_REQ_ID,
            },
        );
        let of_receive = answer(
            receive_ring.memory().as_ptr(),
            ReceiveRing::ENTRY_SIZE,
            receive_ring.entries(),
            receive_ring.doorbell().as_ptr(),
            0,
        );
        // SAFETY: by contract.
        unsafe {
            write_sized(send, &of_send, size, shortest)?;
            write_sized(receive, &of_receive, size, shortest)
        }
    }))
}

/// Makes a completion queue with EFA's own options.
///
/// Returns the queue, or null with the `errno` of [`ibv_create_cq`](comp_queue::ibv_create_cq);
/// `EINVAL` also for options that are null, too short, or of a newer version.
///
/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names, and for
/// writes of `cqe`; `efa` is null or valid for reads of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    size: u32,
) -> *mut ibv_cq_ex {
    // SAFETY: by contract.
    let options = unsafe { read_sized(efa, size, up_to!(efadv_cq_init_attr, wc_flags)) };
    let is_other = CONTEXTS
        .get(context)
        .map(|context| efa_profile(&context).err());
    if let Ok(Some(errno)) = is_other {
        return errno::pointer(Err(errno));
    }
    errno::pointer(options.and_then(|options| match options.comp_mask {
        // SAFETY: by contract.
        0 => unsafe { comp_queue::create_extended(context, attributes, &options) },
        _ => Err(Errno::INVAL),
    }))
}

/// Returns EFA's part of a completion queue, null for a null pointer. The pointer is not followed.
pub(crate) extern "C" fn efadv_cq_from_ibv_cq_ex(queue: *mut ibv_cq_ex) -> *mut efadv_cq {
    if queue.is_null() {
        return null_mut();
    }
    queue.wrapping_byte_add(offset_of!(CompQueueC, efa)).cast()
}

/// Makes an SRD queue pair for a program that uses only the basic attributes. The granted sizes are
/// written to `cap`.
///
/// Returns the queue pair, or null with the `errno` of
/// [`ibv_create_qp`](queue_pair::ibv_create_qp); `EINVAL` for another `qp_type`, `EOPNOTSUPP` for
/// another `driver_qp_type`.
///
/// # Safety
/// `attributes` is null or valid for reads and writes.
pub(crate) unsafe extern "C" fn efadv_create_driver_qp(
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
    driver_qp_type: u32,
) -> *mut ibv_qp {
    // SAFETY: by contract.
    let attributes = unsafe { attributes.as_mut() };
    if attributes
        .as_ref()
        .is_some_and(|attributes| attributes.qp_type != IBV_QPT_DRIVER)
    {
        return errno::pointer(Err(Errno::INVAL));
    }
    let efa = efadv_qp_init_attr {
        driver_qp_type,
        ..efadv_qp_init_attr::default()
    };
    errno::pointer(queue_pair::create_basic(pd, attributes, &efa))
}

/// Makes an SRD queue pair with the builders that `send_ops_flags` names, and EFA's own options.
/// The granted sizes are written to `cap`.
///
/// Returns the queue pair, or null with the `errno` of [`efadv_create_driver_qp`]; `EINVAL` also
/// for options that are null, too short, or of a newer version.
///
/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names, and for
/// writes of `cap`; `efa` is null or valid for reads of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    size: u32,
) -> *mut ibv_qp {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        efa_profile(&context)?;
        // SAFETY: by contract.
        let efa = unsafe { read_sized(efa, size, up_to!(efadv_qp_init_attr, driver_qp_type)) }?;
        let check = |qp_type| match (qp_type, efa.comp_mask, efa.reserved) {
            (IBV_QPT_DRIVER, 0, 0) => Ok(()),
            _ => Err(Errno::INVAL),
        };
        // SAFETY: by contract.
        unsafe { queue_pair::create_extended(&context, attributes, &efa, check) }
    }))
}

/// Returns EFA's part of a queue pair, null for a null pointer. The pointer is not followed.
pub(crate) extern "C" fn efadv_qp_from_ibv_qp_ex(pair: *mut ibv_qp_ex) -> *mut efadv_qp {
    if pair.is_null() {
        return null_mut();
    }
    pair.wrapping_byte_add(builder::EFA_EXTENSION).cast()
}

/// Runs `depth` for a call that returns a depth or a negative errno.
fn depth(context: *mut ibv_context, depth: impl FnOnce(&Profile) -> Result<u32, Errno>) -> c_int {
    let result = match CONTEXTS.get(context) {
        Ok(context) => efa_profile(&context).and_then(depth),
        Err(_) => Err(Errno::OPNOTSUPP),
    };
    match result {
        Ok(depth) => depth as c_int,
        Err(errno) => -errno.number(),
    }
}

/// Returns the depth of the deepest send queue for work requests of this shape, or a negative
/// errno: `EOPNOTSUPP` for a context of another library, `EINVAL` for attributes that are null, too
/// short, or beyond the device.
///
/// # Safety
/// `attributes` is null or valid for reads of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_get_max_sq_depth(
    context: *mut ibv_context,
    attributes: *mut efadv_sq_depth_attr,
    size: u32,
) -> c_int {
    depth(context, |profile| {
        let shortest = up_to!(efadv_sq_depth_attr, max_inline_data);
        // SAFETY: by contract.
        let wanted = unsafe { read_known(attributes, size, shortest) }?;
        if wanted.comp_mask != 0
            || wanted.max_send_sge > profile.max_sq_sge
            || wanted.max_rdma_sge > profile.max_rdma_sge
            || wanted.max_inline_data > INLINE_SIZE_WIDE
        {
            return Err(Errno::INVAL);
        }
        let inline_write = wanted.flags & EFADV_SQ_DEPTH_ATTR_INLINE_WRITE != 0;
        let wqe_size = qp_plan::wqe_size(profile, wanted.max_inline_data, inline_write);
        Ok(qp_plan::max_send_wr(profile, wqe_size))
    })
}

/// Returns the depth of the deepest receive queue for receives of this shape, or a negative errno
/// as [`efadv_get_max_sq_depth`].
///
/// # Safety
/// `attributes` is null or valid for reads of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_get_max_rq_depth(
    context: *mut ibv_context,
    attributes: *mut efadv_rq_depth_attr,
    size: u32,
) -> c_int {
    depth(context, |profile| {
        let shortest = up_to!(efadv_rq_depth_attr, max_recv_sge);
        // SAFETY: by contract.
        let wanted = unsafe { read_known(attributes, size, shortest) }?;
        if wanted.comp_mask != 0 || wanted.max_recv_sge > profile.max_rq_sge {
            return Err(Errno::INVAL);
        }
        Ok(qp_plan::max_recv_wr(profile, wanted.max_recv_sge))
    })
}
