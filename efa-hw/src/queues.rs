//! The queue pair and its completion queue: the hot path over the verbs function tables.

use crate::device::{HwDevice, PORT};
use crate::efadv::{self, CqInitAttr, QpInitAttr};
use crate::error::OpenError;
use crate::nic::{NicConfig, ProtectionDomain};
use efa_core::address::{Ahn, Gid, Qkey, Qpn};
use efa_core::nic::{BufferId, CompletionKind, Destination, DeviceCaps, NicError, Source, Status};
use ibverbs_sys as ffi;
use std::io;
use std::ptr::{NonNull, null_mut};

const ENOENT: i32 = 2;
const ENOMEM: i32 = 12;

/// A queue pair ready to send, with the completion queue of both its queues.
#[derive(Debug)]
pub(crate) struct Queues {
    qp: NonNull<ffi::ibv_qp>,
    send: SendCalls,
    cq: CompletionQueue,
}

/// The work request builder of the queue pair.
///
/// rdma-core offers these as inline functions over the table, so the table is the interface.
#[derive(Clone, Copy, Debug)]
struct SendCalls {
    qp: NonNull<ffi::ibv_qp_ex>,
    start: unsafe extern "C" fn(*mut ffi::ibv_qp_ex),
    complete: unsafe extern "C" fn(*mut ffi::ibv_qp_ex) -> i32,
    send: unsafe extern "C" fn(*mut ffi::ibv_qp_ex),
    send_imm: unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32),
    read: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64)>,
    write: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64)>,
    write_imm: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64, u32)>,
    set_ud_addr: unsafe extern "C" fn(*mut ffi::ibv_qp_ex, *mut ffi::ibv_ah, u32, u32),
    set_inline_data_list:
        unsafe extern "C" fn(*mut ffi::ibv_qp_ex, usize, *const ffi::ibv_data_buf),
    set_sge_list: unsafe extern "C" fn(*mut ffi::ibv_qp_ex, usize, *const ffi::ibv_sge),
}

impl SendCalls {
    fn of(qp: NonNull<ffi::ibv_qp_ex>) -> Option<SendCalls> {
        // SAFETY: the queue pair is alive, and its table does not change after creation.
        let table = unsafe { qp.as_ref() };
        Some(SendCalls {
            qp,
            start: table.wr_start?,
            complete: table.wr_complete?,
            send: table.wr_send?,
            send_imm: table.wr_send_imm?,
            read: table.wr_rdma_read,
            write: table.wr_rdma_write,
            write_imm: table.wr_rdma_write_imm,
            set_ud_addr: table.wr_set_ud_addr?,
            set_inline_data_list: table.wr_set_inline_data_list?,
            set_sge_list: table.wr_set_sge_list?,
        })
    }
}

/// One work request under construction.
pub(crate) struct Session<'a>(&'a SendCalls);

impl Session<'_> {
    fn qp(&self) -> *mut ffi::ibv_qp_ex {
        self.0.qp.as_ptr()
    }

    /// A send, with an immediate if there is one.
    #[inline]
    pub(crate) fn send(&self, immediate: Option<u32>) {
        // SAFETY: the queue pair is alive and a session is open.
        unsafe {
            match immediate {
                None => (self.0.send)(self.qp()),
                Some(immediate) => (self.0.send_imm)(self.qp(), immediate.to_be()),
            }
        }
    }

    /// An RDMA read. On a device without it nothing is built, and completing the session fails.
    pub(crate) fn read(&self, key: u32, address: u64) {
        if let Some(read) = self.0.read {
            // SAFETY: as in `send`.
            unsafe { read(self.qp(), key, address) };
        }
    }

    /// An RDMA write, with an immediate if there is one; as `read` on a device without it.
    pub(crate) fn write(&self, key: u32, address: u64, immediate: Option<u32>) {
        match (immediate, self.0.write, self.0.write_imm) {
            // SAFETY: as in `send`.
            (None, Some(write), _) => unsafe { write(self.qp(), key, address) },
            // SAFETY: as in `send`.
            (Some(immediate), _, Some(write)) => unsafe {
                write(self.qp(), key, address, immediate.to_be());
            },
            _ => {}
        }
    }

    /// Registered memory as the request's data.
    #[inline]
    pub(crate) fn gather(&self, entries: &[ffi::ibv_sge]) {
        // SAFETY: as in `send`; the device copies the entries.
        unsafe { (self.0.set_sge_list)(self.qp(), entries.len(), entries.as_ptr()) };
    }

    /// Bytes that are copied into the work request itself: at most two pieces.
    pub(crate) fn inline(&self, entries: &[ffi::ibv_sge]) {
        let empty = ffi::ibv_data_buf {
            addr: null_mut(),
            length: 0,
        };
        let mut pieces = [empty; 2];
        let count = entries.len().min(pieces.len());
        for (piece, entry) in pieces.iter_mut().zip(entries) {
            piece.addr = entry.addr as usize as *mut _;
            piece.length = entry.length as usize;
        }
        // SAFETY: as in `send`; the pieces name memory of the nic, which is copied at once.
        unsafe { (self.0.set_inline_data_list)(self.qp(), count, pieces.as_ptr()) };
    }
}

