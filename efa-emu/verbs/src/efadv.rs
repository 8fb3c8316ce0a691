//! The calls of libefa. Its own library re-exports them (package `efa-emu-efadv`).
//!
//! Programs pass the size of the structure that they were compiled with. Shorter ones than today's
//! are filled as far as they go, longer ones are accepted if what we do not know is zero.

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::null_mut;

use efa_device_model::device::QpRings;
use efa_device_model::device::queue::{CompletionRing, ReceiveRing, RequestIdSize};
use efa_device_model::profile::{INLINE_SIZE_WIDE, Profile};

use crate::abi::{
    EFADV_DEVICE_ATTR_CAPS_COMP_CNTR, EFADV_DEVICE_ATTR_CAPS_RDMA_READ,
    EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE, EFADV_SQ_DEPTH_ATTR_INLINE_WRITE,
    EFADV_WQ_CAPS_64_BIT_REQ_ID, IBV_QPT_DRIVER, efadv_ah_attr, efadv_cq, efadv_cq_attr,
    efadv_cq_init_attr, efadv_device_attr, efadv_mr_attr, efadv_qp, efadv_qp_init_attr,
    efadv_rq_depth_attr, efadv_sq_depth_attr, efadv_wq_attr, ibv_ah, ibv_context, ibv_cq,
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex,
};
use crate::address_handle::HANDLES;
use crate::comp_queue::{self, CompQueueC, QUEUES};
use crate::context::CONTEXTS;
use crate::errno::{self, Errno};
use crate::memory_region::REGIONS;
use crate::query::copy_out;
use crate::{builder, qp_plan, queue_pair};

/// Reads a structure of which the program knows the first `size` bytes. What it does not know is
/// zero; what we do not know has to be.
///
/// # Safety
/// `from` is null or valid for reads of `size` bytes, and zero bytes are a valid `T`.
pub(crate) unsafe fn copy_in<T: Copy + Default>(
    from: *const T,
    size: u32,
    shortest: usize,
) -> Result<T, Errno> {
    // SAFETY: passed on.
    let value = unsafe { copy_known(from, size, shortest) }?;
    let (known, size) = (size_of::<T>(), size as usize);
    // SAFETY: readable by contract.
    if (known..size).any(|offset| unsafe { from.cast::<u8>().add(offset).read() } != 0) {
        return Err(Errno::INVAL);
    }
    Ok(value)
}

/// As [`copy_in`], without a look at what we do not know.
///
/// # Safety
/// As for [`copy_in`].
unsafe fn copy_known<T: Copy + Default>(
    from: *const T,
    size: u32,
    shortest: usize,
) -> Result<T, Errno> {
    let size = size as usize;
    if from.is_null() || size < shortest {
        return Err(Errno::INVAL);
    }
    let known = size.min(size_of::<T>());
    let mut value = T::default();
    // SAFETY: `known` bytes are readable by contract; `T` is made of integers.
    unsafe {
        core::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
    }
    Ok(value)
}

/// Checks where an answer goes.
fn check_out<T>(to: *mut T, size: u32, shortest: usize) -> Result<usize, Errno> {
    let size = size as usize;
    if to.is_null() || size < shortest {
        Err(Errno::INVAL)
    } else {
        Ok(size)
    }
}

/// # Safety
/// `attributes` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_device(
    context: *mut ibv_context,
    attributes: *mut efadv_device_attr,
    size: u32,
) -> c_int {
    let context = match CONTEXTS.get(context) {
        Ok(context) => context,
        // Not a device of ours: libfabric then looks for another.
        Err(_) => return errno::status(Err(Errno::OPNOTSUPP)),
    };
    let shortest = offset_of!(efadv_device_attr, inline_buf_size_ex) + 1;
    errno::status(check_out(attributes, size, shortest).map(|size| {
        let profile = &context.device.profile;
        let mut caps = profile.caps.bits();
        if profile.max_comp_counters != 0 {
            caps |= EFADV_DEVICE_ATTR_CAPS_COMP_CNTR;
        }
        // Whoever does not know how large an RDMA request may be is not told that there are any.
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
        // SAFETY: by contract.
        unsafe { copy_out(&answer, attributes, size) };
    }))
}

