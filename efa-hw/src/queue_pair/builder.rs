//! The work request builder of a queue pair, and the requests for it.

use crate::work_request::WorkRequestId;
use efa_core::nic::{Destination, LocalKey};
use efa_verbs_sys as ffi;
use std::ptr::{NonNull, null_mut};

/// A checked work request, without its data. The address of the data is passed to the library,
/// which would force the whole request into memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreparedRequest {
    pub(super) id: WorkRequestId,
    pub(super) destination: Destination,
    pub(super) operation: Operation,
    /// Whether the bytes are copied into the work request.
    pub(super) inline: bool,
}

/// The data of a work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScatterGatherList {
    pub(super) entries: [ffi::ibv_sge; 2],
    /// The number of used entries.
    pub(super) count: usize,
}

impl ScatterGatherList {
    #[inline(always)]
    pub(super) fn as_slice(&self) -> &[ffi::ibv_sge] {
        &self.entries[..self.count]
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Send(Option<u32>),
    Read {
        key: u32,
        address: u64,
    },
    Write {
        key: u32,
        address: u64,
        immediate: Option<u32>,
    },
}

/// The work request builder of the queue pair.
///
/// rdma-core declares these as inline functions over the table, so the table is the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendCalls {
    pub(super) qp: NonNull<ffi::ibv_qp_ex>,
    pub(super) start: unsafe extern "C" fn(*mut ffi::ibv_qp_ex),
    pub(super) complete: unsafe extern "C" fn(*mut ffi::ibv_qp_ex) -> i32,
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
    pub(super) fn of(qp: NonNull<ffi::ibv_qp_ex>) -> Option<SendCalls> {
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

    /// Adds a request to the open session.
    ///
    /// # Safety
    /// A session is open, and `handle` is alive.
    #[inline(always)]
    pub(super) unsafe fn build(
        &self,
        request: PreparedRequest,
        parts: &[ffi::ibv_sge],
        handle: *mut ffi::ibv_ah,
    ) {
        let qp = self.qp.as_ptr();
        let session = Session(self);
        // SAFETY: the builder reads these two members when the operation starts.
        unsafe {
            (*qp).wr_id = request.id.0;
            (*qp).wr_flags = 0;
        }
        match request.operation {
            Operation::Send(immediate) => session.send(immediate),
            Operation::Read { key, address } => session.read(key, address),
            Operation::Write {
                key,
                address,
                immediate,
            } => session.write(key, address, immediate),
        }
        match request.inline {
            true => session.inline(parts),
            false => session.gather(parts),
        }
        let Destination { qpn, qkey, .. } = request.destination;
        // SAFETY: the caller guarantees that `handle` is alive.
        unsafe { (self.set_ud_addr)(qp, handle, u32::from(qpn.0), qkey.0) };
    }
}

/// One work request under construction.
struct Session<'a>(&'a SendCalls);

impl Session<'_> {
    fn qp(&self) -> *mut ffi::ibv_qp_ex {
        self.0.qp.as_ptr()
    }

    /// Starts a send, with immediate data if given.
    #[inline]
    fn send(&self, immediate: Option<u32>) {
        // SAFETY: the queue pair is alive and a session is open.
        unsafe {
            match immediate {
                None => (self.0.send)(self.qp()),
                Some(immediate) => (self.0.send_imm)(self.qp(), immediate.to_be()),
            }
        }
    }

    /// Starts an RDMA read. On a device without RDMA read nothing is built, and completing the
    /// session fails.
    fn read(&self, key: u32, address: u64) {
        if let Some(read) = self.0.read {
            // SAFETY: as in `send`.
            unsafe { read(self.qp(), key, address) };
        }
    }

    /// Starts an RDMA write, with immediate data if given. On a device without RDMA write, as
    /// `read`.
    fn write(&self, key: u32, address: u64, immediate: Option<u32>) {
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

    /// Sets registered memory as the request's data.
    #[inline]
    fn gather(&self, entries: &[ffi::ibv_sge]) {
        // SAFETY: as in `send`; the device copies the entries.
        unsafe { (self.0.set_sge_list)(self.qp(), entries.len(), entries.as_ptr()) };
    }

    /// Copies bytes into the work request as its data: at most two segments.
    fn inline(&self, entries: &[ffi::ibv_sge]) {
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
        // SAFETY: as in `send`; the segments refer to memory that the domain may read, which is
        // copied immediately.
        unsafe { (self.0.set_inline_data_list)(self.qp(), count, pieces.as_ptr()) };
    }
}

/// An entry of a gather list.
pub(super) fn sge(address: u64, length: u32, key: LocalKey) -> ffi::ibv_sge {
    ffi::ibv_sge {
        addr: address,
        length,
        lkey: key.0,
    }
}
