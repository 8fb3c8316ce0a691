//! Building work requests with the calls of `ibv_qp_ex`.
//!
//! A session holds the send queue's lock from `wr_start` to `wr_complete` or `wr_abort`. Calls
//! outside of a session do nothing.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;
use core::ptr::null_mut;

use efa_device_model::provider::SendQueue;

use super::post::{InlineCopy, LIST_ROOM, buffers, peer};
use crate::abi::{
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, VERBS_QP_EX, efadv_qp, ibv_ah, ibv_data_buf,
    ibv_qp, ibv_qp_ex, ibv_sge, verbs_qp,
};
use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;
use crate::objects::qp_plan::QpPlan;
use crate::objects::queue_pair::{QueuePair, QueuePairC};

/// The C structure of a queue pair, with the builders that were requested.
pub(super) fn extended(base: ibv_qp, plan: &QpPlan) -> verbs_qp {
    let ops = plan.send_ops;
    let wants = |bit: u64| ops.is_some_and(|ops| ops & bit != 0);
    let any = ops.is_some();
    let qp_ex = ibv_qp_ex {
        qp_base: base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: None,
        wr_atomic_fetch_add: None,
        wr_bind_mw: None,
        wr_local_inv: None,
        wr_rdma_read: wants(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read),
        wr_rdma_write: wants(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write),
        wr_rdma_write_imm: wants(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm),
        wr_send: wants(IBV_QP_EX_WITH_SEND).then_some(wr_send),
        wr_send_imm: wants(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm),
        wr_send_inv: None,
        wr_send_tso: None,
        wr_set_ud_addr: any.then_some(wr_set_ud_addr),
        wr_set_xrc_srqn: None,
        wr_set_inline_data: any.then_some(wr_set_inline_data),
        wr_set_inline_data_list: any.then_some(wr_set_inline_data_list),
        wr_set_sge: any.then_some(wr_set_sge),
        wr_set_sge_list: any.then_some(wr_set_sge_list),
        wr_start: any.then_some(wr_start),
        wr_complete: any.then_some(wr_complete),
        wr_abort: any.then_some(wr_abort),
        wr_atomic_write: None,
        wr_flush: None,
    };
    verbs_qp {
        qp_ex,
        comp_mask: if any { VERBS_QP_EX } else { 0 },
        xrcd: null_mut(),
    }
}

/// The part of the C structure that only EFA has.
pub(super) fn efa_extension(plan: &QpPlan) -> efadv_qp {
    efadv_qp {
        comp_mask: 0,
        wr_set_processing_hints: plan.processing_hints.then_some(wr_set_processing_hints),
    }
}

/// The offset of [`efa_extension`] in the handle.
pub(super) const EFA_EXTENSION: usize = offset_of!(QueuePairC, efa);

/// Runs `work` on the send queue of the session, with the program's `wr_id` and `wr_flags`.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
#[inline]
unsafe fn in_session(pair: *mut ibv_qp_ex, work: impl FnOnce(&mut SendQueue, u64, c_uint)) {
    // SAFETY: by contract.
    let Some(handle) = (unsafe { QueuePair::from_pointer(pair.cast()) }) else {
        return;
    };
    let locking = Locking::new();
    if let Some(mut guard) = handle.queues.send.resume(&locking)
        && let Some(sender) = guard.as_mut()
    {
        // SAFETY: the program writes these fields between its calls, not during one.
        let (wr_id, flags) = unsafe { ((*pair).wr_id, (*pair).wr_flags) };
        work(&mut sender.queue, wr_id, flags);
    }
}

/// Begins a session, which excludes other threads until [`wr_complete`] or [`wr_abort`].
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe extern "C" fn wr_start(pair: *mut ibv_qp_ex) {
    // SAFETY: by contract.
    if let Some(handle) = unsafe { QueuePair::from_pointer(pair.cast()) } {
        let locking = Locking::new();
        let mut guard = handle.queues.send.lock(&locking);
        if let Some(sender) = guard.as_mut() {
            sender.queue.start();
            guard.hold();
        }
    }
}

/// Ends the session and posts its requests.
///
/// Returns 0 or an errno; with an errno, nothing is posted: `EINVAL` without a session or for a
/// request that EFA does not have, `ENOMEM` for a full queue; or the device's error.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe extern "C" fn wr_complete(pair: *mut ibv_qp_ex) -> c_int {
    // SAFETY: by contract.
    let Some(handle) = (unsafe { QueuePair::from_pointer(pair.cast()) }) else {
        return libc::EINVAL;
    };
    let locking = Locking::new();
    let Some(mut guard) = handle.queues.send.resume(&locking) else {
        return libc::EINVAL;
    };
    let Some(sender) = guard.as_mut() else {
        guard.end();
        return libc::EINVAL;
    };
    let completed = sender.queue.complete();
    let result = completed
        .map_err(Errno::from)
        .and_then(|()| sender.hardware.ring_send_doorbell(handle.qpn, &locking));
    guard.end();
    match result {
        Ok(()) => 0,
        Err(errno) => errno.number(),
    }
}

