//! Reading completions: the classic call and the session of several calls.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use efa_core::address::Ahn;
use efa_device_model::provider::Completion;

use crate::abi::{
    EFADV_WC_EX_WITH_IS_UNSOLICITED, EFADV_WC_EX_WITH_SGID, IBV_WC_EX_WITH_BYTE_LEN,
    IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL,
    IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, efadv_cq, ibv_cq, ibv_cq_ex, ibv_gid, ibv_wc,
};
use crate::ffi::interrupted::Locking;
use crate::objects::comp_queue::{CompQueue, CompQueueC};
use crate::objects::hardware::Hardware;
use crate::objects::queues::PolledQueue;

/// The C structure of a completion queue, used by both ways of polling. As with rdma-core, it has
/// the readers that the program requested by `wc_flags`, and null pointers in place of the others.
pub(super) fn extended(base: ibv_cq, wc_flags: u64) -> ibv_cq_ex {
    let wants = |flag: u64| wc_flags & flag != 0;
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: wants(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len),
        read_imm_data: wants(IBV_WC_EX_WITH_IMM).then_some(read_imm_data),
        read_qp_num: wants(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num),
        read_src_qp: wants(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: wants(IBV_WC_EX_WITH_SLID).then_some(read_slid),
        read_sl: wants(IBV_WC_EX_WITH_SL).then_some(read_zero),
        read_dlid_path_bits: wants(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_zero),
        read_completion_ts: None,
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns: None,
    }
}

/// The part of the C structure that only EFA has.
pub(super) fn efa_extension(wc_flags: u64) -> efadv_cq {
    let wants = |flag: u64| wc_flags & flag != 0;
    efadv_cq {
        comp_mask: 0,
        wc_read_sgid: wants(EFADV_WC_EX_WITH_SGID).then_some(wc_read_sgid),
        wc_is_unsolicited: wants(EFADV_WC_EX_WITH_IS_UNSOLICITED).then_some(wc_is_unsolicited),
    }
}

/// The number of the sender's address handle as verbs report it.
fn slid(completion: &Completion) -> u16 {
    completion.ahn().map_or(Ahn::UNKNOWN, |ahn| ahn.0)
}

pub(super) fn to_wc(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.ibv_wc_status() as c_int,
        opcode: completion.opcode().ibv_wc_opcode() as c_int,
        vendor_err: completion.code().into(),
        byte_len: completion.byte_len(),
        imm_data: completion.immediate().unwrap_or(0).to_be(),
        qp_num: completion.qp_num().0.into(),
        src_qp: completion.src_qp().0.into(),
        wc_flags: completion.flags().bits(),
        slid: slid(completion),
        ..ibv_wc::default()
    }
}

/// If there is no completion, runs the device in this thread: on a busy machine that is faster than
/// waiting for the device's own thread.
#[inline(always)]
fn work_if_empty(polled: &PolledQueue, locking: &Locking) {
    if !polled.completions.has_unread() {
        polled.hardware.progress(locking);
    }
}

/// The device, if a poll without a completion should yield the processor.
#[inline]
fn to_rest(polled: &PolledQueue) -> Option<Arc<Hardware>> {
    let hardware = &polled.hardware;
    hardware.should_rest().then(|| Arc::clone(hardware))
}

/// Polls up to `limit` completions. Called through the context's table.
///
/// Returns their number, or a negative errno: `EINVAL` for a null or destroyed queue or a negative
/// limit.
///
/// # Safety
/// `queue` is null or a completion queue of this library; `completions` is valid for writes of
/// `limit` entries.
pub(crate) unsafe extern "C" fn poll_cq(
    queue: *mut ibv_cq,
    limit: c_int,
    completions: *mut ibv_wc,
) -> c_int {
    // SAFETY: passed on.
    unsafe { poll_as(queue, limit, completions, to_wc) }
}

