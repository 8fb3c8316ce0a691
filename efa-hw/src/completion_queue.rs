//! A completion queue, read through the function tables of the verbs.

use crate::completion_channel::CompletionChannel;
use crate::device::HwDevice;
use crate::efadv::{self, CqInitAttr};
use crate::error::{CompletionError, OpenError};
use crate::loaded;
use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::{BufferId, CompletionKind, DeviceCaps, NicError, Source, Status};
use efa_verbs_sys as ffi;
use std::ptr::NonNull;

/// The functions that read a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    cq: NonNull<ffi::ibv_cq_ex>,
    /// libefa's part of the queue, if completions have fields that only EFA has.
    efa: Option<NonNull<efadv::Cq>>,
    is_unsolicited: Option<unsafe extern "C" fn(*mut efadv::Cq) -> bool>,
    calls: PollCalls,
    channel: Option<CompletionChannel>,
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
    qp_num: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> u32,
    slid: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> u32,
}

// SAFETY: libibverbs allows calls from any thread; `poll` has its own contract.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

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
            qp_num: table.read_qp_num?,
            slid: table.read_slid?,
        })
    }
}

impl CompletionQueue {
    /// Creates a queue whose completions have all fields that this device can report.
    pub(crate) fn create(
        device: &HwDevice,
        entries: usize,
        channel: Option<CompletionChannel>,
    ) -> Result<CompletionQueue, OpenError> {
        let mut wc_flags = 0;
        if device.limits().caps.contains(DeviceCaps::CQ_WITH_SGID) {
            wc_flags |= efadv::WC_EX_WITH_SGID;
        }
        if device
            .limits()
            .caps
            .contains(DeviceCaps::UNSOLICITED_WRITE_RECV)
        {
            wc_flags |= efadv::WC_EX_WITH_IS_UNSOLICITED;
        }
        let fields = ffi::IBV_WC_EX_WITH_BYTE_LEN
            | ffi::IBV_WC_EX_WITH_IMM
            | ffi::IBV_WC_EX_WITH_QP_NUM
            | ffi::IBV_WC_EX_WITH_SRC_QP
            | ffi::IBV_WC_EX_WITH_SLID;
        let mut attr = ffi::ibv_cq_init_attr_ex {
            cqe: entries as u32,
            wc_flags: u64::from(fields),
            channel: channel
                .as_ref()
                .map_or(std::ptr::null_mut(), CompletionChannel::as_ptr),
            ..Default::default()
        };
        let mut efa_attr = CqInitAttr {
            wc_flags,
            ..Default::default()
        };
        // SAFETY: the device is open and both structures are complete.
        let cq = NonNull::new(unsafe {
            loaded::efadv_create_cq(
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
            unsafe { loaded::ibv_destroy_cq(cq.as_ptr().cast()) };
            return Err(error);
        };
        // SAFETY: the queue is alive and was created by libefa.
        let efa = (wc_flags != 0)
            .then(|| NonNull::new(unsafe { loaded::efadv_cq_from_ibv_cq_ex(cq.as_ptr()) }))
            .flatten();
        let is_requested = wc_flags & efadv::WC_EX_WITH_IS_UNSOLICITED != 0;
        let is_unsolicited = efa.filter(|_| is_requested).and_then(|efa| {
            // SAFETY: a libefa that accepted the flag has the member.
            unsafe { efa.as_ref() }.wc_is_unsolicited
        });
        Ok(CompletionQueue {
            cq,
            efa,
            is_unsolicited,
            calls,
            channel,
        })
    }

    /// The channel of the queue's events, if it was created with one.
    pub(crate) fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_ref()
    }

    /// As [`CompletionChannel::arm`]; `None` if the queue has no channel.
    pub(crate) fn arm(&self) -> Option<Result<(), NicError>> {
        // SAFETY: the queue is alive and was created with its channel.
        self.channel
            .as_ref()
            .map(|channel| unsafe { channel.arm(self.as_cq()) })
    }

    /// `struct ibv_cq` is the beginning of `struct ibv_cq_ex`.
    pub(crate) fn as_cq(&self) -> *mut ffi::ibv_cq {
        self.cq.as_ptr().cast()
    }

    /// Passes up to `limit` completions to `take`, and returns their number.
    ///
    /// # Safety
    /// No other call of `poll` is in progress.
    #[inline]
    pub(crate) unsafe fn poll(
        &self,
        limit: usize,
        mut take: impl FnMut(&CompletionEntry<'_>),
    ) -> usize {
        if limit == 0 {
            return 0;
        }
        let cq = self.cq.as_ptr();
        let mut attr = ffi::ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue is alive, and the caller guarantees that this is its only poll session.
        let mut result = unsafe { (self.calls.start)(cq, &mut attr) };
        if result != 0 {
            return 0;
        }
        let mut count = 0;
        while result == 0 {
            take(&CompletionEntry(self));
            count += 1;
            if count == limit {
                break;
            }
            // SAFETY: the session is open.
            result = unsafe { (self.calls.next)(cq) };
        }
        debug_assert!(
            result == 0 || result == libc::ENOENT,
            "next_poll failed: {result}"
        );
        // SAFETY: the session is open, and this ends it.
        unsafe { (self.calls.end)(cq) };
        count
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: every queue pair on the queue holds a reference to it, so none is left. All
        // events that were read are acknowledged, so the call does not wait. The channel is dropped
        // afterwards.
        unsafe { loaded::ibv_destroy_cq(self.as_cq()) };
    }
}

/// The source of completions that are no received messages.
const NOBODY: Source = Source {
    ahn: None,
    qpn: Qpn(0),
    gid: None,
};

/// The current completion of a poll session.
pub(crate) struct CompletionEntry<'a>(&'a CompletionQueue);

impl CompletionEntry<'_> {
    #[inline]
    fn read<T>(&self, call: unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> T) -> T {
        // SAFETY: a `CompletionEntry` only exists while the session is at a completion.
        unsafe { call(self.0.cq.as_ptr()) }
    }

