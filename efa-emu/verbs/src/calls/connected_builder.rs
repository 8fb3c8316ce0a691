//! Building work requests of connected queue pairs with the calls of `ibv_qp_ex`.
//!
//! A session holds the queue pair's session lock from `wr_start` to `wr_complete` or `wr_abort`.
//! Calls outside of a session do nothing.

use core::ffi::{c_int, c_void};

use efa_device_model::device::connected::{
    BufferList, Payload, RemoteMemory, SendOperation, SendWr,
};
use efa_device_model::device::queue::Buffer;

use super::connected::{Flags, buffer_list, inline_payload, with_session};
use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, ibv_data_buf, ibv_qp, ibv_qp_ex, ibv_sge,
    verbs_qp,
};
use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;
use crate::objects::qp_plan::QpPlan;
use crate::objects::queue_pair::{QueuePair, Session};

/// The C structure of a connected queue pair, with the builders that were requested.
pub(super) fn extended(base: ibv_qp, plan: &QpPlan) -> verbs_qp {
    let ops = plan.send_ops;
    let wants = |bit: u64| ops.is_some_and(|ops| ops & bit != 0);
    let any = ops.is_some();
    let mut verbs = super::builder::extended(base, plan);
    let qp_ex = &mut verbs.qp_ex;
    let compares = wants(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
    qp_ex.wr_atomic_cmp_swp = compares.then_some(wr_atomic_cmp_swp);
    let adds = wants(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
    qp_ex.wr_atomic_fetch_add = adds.then_some(wr_atomic_fetch_add);
    qp_ex.wr_rdma_read = wants(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read);
    qp_ex.wr_rdma_write = wants(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write);
    let writes = wants(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
    qp_ex.wr_rdma_write_imm = writes.then_some(wr_rdma_write_imm);
    qp_ex.wr_send = wants(IBV_QP_EX_WITH_SEND).then_some(wr_send);
    qp_ex.wr_send_imm = wants(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm);
    qp_ex.wr_set_ud_addr = None;
    qp_ex.wr_set_inline_data = any.then_some(wr_set_inline_data);
    qp_ex.wr_set_inline_data_list = any.then_some(wr_set_inline_data_list);
    qp_ex.wr_set_sge = any.then_some(wr_set_sge);
    qp_ex.wr_set_sge_list = any.then_some(wr_set_sge_list);
    qp_ex.wr_start = any.then_some(wr_start);
    qp_ex.wr_complete = any.then_some(wr_complete);
    qp_ex.wr_abort = any.then_some(wr_abort);
    verbs
}

/// The queue pair of a session.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe fn queue_pair<'a>(pair: *mut ibv_qp_ex) -> Option<&'a QueuePair> {
    // SAFETY: by contract.
    unsafe { QueuePair::from_pointer(pair.cast()) }
}

/// Begins a session, which excludes other threads until [`wr_complete`] or [`wr_abort`].
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe extern "C" fn wr_start(pair: *mut ibv_qp_ex) {
    // SAFETY: by contract.
    let pair = unsafe { queue_pair(pair) };
    if let Some(connection) = pair.and_then(|pair| pair.connection.as_ref()) {
        let locking = Locking::new();
        let mut guard = connection.session.lock(&locking);
        *guard = Some(Session::default());
        guard.hold();
    }
}

/// Begins a work request of the session.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe fn begin(pair: *mut ibv_qp_ex, operation: SendOperation) {
    // SAFETY: by contract.
    let Some(handle) = (unsafe { queue_pair(pair) }) else {
        return;
    };
    let Some(connection) = &handle.connection else {
        return;
    };
    // SAFETY: the program writes these fields between its calls, not during one.
    let (wr_id, flags) = unsafe { ((*pair).wr_id, (*pair).wr_flags) };
    with_session(connection, |session| match Flags::of(handle, flags) {
        Ok(flags) => session.requests.push(SendWr {
            wr_id,
            operation,
            payload: Payload::Buffers(BufferList::default()),
            is_signaled: flags.is_signaled,
            is_fenced: flags.is_fenced,
            is_solicited: flags.is_solicited,
        }),
        Err(error) => {
            session.error.get_or_insert(error);
        }
    });
}

/// Sets the data of the last work request of the session.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe fn set(pair: *mut ibv_qp_ex, payload: impl FnOnce(&QueuePair) -> Result<Payload, Errno>) {
    // SAFETY: by contract.
    let Some(handle) = (unsafe { queue_pair(pair) }) else {
        return;
    };
    let Some(connection) = &handle.connection else {
        return;
    };
    with_session(connection, |session| match payload(handle) {
        Ok(payload) => {
            if let Some(last) = session.requests.last_mut() {
                last.payload = payload;
            }
        }
        Err(error) => {
            session.error.get_or_insert(error);
        }
    });
}