/// # Safety
/// `attributes` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_ah(
    handle: *mut ibv_ah,
    attributes: *mut efadv_ah_attr,
    size: u32,
) -> c_int {
    errno::status(HANDLES.get(handle).and_then(|handle| {
        let size = check_out(attributes, size, offset_of!(efadv_ah_attr, ahn) + 1)?;
        let answer = efadv_ah_attr {
            ahn: handle.ahn.0,
            ..efadv_ah_attr::default()
        };
        // SAFETY: by contract.
        unsafe { copy_out(&answer, attributes, size) };
        Ok(())
    }))
}

/// The paths by which the device reaches the memory: it does not tell, and says so by validity bits
/// of 0.
///
/// # Safety
/// `attributes` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_mr(
    region: *mut ibv_mr,
    attributes: *mut efadv_mr_attr,
    size: u32,
) -> c_int {
    errno::status(REGIONS.get(region).and_then(|_| {
        let size = check_out(
            attributes,
            size,
            offset_of!(efadv_mr_attr, rdma_recv_ic_id) + 1,
        )?;
        // SAFETY: by contract.
        unsafe { copy_out(&efadv_mr_attr::default(), attributes, size) };
        Ok(())
    }))
}

/// Gives the client the queue's memory and doorbell. From now on it may read entries and write the
/// doorbell without a call, so the device looks at the doorbell by itself.
///
/// # Safety
/// `attributes` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_cq(
    queue: *mut ibv_cq,
    attributes: *mut efadv_cq_attr,
    size: u32,
) -> c_int {
    errno::status(QUEUES.get(queue).and_then(|queue| {
        let size = check_out(attributes, size, offset_of!(efadv_cq_attr, num_entries) + 1)?;
        let ring = queue.watch()?;
        let answer = efadv_cq_attr {
            comp_mask: 0,
            buffer: ring.direct().ok_or(Errno::INVAL)?.as_ptr(),
            entry_size: CompletionRing::ENTRY_SIZE as u32,
            num_entries: ring.entries(),
            doorbell: ring.doorbell().as_ptr(),
        };
        // SAFETY: by contract.
        unsafe { copy_out(&answer, attributes, size) };
        Ok(())
    }))
}

/// Gives the client the memory and doorbells of a queue pair's queues, as [`efadv_query_cq`].
///
/// # Safety
/// `send` and `receive` are null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_query_qp_wqs(
    pair: *mut ibv_qp,
    send: *mut efadv_wq_attr,
    receive: *mut efadv_wq_attr,
    size: u32,
) -> c_int {
    errno::status(queue_pair::PAIRS.get(pair).and_then(|pair| {
        let shortest = offset_of!(efadv_wq_attr, max_batch) + 1;
        let size_in_bytes = check_out(send, size, shortest)?;
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
            match pair.request_ids() {
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
            copy_out(&of_send, send, size_in_bytes);
            copy_out(&of_receive, receive, size_in_bytes);
        }
        Ok(())
    }))
}

/// # Safety
/// `attributes` is as for `comp_queue::create_extended`, `efa` null or valid for reads of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    size: u32,
) -> *mut ibv_cq_ex {
    let shortest = offset_of!(efadv_cq_init_attr, wc_flags) + 1;
    // SAFETY: by contract.
    let options = unsafe { copy_in(efa, size, shortest) };
    errno::pointer(options.and_then(|options| match options.comp_mask {
        // SAFETY: by contract.
        0 => unsafe { comp_queue::create_extended(context, attributes, &options) },
        _ => Err(Errno::INVAL),
    }))
}

/// Cannot fail, except for a null pointer.
pub(crate) extern "C" fn efadv_cq_from_ibv_cq_ex(queue: *mut ibv_cq_ex) -> *mut efadv_cq {
    if queue.is_null() {
        return null_mut();
    }
    queue.wrapping_byte_add(offset_of!(CompQueueC, efa)).cast()
}

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

