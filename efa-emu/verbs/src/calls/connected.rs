//! Connected queue pairs: their attributes, posting, and their completions. They have no rings:
//! work requests are passed to the device immediately.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, PoisonError};

use efa_core::address::Gid;
use efa_device_model::device::connected::{
    BufferList, ConnectedFlags, ConnectionAttributes, ConnectionMask, Payload, Psn, REMOTE_ATOMIC,
    RecvWr, RemoteMemory, SendOperation, SendWr, WcOperation,
};
use efa_device_model::device::queue::CompletionEntry;
use efa_device_model::device::{Device, Error};
use efa_device_model::provider::Completion;

use super::address_handle::IBV_WC_GRH;
use super::post::{self, InlineCopy, InlinePart, buffers, report};
use super::{connected_builder, poll};
use crate::abi::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_QKEY,
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SRC_QP,
    IBV_WC_EX_WITH_TM_INFO, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, ibv_cq, ibv_cq_ex, ibv_qp, ibv_qp_attr, ibv_qp_init_attr_ex, ibv_recv_wr,
    ibv_send_wr, ibv_send_wr_atomic, ibv_send_wr_rdma, ibv_sge, ibv_wc, ibv_wc_tm_info,
};
use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;
use crate::ffi::structures::zeroed;
use crate::objects::context::Context;
use crate::objects::hardware::Hardware;
use crate::objects::qp_plan::QpPlan;
use crate::objects::queue_pair::{
    Connection, Dependencies, QueuePair, QueuePairC, state_from_number, state_number,
};
use crate::registry::SHARED_QUEUES;

/// Makes a connected queue pair.
pub(super) fn create(
    context: &Arc<Context>,
    dependencies: Dependencies,
    plan: QpPlan,
    attributes: &ibv_qp_init_attr_ex,
) -> Result<Arc<QueuePair>, Errno> {
    let shared = match attributes.srq.is_null() {
        true => None,
        false => {
            let queue = SHARED_QUEUES.get(attributes.srq.cast())?;
            if !Arc::ptr_eq(&queue.context, context) {
                return Err(Errno::INVAL);
            }
            Some(queue)
        }
    };
    let c = |base| QueuePairC {
        verbs: connected_builder::extended(base, &plan),
        efa: super::builder::efa_extension(&plan),
    };
    QueuePair::create_connected(context, dependencies, shared, plan, attributes, c)
}

/// Changes the attributes of a connected queue pair that `mask` selects.
pub(super) fn modify(
    pair: &QueuePair,
    connection: &Connection,
    attributes: &ibv_qp_attr,
    mask: u32,
) -> Result<(), Errno> {
    // Only queue pairs of UD have a Q-key.
    if mask & IBV_QP_QKEY != 0 {
        return Err(Errno::INVAL);
    }
    let mask = ConnectionMask::from_bits(mask).ok_or(Errno::OPNOTSUPP)?;
    let has = |bits| mask.intersects(bits);
    let state = |bit, number: c_int| match has(bit) {
        true => state_from_number(number),
        false => Ok(ConnectionAttributes::default().state),
    };
    let ah = &attributes.ah_attr;
    // RoCE addresses a peer by its GID.
    if has(ConnectionMask::AV) && (ah.is_global == 0 || ah.grh.sgid_index != 0) {
        return Err(Errno::INVAL);
    }
    let byte = |bit, value: c_int| match has(bit) {
        true => u8::try_from(value).map_err(|_| Errno::INVAL),
        false => Ok(0),
    };
    let to = ConnectionAttributes {
        state: state(ConnectionMask::STATE, attributes.qp_state)?,
        current_state: state(ConnectionMask::CURRENT_STATE, attributes.cur_qp_state)?,
        pkey_index: attributes.pkey_index,
        port: attributes.port_num,
        access: match has(ConnectionMask::ACCESS_FLAGS) {
            true => super::memory_region::access_flags(attributes.qp_access_flags, true)?,
            false => Default::default(),
        },
        peer: Gid(ah.grh.dgid.raw),
        destination: attributes.dest_qp_num,
        path_mtu: byte(ConnectionMask::PATH_MTU, attributes.path_mtu)?,
        timeout: attributes.timeout,
        retry_count: attributes.retry_cnt,
        rnr_retry: attributes.rnr_retry,
        min_rnr_timer: attributes.min_rnr_timer,
        rq_psn: Psn::new(attributes.rq_psn),
        sq_psn: Psn::new(attributes.sq_psn),
        max_rd_atomic: attributes.max_rd_atomic,
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
    };
    pair.modify_connected(&to, mask)?;
    if has(ConnectionMask::AV) {
        let address = connection.address.lock();
        *address.unwrap_or_else(PoisonError::into_inner) = Some(*ah);
    }
    Ok(())
}