/// Defines the calls that begin a work request.
macro_rules! begin {
    ($($name:ident($($argument:ident: $type:ty),*) $operation:expr;)+) => { $(
        /// Begins a work request of the session.
        ///
        /// # Safety
        /// `pair` is null or a queue pair of this library.
        unsafe extern "C" fn $name(pair: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: passed on.
            unsafe { begin(pair, $operation) }
        }
    )+ };
}

begin! {
    wr_send() SendOperation::Send(None);
    wr_send_imm(immediate: u32) SendOperation::Send(Some(u32::from_be(immediate)));
    wr_rdma_read(key: u32, address: u64) SendOperation::Read(RemoteMemory { address, key });
    wr_rdma_write(key: u32, address: u64) SendOperation::Write(RemoteMemory { address, key }, None);
    wr_rdma_write_imm(key: u32, address: u64, immediate: u32)
        SendOperation::Write(RemoteMemory { address, key }, Some(u32::from_be(immediate)));
    wr_atomic_cmp_swp(key: u32, address: u64, compare: u64, swap: u64)
        SendOperation::CompareSwap { remote: RemoteMemory { address, key }, compare, swap };
    wr_atomic_fetch_add(key: u32, address: u64, add: u64)
        SendOperation::FetchAdd { remote: RemoteMemory { address, key }, add };
}

/// Sets one buffer as the work request's data.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe extern "C" fn wr_set_sge(pair: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    let buffer = Buffer::new(address, length, lkey);
    let list = || BufferList::new(&[buffer]).ok_or(Errno::INVAL);
    // SAFETY: passed on.
    unsafe { set(pair, |_| list().map(Payload::Buffers)) }
}

/// Sets several buffers as the work request's data.
///
/// # Safety
/// `pair` is null or a queue pair of this library; the list is valid for reads of `count` entries.
unsafe extern "C" fn wr_set_sge_list(pair: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let payload = |handle: &QueuePair| {
        if count > handle.plan.cap.max_send_sge.max(1) as usize {
            return Err(Errno::INVAL);
        }
        // SAFETY: by contract.
        unsafe { buffer_list(list, count as c_int) }.map(Payload::Buffers)
    };
    // SAFETY: passed on.
    unsafe { set(pair, payload) }
}

/// Sets the work request's inline data.
///
/// # Safety
/// `pair` is null or a queue pair of this library; `data` is valid for reads of `length` bytes.
unsafe extern "C" fn wr_set_inline_data(pair: *mut ibv_qp_ex, data: *mut c_void, length: usize) {
    let part = ibv_data_buf { addr: data, length };
    // SAFETY: passed on.
    unsafe { wr_set_inline_data_list(pair, 1, &raw const part) }
}

/// Sets the work request's inline data from several addresses.
///
/// # Safety
/// `pair` is null or a queue pair of this library; the list is valid for reads of `count` entries,
/// whose memory can be read.
unsafe extern "C" fn wr_set_inline_data_list(
    pair: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: by contract.
    let payload = |handle: &QueuePair| unsafe { inline_payload(handle, list, count) };
    // SAFETY: passed on.
    unsafe { set(pair, payload) }
}

/// Ends the session and posts its work requests, all or none.
///
/// Returns 0 or an errno: `EINVAL` without a session, for an invalid request, or a queue pair that
/// is not ready to send; `ENOMEM` for a full queue.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe extern "C" fn wr_complete(pair: *mut ibv_qp_ex) -> c_int {
    // SAFETY: by contract.
    let Some(handle) = (unsafe { queue_pair(pair) }) else {
        return libc::EINVAL;
    };
    match end(handle) {
        None => libc::EINVAL,
        Some(session) => match post(handle, session) {
            Ok(()) => 0,
            Err(error) => error.number(),
        },
    }
}

/// Ends the session and posts nothing.
///
/// # Safety
/// `pair` is null or a queue pair of this library.
unsafe extern "C" fn wr_abort(pair: *mut ibv_qp_ex) {
    // SAFETY: by contract.
    if let Some(handle) = unsafe { queue_pair(pair) } {
        end(handle);
    }
}

/// Ends the session, so that other threads can begin one.
fn end(handle: &QueuePair) -> Option<Session> {
    let connection = handle.connection.as_ref()?;
    let locking = Locking::new();
    let mut guard = connection.session.resume(&locking)?;
    let session = guard.take();
    guard.end();
    session
}

fn post(handle: &QueuePair, session: Session) -> Result<(), Errno> {
    if let Some(error) = session.error {
        return Err(error);
    }
    let connection = handle.connection.as_ref().ok_or(Errno::INVAL)?;
    connection.hardware.post(|device| {
        device.check_connected_room(handle.qpn, session.requests.len())?;
        for wr in session.requests {
            device.post_connected_send(handle.qpn, wr)?;
        }
        Ok(())
    })?
}