/// Ends the session and posts nothing.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe extern "C" fn wr_abort(pair: *mut ibv_qp_ex) {
    // SAFETY: by contract.
    let handle = unsafe { QueuePair::from_pointer(pair.cast()) };
    let locking = Locking::new();
    if let Some(mut guard) = handle.and_then(|handle| handle.queues.send.resume(&locking)) {
        if let Some(sender) = guard.as_mut() {
            sender.queue.abort();
        }
        guard.end();
    }
}

/// Defines functions that begin a request in the session, by a method of the send queue.
macro_rules! begin {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*): $method:ident($($value:expr),*);)+) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// `pair` is null or a queue pair of this library.
        unsafe extern "C" fn $name(pair: *mut ibv_qp_ex, $($argument: $type),*) {
            // SAFETY: by contract.
            unsafe {
                in_session(pair, |queue, wr_id, flags| {
                    queue.$method(wr_id, flags, $($value),*)
                });
            }
        }
    )+ };
}

begin! {
    /// Begins a send.
    wr_send(): send();
    /// Begins a send with immediate data, big endian.
    wr_send_imm(immediate: u32): send_with_immediate(u32::from_be(immediate));
    /// Begins an RDMA read of the peer's memory at `address`.
    wr_rdma_read(rkey: u32, address: u64): rdma_read(rkey, address);
    /// Begins an RDMA write to the peer's memory at `address`.
    wr_rdma_write(rkey: u32, address: u64): rdma_write(rkey, address, None);
    /// Begins an RDMA write with immediate data, big endian.
    wr_rdma_write_imm(rkey: u32, address: u64, immediate: u32):
        rdma_write(rkey, address, Some(u32::from_be(immediate)));
}

/// Sets the peer of the request: an address handle and the number and Q-key of a queue pair there.
///
/// # Safety
/// `pair` is null or a queue pair of this library, `handle` null or an address handle of it.
unsafe extern "C" fn wr_set_ud_addr(
    pair: *mut ibv_qp_ex,
    handle: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
) {
    // SAFETY: by contract.
    let to = unsafe { peer(handle, qpn, qkey) };
    // SAFETY: by contract.
    unsafe { in_session(pair, |queue, _, _| queue.set_ud_addr(to)) };
}

/// Sets the data of the request: bytes that are copied before this returns. Too many bytes fail the
/// session.
///
/// # Safety
/// `pair` is null or a queue pair of this library; `address` is valid for reads of `length` bytes.
unsafe extern "C" fn wr_set_inline_data(pair: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    let list = ibv_data_buf {
        addr: address,
        length,
    };
    // SAFETY: by contract.
    unsafe { wr_set_inline_data_list(pair, 1, &raw const list) };
}

/// As [`wr_set_inline_data`], from several addresses.
///
/// # Safety
/// `pair` is null or a queue pair of this library; `list` is valid for reads of `count` entries
/// that refer to readable memory.
unsafe extern "C" fn wr_set_inline_data_list(
    pair: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let mut copy = InlineCopy::EMPTY;
    // SAFETY: by contract.
    let fits = unsafe { copy.push_list(list, count) };
    // SAFETY: by contract.
    unsafe {
        in_session(pair, |queue, _, _| match fits {
            true => queue.set_inline_data_list(&[copy.as_slice()]),
            // A null list, or one longer than any work request allows, is refused like data that is
            // too long for this request.
            false => queue.set_inline_data_list(&[copy.as_slice(), &[0; 128]]),
        });
    }
}

/// Sets the data of the request: registered memory, which the device checks when it sends.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe extern "C" fn wr_set_sge(pair: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    let list = ibv_sge {
        addr: address,
        length,
        lkey,
    };
    // SAFETY: one entry, on the stack.
    unsafe { wr_set_sge_list(pair, 1, &raw const list) };
}

/// As [`wr_set_sge`], from several addresses. More entries than the queue pair allows fail the
/// session.
///
/// # Safety
/// `pair` is null or a queue pair of this library; `list` is valid for reads of `count` entries.
unsafe extern "C" fn wr_set_sge_list(pair: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: by contract.
    let list = unsafe { buffers(list, count) };
    // SAFETY: by contract.
    unsafe {
        in_session(pair, |queue, _, _| match list {
            Some(list) => queue.set_sge_list(list),
            // A list longer than any device allows is refused like one too long for this one.
            None => queue.set_sge_list(&[Default::default(); LIST_ROOM]),
        });
    }
}

/// Accepts a hint about the use of the request, and ignores it. No pointer is followed.
extern "C" fn wr_set_processing_hints(_pair: *mut efadv_qp, _hints: u32) {}