/// All attributes of a connected queue pair.
pub(super) fn query(pair: &QueuePair, connection: &Connection) -> Result<ibv_qp_attr, Errno> {
    let found = pair.query_connected()?;
    // SAFETY: the structure consists of integers.
    let mut attributes: ibv_qp_attr = unsafe { zeroed() };
    attributes.qp_state = state_number(found.state);
    attributes.cur_qp_state = attributes.qp_state;
    attributes.path_mtu = found.path_mtu.into();
    attributes.rq_psn = found.rq_psn.bits();
    attributes.sq_psn = found.sq_psn.bits();
    attributes.dest_qp_num = found.destination;
    let access = [
        (efa_core::nic::Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
        (efa_core::nic::Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
        (REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
    ];
    for (_, flag) in access.iter().filter(|(bit, _)| found.access.contains(*bit)) {
        attributes.qp_access_flags |= flag;
    }
    attributes.cap = pair.plan.cap;
    let address = connection.address.lock();
    let address = *address.unwrap_or_else(PoisonError::into_inner);
    attributes.ah_attr = address.unwrap_or(attributes.ah_attr);
    attributes.pkey_index = found.pkey_index;
    attributes.max_rd_atomic = found.max_rd_atomic;
    attributes.max_dest_rd_atomic = found.max_dest_rd_atomic;
    attributes.min_rnr_timer = found.min_rnr_timer;
    attributes.port_num = found.port;
    attributes.timeout = found.timeout;
    attributes.retry_cnt = found.retry_count;
    attributes.rnr_retry = found.rnr_retry;
    Ok(attributes)
}

/// A program's gather or scatter list, in the device's format.
///
/// # Safety
/// `list` is valid for reads of `count` entries.
#[inline]
pub(super) unsafe fn buffer_list(list: *const ibv_sge, count: c_int) -> Result<BufferList, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    // SAFETY: by contract.
    let list = unsafe { buffers(list, count) }.ok_or(Errno::INVAL)?;
    BufferList::new(list).ok_or(Errno::INVAL)
}

/// Posts a list of work requests to a queue pair of a device that has connected ones. Called
/// through the context's table.
///
/// Returns 0 or an errno. With an errno, `*bad` is the first request that was not posted; the
/// requests before it were posted: `EINVAL` for a null or destroyed queue pair, one that is not
/// ready to send, or a request that it does not support; `ENOMEM` for a full queue.
///
/// # Safety
/// `pointer` is null or a queue pair of this library. `requests` is null or a valid list, with
/// gather lists that are valid during the call, and inline data that can be read. `bad` is null or
/// valid for a write.
pub(super) unsafe extern "C" fn post_send(
    pointer: *mut ibv_qp,
    requests: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: by contract.
    let Some(pair) = (unsafe { QueuePair::from_pointer(pointer) }) else {
        return libc::EINVAL;
    };
    let Some(connection) = &pair.connection else {
        // SAFETY: passed on.
        return unsafe { post::post_send(pointer, requests, bad) };
    };
    let mut next = requests;
    let mut post = || {
        connection.hardware.post(|device| {
            while !next.is_null() {
                // SAFETY: by contract.
                let wr = unsafe { send_wr(pair, next) }?;
                device.post_connected_send(pair.qpn, wr)?;
                // SAFETY: the list is valid by contract.
                next = unsafe { (*next).next };
            }
            Ok(())
        })?
    };
    let result = post();
    // SAFETY: by contract.
    unsafe { report(result, next, bad) }
}

/// The flags of a work request.
pub(super) struct Flags {
    pub(super) is_signaled: bool,
    pub(super) is_fenced: bool,
    pub(super) is_solicited: bool,
    pub(super) is_inline: bool,
}

impl Flags {
    pub(super) fn of(pair: &QueuePair, flags: u32) -> Result<Flags, Errno> {
        let known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
        if flags & !known != 0 {
            return Err(Errno::INVAL);
        }
        Ok(Flags {
            is_signaled: pair.signals_all() || flags & IBV_SEND_SIGNALED != 0,
            is_fenced: flags & IBV_SEND_FENCE != 0,
            is_solicited: flags & IBV_SEND_SOLICITED != 0,
            is_inline: flags & IBV_SEND_INLINE != 0,
        })
    }
}

/// A work request, in the device's format.
///
/// # Safety
/// `request` is valid for reads of the fields that every version of the structure has; its gather
/// list is valid, and inline data can be read.
#[inline(always)]
unsafe fn send_wr(pair: &QueuePair, request: *const ibv_send_wr) -> Result<SendWr, Errno> {
    // SAFETY: by contract.
    let (opcode, immediate, flags) = unsafe {
        (
            (*request).opcode,
            u32::from_be((*request).imm_data),
            (*request).send_flags,
        )
    };
    // SAFETY: the members of the union are integers of the same size as the declared one.
    let (rdma, atomic) = unsafe {
        let union = (&raw const (*request).ud).cast::<c_void>();
        (
            union.cast::<ibv_send_wr_rdma>().read(),
            union.cast::<ibv_send_wr_atomic>().read(),
        )
    };
    let remote = RemoteMemory {
        address: rdma.remote_addr,
        key: rdma.rkey,
    };
    let word = RemoteMemory {
        address: atomic.remote_addr,
        key: atomic.rkey,
    };
    let operation = match opcode {
        IBV_WR_SEND => SendOperation::Send(None),
        IBV_WR_SEND_WITH_IMM => SendOperation::Send(Some(immediate)),
        IBV_WR_RDMA_WRITE => SendOperation::Write(remote, None),
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOperation::Write(remote, Some(immediate)),
        IBV_WR_RDMA_READ => SendOperation::Read(remote),
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOperation::CompareSwap {
            remote: word,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOperation::FetchAdd {
            remote: word,
            add: atomic.compare_add,
        },
        _ => return Err(Errno::INVAL),
    };
    let flags = Flags::of(pair, flags)?;
    // SAFETY: by contract.
    let (list, count, wr_id) =
        unsafe { ((*request).sg_list, (*request).num_sge, (*request).wr_id) };
    let takes_inline = matches!(operation, SendOperation::Send(_) | SendOperation::Write(..));
    let payload = match flags.is_inline {
        false => {
            // SAFETY: by contract.
            let list = unsafe { buffer_list(list, count) }?;
            if list.as_slice().len() > pair.plan.cap.max_send_sge.max(1) as usize {
                return Err(Errno::INVAL);
            }
            Payload::Buffers(list)
        }
        true if !takes_inline => return Err(Errno::INVAL),
        true => {
            let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
            // SAFETY: by contract.
            unsafe { inline_payload(pair, list, count) }?
        }
    };
    Ok(SendWr {
        wr_id,
        operation,
        payload,
        is_signaled: flags.is_signaled,
        is_fenced: flags.is_fenced,
        is_solicited: flags.is_solicited,
    })
}

/// Inline data, copied out of the program's memory; `EINVAL` for more than the queue pair allows.
///
/// # Safety
/// `list` is null or valid for reads of `count` parts, whose memory can be read.
pub(super) unsafe fn inline_payload<T: InlinePart>(
    pair: &QueuePair,
    list: *const T,
    count: usize,
) -> Result<Payload, Errno> {
    let mut copy = InlineCopy::EMPTY;
    // SAFETY: by contract.
    let fits = unsafe { copy.push_list(list, count) };
    let data = copy.as_slice();
    if !fits || data.len() > pair.plan.cap.max_inline_data as usize {
        return Err(Errno::INVAL);
    }
    Payload::inline(data).ok_or(Errno::INVAL)
}

/// Posts a list of receives to a queue pair of a device that has connected ones. Called through the
/// context's table.
///
/// Returns 0 or an errno as [`post_send`]; `EINVAL` also for a queue pair with a shared receive
/// queue, or in the reset state.
///
/// # Safety
/// `pointer` is null or a queue pair of this library. `requests` is null or a valid list with valid
/// scatter lists. `bad` is null or valid for a write.
pub(super) unsafe extern "C" fn post_recv(
    pointer: *mut ibv_qp,
    requests: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by contract.
    let Some(pair) = (unsafe { QueuePair::from_pointer(pointer) }) else {
        return libc::EINVAL;
    };
    let Some(connection) = &pair.connection else {
        // SAFETY: passed on.
        return unsafe { post::post_recv(pointer, requests, bad) };
    };
    let post = |device: &mut Device, wr| device.post_connected_recv(pair.qpn, wr);
    // SAFETY: by contract.
    unsafe { post_receives(&connection.hardware, requests, bad, post) }
}

/// Posts a list of receives with `post`.
///
/// Returns 0 or an errno. With an errno, `*bad` is the first request that was not posted.
///
/// # Safety
/// `requests` is null or a valid list with valid scatter lists. `bad` is null or valid for a write.
pub(super) unsafe fn post_receives(
    hardware: &Hardware,
    requests: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(&mut Device, RecvWr) -> Result<(), Error>,
) -> c_int {
    let mut next = requests;
    let mut post_all = || {
        hardware.post(|device| {
            // SAFETY: the list is valid by contract.
            while let Some(request) = unsafe { next.as_ref() } {
                let receive = RecvWr {
                    wr_id: request.wr_id,
                    // SAFETY: the scatter list has `num_sge` entries by contract.
                    buffers: unsafe { buffer_list(request.sg_list, request.num_sge) }?,
                };
                post(device, receive)?;
                next = request.next;
            }
            Ok(())
        })?
    };
    let result = post_all();
    // SAFETY: by contract.
    unsafe { report(result, next, bad) }
}

/// The immediate data, big endian; 0 without.
fn immediate(entry: &CompletionEntry) -> u32 {
    match entry.connected_flags() & ConnectedFlags::WITH_IMM.bits() {
        0 => 0,
        _ => entry.connected_data().to_be(),
    }
}

fn to_wc(completion: &Completion) -> ibv_wc {
    let Some(entry) = completion.connected() else {
        let mut wc = poll::to_wc(completion);
        if wc.opcode == WcOperation::Recv as c_int {
            // Every datagram of RoCE has a GRH. EFA does not report one.
            wc.wc_flags |= IBV_WC_GRH;
        }
        return wc;
    };
    ibv_wc {
        wr_id: completion.wr_id,
        status: entry.status().into(),
        opcode: entry.connected_operation().into(),
        byte_len: entry.connected_length(),
        imm_data: immediate(entry),
        qp_num: entry.qpn().0.into(),
        src_qp: entry.connected_peer().0.into(),
        wc_flags: entry.connected_flags().into(),
        ..ibv_wc::default()
    }
}

/// As [`poll::poll_cq`], for a device with connected queue pairs.
///
/// # Safety
/// `queue` is null or a completion queue of this library; `completions` is valid for writes of
/// `limit` entries.
pub(super) unsafe extern "C" fn poll_cq(
    queue: *mut ibv_cq,
    limit: c_int,
    completions: *mut ibv_wc,
) -> c_int {
    // SAFETY: passed on.
    unsafe { poll::poll_as(queue, limit, completions, to_wc) }
}

/// The C structure of a completion queue, with the readers of this module in place of EFA's readers
/// that do not support connected queue pairs.
pub(super) fn extended(efa: ibv_cq_ex, wc_flags: u64) -> ibv_cq_ex {
    let wants = |flag: u64| wc_flags & flag != 0;
    ibv_cq_ex {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: wants(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len),
        read_imm_data: wants(IBV_WC_EX_WITH_IMM).then_some(read_imm_data),
        read_qp_num: wants(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num),
        read_src_qp: wants(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_tm_info: wants(IBV_WC_EX_WITH_TM_INFO).then_some(read_tm_info),
        ..efa
    }
}

/// Shows the status of the current completion, after a call that has moved to it.
///
/// # Safety
/// `queue` is null or a completion queue of this library, in a session of the caller if in any.
unsafe fn show_status(queue: *mut ibv_cq_ex, result: c_int) -> c_int {
    if result == 0 {
        // SAFETY: by contract. A session is in progress, and the caller owns it.
        unsafe {
            let status = poll::read(queue, 0, |completion| to_wc(completion).status);
            (*queue).status = status;
        }
    }
    result
}

/// Begins a session with the first completion.
///
/// Returns as [`poll::start_poll`].
///
/// # Safety
/// `queue` is null or a completion queue of this library; `attributes` is null or starts with 32
/// bits of `comp_mask`.
unsafe extern "C" fn start_poll(queue: *mut ibv_cq_ex, attributes: *mut c_void) -> c_int {
    // SAFETY: passed on.
    unsafe { show_status(queue, poll::start_poll(queue, attributes)) }
}

/// Moves the session to the next completion.
///
/// Returns as [`poll::next_poll`].
///
/// # Safety
/// `queue` is null or a completion queue of this library, in a session of the caller if in any.
unsafe extern "C" fn next_poll(queue: *mut ibv_cq_ex) -> c_int {
    // SAFETY: passed on.
    unsafe { show_status(queue, poll::next_poll(queue)) }
}

/// Defines readers of the current completion for the table of `ibv_cq_ex`.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident -> $type:ty: $field:ident;)+) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// `queue` is null or a completion queue of this library, in a session of the caller if in
        /// any.
        unsafe extern "C" fn $name(queue: *mut ibv_cq_ex) -> $type {
            // SAFETY: by contract.
            unsafe { poll::read(queue, 0, |completion| to_wc(completion).$field) }
        }
    )+ };
}

readers! {
    /// Returns the operation that completed (`ibv_wc_opcode`), 0 before the first completion.
    read_opcode -> c_int: opcode;
    /// Returns EFA's own status for a datagram, else 0.
    read_vendor_err -> u32: vendor_err;
    /// Returns the number of bytes received or read, 0 before the first completion.
    read_byte_len -> u32: byte_len;
    /// Returns the immediate data, big endian; 0 without.
    read_imm_data -> u32: imm_data;
    /// Returns the number of the local queue pair, 0 before the first completion.
    read_qp_num -> u32: qp_num;
    /// Returns the number of the peer's queue pair, 0 before the first completion.
    read_src_qp -> u32: src_qp;
    /// Returns the flags of the completion (`ibv_wc_flags`), 0 before the first completion.
    read_wc_flags -> c_uint: wc_flags;
}

/// Writes tag and data of the tag matching header of a matched message to `*info`; zeroes for
/// others.
///
/// # Safety
/// `queue` is null or a completion queue of this library, in a session of the caller if in any;
/// `info` is null or valid for a write.
unsafe extern "C" fn read_tm_info(queue: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    let of = |completion: &Completion| {
        let entry = completion.connected()?;
        // Clear in the second completion of a match, which the first has reported.
        const MATCHED: u8 = 1 << 5;
        (entry.connected_flags() & MATCHED != 0).then(|| ibv_wc_tm_info {
            tag: entry.connected_tag(),
            priv_: entry.connected_data(),
        })
    };
    // SAFETY: by contract.
    let found = unsafe { poll::read(queue, None, of) };
    // SAFETY: by contract.
    if let Some(info) = unsafe { info.as_mut() } {
        *info = found.unwrap_or_default();
    }
}

/// Runs `work` on the caller's session, if there is one.
pub(super) fn with_session<R>(
    connection: &Connection,
    work: impl FnOnce(&mut crate::objects::queue_pair::Session) -> R,
) -> Option<R> {
    let locking = Locking::new();
    let mut session = connection.session.resume(&locking)?;
    session.as_mut().map(work)
}