    #[inline]
    pub(crate) fn wr_id(&self) -> u64 {
        // SAFETY: as in `read`.
        unsafe { (*self.0.cq.as_ptr()).wr_id }
    }

    /// The status from the device's own code in the vendor error; libibverbs' status is coarser.
    /// `failed` is called with an error. Its verb is empty: the device names a read a send.
    #[inline]
    pub(crate) fn status(&self, failed: impl FnOnce(CompletionError)) -> Status {
        // SAFETY: as in `read`.
        let status = unsafe { (*self.0.cq.as_ptr()).status };
        if status == ffi::ibv_wc_status::IBV_WC_SUCCESS {
            return Status::Ok;
        }
        let error = self.error(status);
        failed(error);
        error.status().unwrap_or(Status::RemoteBadStatus)
    }

    #[cold]
    fn error(&self, wc_status: ffi::ibv_wc_status::Type) -> CompletionError {
        CompletionError {
            verb: "",
            queue_pair: self.queue_pair(),
            vendor_status: self.read(self.0.calls.vendor_error),
            wc_status,
        }
    }

    /// The local queue pair.
    pub(crate) fn queue_pair(&self) -> Qpn {
        Qpn(self.read(self.0.calls.qp_num) as u16)
    }

    /// Returns whether this is a peer's write that consumed no receive.
    pub(crate) fn is_write_without_receive(&self) -> bool {
        let (Some(efa), Some(read)) = (self.0.efa, self.0.is_unsolicited) else {
            return false;
        };
        // SAFETY: a `CompletionEntry` only exists while the session is at a completion.
        self.is_write_with_immediate() && unsafe { read(efa.as_ptr()) }
    }

    fn is_write_with_immediate(&self) -> bool {
        self.read(self.0.calls.opcode) == efadv::WC_RECV_RDMA_WITH_IMM
    }

    /// The completion of a receive into user memory, and its status: a peer's RDMA write that
    /// consumed the receive wrote nothing into its memory.
    pub(crate) fn user_receive(&self, status: Status) -> (Status, CompletionKind) {
        if status != Status::Ok || self.is_write_with_immediate() {
            let status = match status {
                Status::Ok => Status::LocalUnsupportedOp,
                failed => failed,
            };
            let kind = CompletionKind::RecvUser {
                length: 0,
                source: NOBODY,
                immediate: None,
            };
            return (status, kind);
        }
        let kind = CompletionKind::RecvUser {
            length: self.read(self.0.calls.byte_length) as usize,
            source: self.source(),
            immediate: self.has_immediate().then(|| self.immediate()),
        };
        (status, kind)
    }

    /// The completion of a receive whose buffer is `buffer`, if it is a message without immediate
    /// data from a sender in the address book, as nearly all are. Its other fields are known then.
    #[inline(always)]
    pub(crate) fn plain_receive(&self, buffer: BufferId, status: Status) -> Option<CompletionKind> {
        let calls = &self.0.calls;
        if status != Status::Ok || self.has_immediate() {
            return None;
        }
        let ahn = self.read(calls.slid) as u16;
        (ahn != Ahn::UNKNOWN).then(|| CompletionKind::Recv {
            buffer,
            length: self.read(calls.byte_length) as usize,
            source: Source {
                ahn: Some(Ahn(ahn)),
                qpn: Qpn(self.read(calls.source_qp) as u16),
                gid: None,
            },
            immediate: None,
        })
    }

    /// The completion of any receive whose buffer is `buffer`.
    #[cold]
    pub(crate) fn receive(&self, buffer: BufferId, status: Status) -> CompletionKind {
        let (length, source) = match status {
            Status::Ok => (self.read(self.0.calls.byte_length) as usize, self.source()),
            _ => (0, NOBODY),
        };
        let has_immediate = status == Status::Ok && self.has_immediate();
        let immediate = has_immediate.then(|| self.immediate());
        match immediate {
            Some(immediate) if self.is_write_with_immediate() => {
                CompletionKind::RecvRdmaWithImmediate {
                    buffer: Some(buffer),
                    length,
                    source,
                    immediate,
                }
            }
            immediate => CompletionKind::Recv {
                buffer,
                length,
                source,
                immediate,
            },
        }
    }

    #[inline]
    fn has_immediate(&self) -> bool {
        self.read(self.0.calls.flags) & ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0
    }

    fn immediate(&self) -> u32 {
        u32::from_be(self.read(self.0.calls.immediate))
    }

    /// The completion of a peer's write that consumed no receive.
    pub(crate) fn unsolicited_write(&self) -> CompletionKind {
        CompletionKind::RecvRdmaWithImmediate {
            buffer: None,
            length: self.read(self.0.calls.byte_length) as usize,
            source: self.source(),
            immediate: self.immediate(),
        }
    }

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
        // SAFETY: the EFA part is valid as long as the queue.
        let read = unsafe { efa.as_ref() }.wc_read_sgid?;
        let mut gid = ffi::ibv_gid::default();
        // SAFETY: as in `read`; `gid` is a whole `ibv_gid`.
        let result = unsafe { read(efa.as_ptr(), &mut gid) };
        // SAFETY: every bit pattern is valid for the byte view of the union.
        (result == 0).then_some(Gid(unsafe { gid.raw }))
    }
}