/// [`poll_cq`], with completions converted by `to_wc`.
///
/// # Safety
/// `queue` is null or a completion queue of this library; `completions` is valid for writes of
/// `limit` entries.
#[inline(always)]
pub(super) unsafe fn poll_as(
    queue: *mut ibv_cq,
    limit: c_int,
    completions: *mut ibv_wc,
    to_wc: impl Fn(&Completion) -> ibv_wc,
) -> c_int {
    // SAFETY: by contract.
    let Some(queue) = (unsafe { CompQueue::from_pointer(queue) }) else {
        return -libc::EINVAL;
    };
    let Ok(limit) = usize::try_from(limit) else {
        return -libc::EINVAL;
    };
    let locking = Locking::new();
    let mut guard = queue.polled.lock(&locking);
    let Some(polled) = guard.as_mut() else {
        return -libc::EINVAL;
    };
    work_if_empty(polled, &locking);
    let (queued, mut owners) = polled.split(&locking);
    let mut count = 0;
    while count < limit
        && let Some(completion) = queued.next(&mut owners)
    {
        // SAFETY: `count < limit`, for which there is room by contract.
        unsafe { completions.add(count).write(to_wc(&completion)) };
        count += 1;
    }
    queue.after_polling(polled);
    let to_rest = match count {
        0 => to_rest(polled),
        _ => None,
    };
    drop(guard);
    queue.catch_up();
    if let Some(hardware) = to_rest {
        hardware.rest(&locking);
    }
    count as c_int
}

/// Writes a completion to the fields that programs read without a call.
///
/// # Safety
/// `queue` is valid, and the caller holds its lock.
#[inline]
unsafe fn show(queue: *mut ibv_cq_ex, completion: &Completion) {
    // SAFETY: by contract.
    unsafe {
        (*queue).wr_id = completion.wr_id;
        (*queue).status = completion.ibv_wc_status() as c_int;
    }
}

/// Begins a session with the first completion. It excludes other threads until [`end_poll`].
///
/// Returns 0, or an errno and begins no session: `ENOENT` if there is no completion, `EINVAL` for a
/// null or destroyed queue or attributes with a `comp_mask`.
///
/// # Safety
/// `queue` is null or a completion queue of this library; `attributes` is null or starts with 32
/// bits of `comp_mask`.
pub(super) unsafe extern "C" fn start_poll(
    queue: *mut ibv_cq_ex,
    attributes: *mut c_void,
) -> c_int {
    // SAFETY: by contract.
    let Some(cq) = (unsafe { CompQueue::from_pointer(queue.cast()) }) else {
        return libc::EINVAL;
    };
    // SAFETY: by contract.
    if !attributes.is_null() && unsafe { attributes.cast::<u32>().read() } != 0 {
        return libc::EINVAL;
    }
    let locking = Locking::new();
    let mut guard = cq.polled.lock(&locking);
    let Some(polled) = guard.as_mut() else {
        return libc::EINVAL;
    };
    work_if_empty(polled, &locking);
    let (completions, mut owners) = polled.split(&locking);
    match completions.start_poll(&mut owners) {
        Some(completion) => {
            // SAFETY: `guard` is the lock.
            unsafe { show(queue, completion) };
            guard.hold();
            0
        }
        None => {
            let to_rest = to_rest(polled);
            drop(guard);
            cq.catch_up();
            if let Some(hardware) = to_rest {
                hardware.rest(&locking);
            }
            libc::ENOENT
        }
    }
}

/// Moves the session to the next completion.
///
/// Returns 0, or an errno: `ENOENT` if there is no other, `EINVAL` for a null or destroyed queue or
/// without a session.
///
/// # Safety
/// `queue` is null or a completion queue of this library, in a session of the caller if in any.
pub(super) unsafe extern "C" fn next_poll(queue: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by contract.
    let Some(cq) = (unsafe { CompQueue::from_pointer(queue.cast()) }) else {
        return libc::EINVAL;
    };
    let locking = Locking::new();
    let Some(mut guard) = cq.polled.resume(&locking) else {
        return libc::EINVAL;
    };
    let Some(polled) = guard.as_mut() else {
        return libc::EINVAL;
    };
    let (completions, mut owners) = polled.split(&locking);
    match completions.next_poll(&mut owners) {
        Some(completion) => {
            // SAFETY: `guard` is the lock.
            unsafe { show(queue, completion) };
            0
        }
        None => libc::ENOENT,
    }
}

/// Ends the session. Its last completion can be read until the next one begins.
///
/// # Safety
/// `queue` is null or a completion queue of this library, in a session of the caller if in any.
unsafe extern "C" fn end_poll(queue: *mut ibv_cq_ex) {
    // SAFETY: by contract.
    let Some(cq) = (unsafe { CompQueue::from_pointer(queue.cast()) }) else {
        return;
    };
    let locking = Locking::new();
    if let Some(mut guard) = cq.polled.resume(&locking) {
        if let Some(polled) = guard.as_mut() {
            cq.after_polling(polled);
        }
        guard.end();
        cq.catch_up();
    }
}