/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names, and for writes of
/// `cap`; `efa` is null or valid for reads of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    size: u32,
) -> *mut ibv_qp {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        let shortest = offset_of!(efadv_qp_init_attr, driver_qp_type) + 1;
        // SAFETY: by contract.
        let options = unsafe { copy_in(efa, size, shortest) }?;
        // SAFETY: by contract.
        let mut known = unsafe { queue_pair::read_request(attributes) }.ok_or(Errno::INVAL)?;
        if known.qp_type != IBV_QPT_DRIVER || options.comp_mask != 0 || options.reserved != 0 {
            return Err(Errno::INVAL);
        }
        let pair = queue_pair::create(&context, &mut known, &options)?;
        // SAFETY: by contract.
        unsafe { (*attributes).cap = known.cap };
        Ok(pair)
    }))
}

/// Cannot fail, except for a null pointer.
pub(crate) extern "C" fn efadv_qp_from_ibv_qp_ex(pair: *mut ibv_qp_ex) -> *mut efadv_qp {
    if pair.is_null() {
        return null_mut();
    }
    pair.wrapping_byte_add(builder::EFA_EXTENSION).cast()
}

/// Runs `depth` for a call that returns a depth or a negative errno.
fn depth(context: *mut ibv_context, depth: impl FnOnce(&Profile) -> Result<u32, Errno>) -> c_int {
    let result = match CONTEXTS.get(context) {
        Ok(context) => depth(&context.device.profile),
        Err(_) => Err(Errno::OPNOTSUPP),
    };
    match result {
        Ok(depth) => depth as c_int,
        Err(errno) => -errno.number(),
    }
}

/// The deepest send queue for work requests of this shape, or a negative errno.
///
/// # Safety
/// `attributes` is null or valid for reads of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_get_max_sq_depth(
    context: *mut ibv_context,
    attributes: *mut efadv_sq_depth_attr,
    size: u32,
) -> c_int {
    depth(context, |profile| {
        let shortest = offset_of!(efadv_sq_depth_attr, max_inline_data) + 1;
        // SAFETY: by contract.
        let wanted = unsafe { copy_known(attributes, size, shortest) }?;
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

/// The deepest receive queue for receives of this shape, or a negative errno.
///
/// # Safety
/// `attributes` is null or valid for reads of `size` bytes.
pub(crate) unsafe extern "C" fn efadv_get_max_rq_depth(
    context: *mut ibv_context,
    attributes: *mut efadv_rq_depth_attr,
    size: u32,
) -> c_int {
    depth(context, |profile| {
        let shortest = offset_of!(efadv_rq_depth_attr, max_recv_sge) + 1;
        // SAFETY: by contract.
        let wanted = unsafe { copy_known(attributes, size, shortest) }?;
        if wanted.comp_mask != 0 || wanted.max_recv_sge > profile.max_rq_sge {
            return Err(Errno::INVAL);
        }
        Ok(qp_plan::max_recv_wr(profile, wanted.max_recv_sge))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_of_other_ages_are_read() {
        #[repr(C)]
        struct Tomorrow {
            today: efadv_qp_init_attr,
            more: u64,
        }
        let mut structure = Tomorrow {
            today: efadv_qp_init_attr {
                flags: 3,
                wr_flags: 1,
                ..Default::default()
            },
            more: 0,
        };
        let pointer = (&raw const structure).cast::<efadv_qp_init_attr>();
        let read = |size| {
            // SAFETY: the structure has 32 bytes.
            unsafe { copy_in(pointer, size, 9) }.map(|value| (value.flags, value.wr_flags))
        };
        assert_eq!(read(16), Ok((3, 0)));
        assert_eq!(read(24), Ok((3, 1)));
        assert_eq!(read(32), Ok((3, 1)));
        assert_eq!(read(8), Err(Errno::INVAL));
        structure.more = 1;
        let pointer = (&raw const structure).cast::<efadv_qp_init_attr>();
        // SAFETY: as above.
        assert_eq!(unsafe { copy_in(pointer, 32, 9) }.err(), Some(Errno::INVAL));
    }
}