impl Queues {
    /// Creates completion queue and queue pair and brings the latter to ready-to-send. `caps` are what
    /// is used of the device.
    pub(crate) fn create(
        device: &HwDevice,
        pd: &ProtectionDomain,
        config: &NicConfig,
        caps: DeviceCaps,
        qkey: Qkey,
    ) -> Result<Queues, OpenError> {
        let unsolicited = caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV);
        let mut wc_flags = 0;
        if caps.contains(DeviceCaps::CQ_WITH_SGID) {
            wc_flags |= efadv::WC_EX_WITH_SGID;
        }
        if unsolicited {
            wc_flags |= efadv::WC_EX_WITH_IS_UNSOLICITED;
        }
        let entries = config.send_queue_depth + config.recv_queue_depth;
        let cq = CompletionQueue::create(device, entries, wc_flags)?;

        let mut operations = ffi::IBV_QP_EX_WITH_SEND | ffi::IBV_QP_EX_WITH_SEND_WITH_IMM;
        if caps.contains(DeviceCaps::RDMA_READ) {
            operations |= ffi::IBV_QP_EX_WITH_RDMA_READ;
        }
        if caps.contains(DeviceCaps::RDMA_WRITE) {
            operations |= ffi::IBV_QP_EX_WITH_RDMA_WRITE | ffi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        }
        let mut attr = ffi::ibv_qp_init_attr_ex {
            send_cq: cq.as_cq(),
            recv_cq: cq.as_cq(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: config.send_queue_depth as u32,
                max_recv_wr: config.recv_queue_depth as u32,
                max_send_sge: device.max_send_sge(),
                max_recv_sge: 1,
                max_inline_data: device.attributes().inline_size as u32,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_DRIVER,
            sq_sig_all: 1,
            comp_mask: ffi::IBV_QP_INIT_ATTR_PD | ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: pd.as_ptr(),
            send_ops_flags: u64::from(operations),
            ..Default::default()
        };
        let mut efa_attr = QpInitAttr {
            driver_qp_type: efadv::QP_DRIVER_TYPE_SRD,
            flags: if unsolicited {
                efadv::QP_FLAGS_UNSOLICITED_WRITE_RECV
            } else {
                0
            },
            ..Default::default()
        };
        // SAFETY: device, domain and queue are alive, both structures are complete.
        let qp = NonNull::new(unsafe {
            efadv::efadv_create_qp_ex(
                device.context(),
                &mut attr,
                &mut efa_attr,
                size_of::<QpInitAttr>() as u32,
            )
        })
        .ok_or_else(|| device.last_error("efadv_create_qp_ex"))?;
        // From here on the guard destroys the queue pair if something fails.
        let guard = QueuePairGuard(qp);
        // SAFETY: `qp` is alive.
        let send = NonNull::new(unsafe { ffi::ibv_qp_to_qp_ex(qp.as_ptr()) })
            .and_then(SendCalls::of)
            .ok_or_else(|| device.last_error("ibv_qp_to_qp_ex"))?;
        bring_up(device, qp, config, qkey)?;
        std::mem::forget(guard);
        Ok(Queues { qp, send, cq })
    }

    /// The queue pair's number; EFA numbers have 16 bits.
    pub(crate) fn qpn(&self) -> Qpn {
        // SAFETY: the queue pair is alive.
        Qpn(unsafe { self.qp.as_ref() }.qp_num as u16)
    }