/// Reads a property of the current completion. The last completion of a session remains readable
/// after the session, as in rdma-core. `absent` before the first completion.
///
/// # Safety
/// `queue` is null or a completion queue of this library, in a session of the caller if in any.
#[inline]
pub(super) unsafe fn read<T>(
    queue: *mut ibv_cq_ex,
    absent: T,
    get: impl FnOnce(&Completion) -> T,
) -> T {
    // SAFETY: by contract.
    let Some(cq) = (unsafe { CompQueue::from_pointer(queue.cast()) }) else {
        return absent;
    };
    // SAFETY: the session is the caller's by contract.
    match unsafe { cq.polled.in_session() } {
        Some(polled) => current(polled).map_or(absent, get),
        None => read_after_session(cq, absent, get),
    }
}

fn current(polled: &Option<PolledQueue>) -> Option<&Completion> {
    polled.as_ref()?.completions.current()
}

#[cold]
fn read_after_session<T>(cq: &CompQueue, absent: T, get: impl FnOnce(&Completion) -> T) -> T {
    let locking = Locking::new();
    let polled = cq.polled.lock(&locking);
    current(&polled).map_or(absent, get)
}

/// Defines readers of the current completion for the table of `ibv_cq_ex`.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident -> $type:ty: $get:expr;)+) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// `queue` is null or a completion queue of this library, in a session of the caller if in
        /// any.
        unsafe extern "C" fn $name(queue: *mut ibv_cq_ex) -> $type {
            // SAFETY: by contract.
            unsafe { read(queue, 0, $get) }
        }
    )+ };
}

readers! {
    /// Returns the operation that completed (`ibv_wc_opcode`), 0 before the first completion.
    read_opcode -> c_int: |completion| completion.opcode().ibv_wc_opcode() as c_int;
    /// Returns EFA's own status, 0 before the first completion.
    read_vendor_err -> u32: |completion| completion.code().into();
    /// Returns the number of bytes received, 0 before the first completion.
    read_byte_len -> u32: |completion| completion.byte_len();
    /// Returns the immediate data, big endian; 0 without.
    read_imm_data -> u32: |completion| completion.immediate().unwrap_or(0).to_be();
    /// Returns the number of the local queue pair, 0 before the first completion.
    read_qp_num -> u32: |completion| completion.qp_num().0.into();
    /// Returns the number of the sender's queue pair, 0 before the first completion.
    read_src_qp -> u32: |completion| completion.src_qp().0.into();
    /// Returns the flags of the completion (`ibv_wc_flags`), 0 before the first completion.
    read_wc_flags -> c_uint: |completion| completion.flags().bits();
    /// Returns the number of the sender's address handle, 0 before the first completion.
    read_slid -> u32: |completion| slid(completion).into();
    /// Returns 0: EFA has neither service levels nor path bits.
    read_zero -> u8: |_| 0;
}

/// The `ibv_cq_ex` of an `efadv_cq`.
fn behind(efa: *mut efadv_cq) -> *mut ibv_cq_ex {
    if efa.is_null() {
        return core::ptr::null_mut();
    }
    efa.wrapping_byte_sub(core::mem::offset_of!(CompQueueC, efa))
        .cast()
}

/// Writes the GID of a sender that has no address handle here to `*gid`.
///
/// Returns 0, or a negative errno: `ENOENT` if the sender has a handle or the device did not report
/// it, `EINVAL` for a null `gid`.
///
/// # Safety
/// `efa` is null or the result of `efadv_cq_from_ibv_cq_ex`, in a session of the caller; `gid` is
/// null or valid for a write.
unsafe extern "C" fn wc_read_sgid(efa: *mut efadv_cq, gid: *mut ibv_gid) -> c_int {
    // SAFETY: by contract.
    let sender = unsafe { read(behind(efa), None, Completion::sgid) };
    match sender {
        Some(sender) if !gid.is_null() => {
            // SAFETY: by contract.
            unsafe { gid.write(ibv_gid { raw: sender.0 }) };
            0
        }
        Some(_) => -libc::EINVAL,
        None => -libc::ENOENT,
    }
}

/// Returns whether the completion is a write with immediate that consumed no receive.
///
/// # Safety
/// `efa` is null or the result of `efadv_cq_from_ibv_cq_ex`, in a session of the caller.
unsafe extern "C" fn wc_is_unsolicited(efa: *mut efadv_cq) -> bool {
    // SAFETY: by contract.
    unsafe { read(behind(efa), false, Completion::is_unsolicited) }
}