    /// Builds one work request and rings the doorbell.
    ///
    /// # Safety
    /// `handle` is alive, and the memory that `build` names stays registered until the completion.
    #[inline]
    pub(crate) unsafe fn post(
        &mut self,
        work_request_id: u64,
        handle: *mut ffi::ibv_ah,
        destination: Destination,
        build: impl FnOnce(&Session),
    ) -> Result<(), NicError> {
        let qp = self.send.qp.as_ptr();
        let result = unsafe {
            // SAFETY: the queue pair is alive, and `&mut self` makes this its only session.
            (self.send.start)(qp);
            // SAFETY: the builder reads these two members when the operation is named.
            (*qp).wr_id = work_request_id;
            (*qp).wr_flags = 0;
            build(&Session(&self.send));
            // SAFETY: the caller vouches for `handle`.
            (self.send.set_ud_addr)(qp, handle, u32::from(destination.qpn.0), destination.qkey.0);
            (self.send.complete)(qp)
        };
        match result {
            0 => Ok(()),
            ENOMEM => Err(NicError::QueueFull),
            errno => Err(NicError::Device(errno.abs())),
        }
    }

    /// Posts one receive.
    #[inline]
    pub(crate) fn post_recv(
        &mut self,
        work_request_id: u64,
        mut entry: ffi::ibv_sge,
    ) -> Result<(), NicError> {
        let mut request = ffi::ibv_recv_wr {
            wr_id: work_request_id,
            next: null_mut(),
            sg_list: &mut entry,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive; its context's table has `post_recv`, the library copies
        // the request, and the buffer belongs to the nic.
        let result = unsafe {
            let context = self.qp.as_ref().context;
            match (*context).ops.post_recv {
                Some(post_recv) => post_recv(self.qp.as_ptr(), &mut request, &mut bad),
                None => return Err(NicError::Unsupported("receives")),
            }
        };
        match result {
            0 => Ok(()),
            ENOMEM => Err(NicError::QueueFull),
            errno => Err(NicError::Device(errno.abs())),
        }
    }

    /// Hands up to `limit` completions to `take` and returns their number.
    pub(crate) fn poll(&mut self, limit: usize, take: impl FnMut(&Entry<'_>)) -> usize {
        self.cq.poll(limit, take)
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        drop(QueuePairGuard(self.qp));
    }
}

/// Destroys a queue pair.
struct QueuePairGuard(NonNull<ffi::ibv_qp>);

impl Drop for QueuePairGuard {
    fn drop(&mut self) {
        // SAFETY: whoever made the guard does not use the queue pair afterwards.
        unsafe { ffi::ibv_destroy_qp(self.0.as_ptr()) };
    }
}

/// RESET to INIT to RTR to RTS.
fn bring_up(
    device: &HwDevice,
    qp: NonNull<ffi::ibv_qp>,
    config: &NicConfig,
    qkey: Qkey,
) -> Result<(), OpenError> {
    use ffi::ibv_qp_attr_mask as Mask;
    let mut attr = ffi::ibv_qp_attr {
        qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
        qkey: qkey.0,
        port_num: PORT,
        ..Default::default()
    };
    let init = Mask::IBV_QP_STATE.0
        | Mask::IBV_QP_PKEY_INDEX.0
        | Mask::IBV_QP_PORT.0
        | Mask::IBV_QP_QKEY.0;
    // SAFETY: the queue pair is alive and `attr` has every member that the mask names.
    let result = unsafe { ffi::ibv_modify_qp(qp.as_ptr(), &mut attr, init as i32) };
    device.check("ibv_modify_qp(INIT)", result)?;

    attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTR;
    // SAFETY: as above.
    let result = unsafe { ffi::ibv_modify_qp(qp.as_ptr(), &mut attr, Mask::IBV_QP_STATE.0 as i32) };
    device.check("ibv_modify_qp(RTR)", result)?;

    attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTS;
    attr.rnr_retry = config.rnr_retry;
    let mut ready = Mask::IBV_QP_STATE.0 | Mask::IBV_QP_SQ_PSN.0;
    if device.attributes().caps.contains(DeviceCaps::RNR_RETRY) {
        ready |= Mask::IBV_QP_RNR_RETRY.0;
    }
    // SAFETY: as above.
    let result = unsafe { ffi::ibv_modify_qp(qp.as_ptr(), &mut attr, ready as i32) };
    device.check("ibv_modify_qp(RTS)", result)
}

/// The completion queue and the calls that read it.
#[derive(Debug)]
struct CompletionQueue {
    cq: NonNull<ffi::ibv_cq_ex>,
    /// Set if completions carry what only EFA has.
    efa: Option<NonNull<efadv::Cq>>,
    is_unsolicited: Option<unsafe extern "C" fn(*mut efadv::Cq) -> bool>,
    calls: PollCalls,
}

#[derive(Clone, Copy, Debug)]
struct PollCalls {
    start: unsafe extern "C" fn(*mut ffi::ibv_cq_ex, *mut ffi::ibv_poll_cq_attr) -> i32,
    next: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> i32,
    end: unsafe extern "C" fn(*mut ffi::ibv_cq_ex),
    opcode: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> ffi::ibv_wc_opcode::Type,
    vendor_error: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> u32,
    byte_length: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> u32,
    immediate: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> u32,
    source_qp: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> u32,
    flags: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> u32,
    slid: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> u32,
}

impl PollCalls {
    fn of(cq: NonNull<ffi::ibv_cq_ex>) -> Option<PollCalls> {
        // SAFETY: the queue is alive, and its table does not change after creation.
        let table = unsafe { cq.as_ref() };
        Some(PollCalls {
            start: table.start_poll?,
            next: table.next_poll?,
            end: table.end_poll?,
            opcode: table.read_opcode?,
            vendor_error: table.read_vendor_err?,
            byte_length: table.read_byte_len?,
            immediate: table.read_imm_data?,
            source_qp: table.read_src_qp?,
            flags: table.read_wc_flags?,
            slid: table.read_slid?,
        })
    }
}

impl CompletionQueue {
    fn create(
        device: &HwDevice,
        entries: usize,
        wc_flags: u64,
    ) -> Result<CompletionQueue, OpenError> {
        let fields = ffi::IBV_WC_EX_WITH_BYTE_LEN
            | ffi::IBV_WC_EX_WITH_IMM
            | ffi::IBV_WC_EX_WITH_QP_NUM
            | ffi::IBV_WC_EX_WITH_SRC_QP
            | ffi::IBV_WC_EX_WITH_SLID;
        let mut attr = ffi::ibv_cq_init_attr_ex {
            cqe: entries as u32,
            wc_flags: u64::from(fields),
            ..Default::default()
        };
        let mut efa_attr = CqInitAttr {
            wc_flags,
            ..Default::default()
        };
        // SAFETY: the device is open and both structures are complete.
        let cq = NonNull::new(unsafe {
            efadv::efadv_create_cq(
                device.context(),
                &mut attr,
                &mut efa_attr,
                size_of::<CqInitAttr>() as u32,
            )
        })
        .ok_or_else(|| device.last_error("efadv_create_cq"))?;
        let Some(calls) = PollCalls::of(cq) else {
            let error = device.last_error("efadv_create_cq without read functions");
            // SAFETY: the queue was just created and is not used again.
            unsafe { ffi::ibv_destroy_cq(cq.as_ptr().cast()) };
            return Err(error);
        };
        // SAFETY: the queue is alive and was made by libefa.
        let efa = (wc_flags != 0)
            .then(|| NonNull::new(unsafe { efadv::efadv_cq_from_ibv_cq_ex(cq.as_ptr()) }))
            .flatten();
        let asked = wc_flags & efadv::WC_EX_WITH_IS_UNSOLICITED != 0;
        let is_unsolicited = efa.filter(|_| asked).and_then(|efa| {
            // SAFETY: a libefa that accepted the flag has the member.
            unsafe { efa.as_ref() }.wc_is_unsolicited
        });
        Ok(CompletionQueue {
            cq,
            efa,
            is_unsolicited,
            calls,
        })
    }

    /// `struct ibv_cq` is the beginning of `struct ibv_cq_ex`.
    fn as_cq(&self) -> *mut ffi::ibv_cq {
        self.cq.as_ptr().cast()
    }

    #[inline]
    fn poll(&mut self, limit: usize, mut take: impl FnMut(&Entry<'_>)) -> usize {
        if limit == 0 {
            return 0;
        }
        let cq = self.cq.as_ptr();
        let mut attr = ffi::ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue is alive, and `&mut self` makes this its only poll session.
        let mut result = unsafe { (self.calls.start)(cq, &mut attr) };
        if result != 0 {
            return 0;
        }
        let mut count = 0;
        while result == 0 {
            take(&Entry(self));
            count += 1;
            if count == limit {
                break;
            }
            // SAFETY: the session is open.
            result = unsafe { (self.calls.next)(cq) };
        }
        debug_assert!(
            result == 0 || result == ENOENT,
            "next_poll failed: {result}"
        );
        // SAFETY: the session is open, and this ends it.
        unsafe { (self.calls.end)(cq) };
        count
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue pair on it was destroyed before.
        unsafe { ffi::ibv_destroy_cq(self.as_cq()) };
    }
}

/// The completion that a poll session stands at.
pub(crate) struct Entry<'a>(&'a CompletionQueue);

impl Entry<'_> {
    #[inline]
    fn read<T>(&self, call: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> T) -> T {
        // SAFETY: an `Entry` exists only while the session stands at a completion.
        unsafe { call(self.0.cq.as_ptr()) }
    }

    #[inline]
    pub(crate) fn wr_id(&self) -> u64 {
        // SAFETY: as in `read`.
        unsafe { (*self.0.cq.as_ptr()).wr_id }
    }

    /// The device's own code, which the vendor error carries; libibverbs' status is coarser.
    #[inline]
    pub(crate) fn status(&self) -> Status {
        // SAFETY: as in `read`.
        let status = unsafe { (*self.0.cq.as_ptr()).status };
        if status == ffi::ibv_wc_status::IBV_WC_SUCCESS {
            return Status::Ok;
        }
        u8::try_from(self.read(self.0.calls.vendor_error))
            .ok()
            .and_then(Status::from_code)
            .filter(|status| *status != Status::Ok)
            .unwrap_or(Status::RemoteBadStatus)
    }

    /// A peer's write that consumed no receive.
    pub(crate) fn is_write_without_receive(&self) -> bool {
        let (Some(efa), Some(read)) = (self.0.efa, self.0.is_unsolicited) else {
            return false;
        };
        // SAFETY: an `Entry` exists only while the session stands at a completion.
        self.is_write_with_immediate() && unsafe { read(efa.as_ptr()) }
    }

    fn is_write_with_immediate(&self) -> bool {
        self.read(self.0.calls.opcode) == efadv::WC_RECV_RDMA_WITH_IMM
    }

    /// The completion of a receive whose buffer is `buffer`.
    #[inline]
    pub(crate) fn receive(&self, buffer: BufferId, status: Status) -> CompletionKind {
        let calls = &self.0.calls;
        if status != Status::Ok {
            let source = Source {
                ahn: None,
                qpn: Qpn(0),
                gid: None,
            };
            return CompletionKind::Recv {
                buffer,
                length: 0,
                source,
                immediate: None,
            };
        }
        let length = self.read(calls.byte_length) as usize;
        let source = self.source();
        let has_immediate = self.read(calls.flags) & ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        if !has_immediate {
            return CompletionKind::Recv {
                buffer,
                length,
                source,
                immediate: None,
            };
        }
        let immediate = u32::from_be(self.read(calls.immediate));
        if self.is_write_with_immediate() {
            let buffer = Some(buffer);
            return CompletionKind::RecvRdmaWithImmediate {
                buffer,
                length,
                source,
                immediate,
            };
        }
        CompletionKind::Recv {
            buffer,
            length,
            source,
            immediate: Some(immediate),
        }
    }

    /// The completion of a peer's write that consumed no receive.
    pub(crate) fn unsolicited_write(&self) -> CompletionKind {
        CompletionKind::RecvRdmaWithImmediate {
            buffer: None,
            length: self.read(self.0.calls.byte_length) as usize,
            source: self.source(),
            immediate: u32::from_be(self.read(self.0.calls.immediate)),
        }
    }

    #[inline]
    fn source(&self) -> Source {
        let qpn = Qpn(self.read(self.0.calls.source_qp) as u16);
        match self.read(self.0.calls.slid) as u16 {
            Ahn::UNKNOWN => Source {
                ahn: None,
                qpn,
                gid: self.source_gid(),
            },
            ahn => Source {
                ahn: Some(Ahn(ahn)),
                qpn,
                gid: None,
            },
        }
    }

    fn source_gid(&self) -> Option<Gid> {
        let efa = self.0.efa?;
        // SAFETY: the EFA part lives as long as the queue.
        let read = unsafe { efa.as_ref() }.wc_read_sgid?;
        let mut gid = ffi::ibv_gid::default();
        // SAFETY: as in `read`; `gid` is a whole `ibv_gid`.
        let result = unsafe { read(efa.as_ptr(), &mut gid) };
        // SAFETY: every bit pattern is valid for the byte view of the union.
        (result == 0).then_some(Gid(unsafe { gid.raw }))
    }
}

/// The error of a verbs call that has just failed to create a `what`.
pub(crate) fn last_nic_error(what: &'static str) -> NicError {
    match io::Error::last_os_error().raw_os_error() {
        Some(ENOMEM) => NicError::Exhausted(what),
        errno => NicError::Device(errno.unwrap_or(0)),
    }
}
