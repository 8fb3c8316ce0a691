//! Records completions: `ibv_poll_cq`, and the functions of `ibv_cq_ex`.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use efa_verbs_sys as ffi;
use efa_verbs_sys::ibv_wc_opcode::{IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM};
use efa_verbs_sys::ibv_wc_status;

use super::memory::{Buffers, Source};
use super::ring::{self, Ring};
use super::state::{CONTEXTS, Context, OPS, POLLS, QUEUES, QueuePair, READS_FOLLOWED};
use crate::exchange::{Body, flag, kind};

/// Bytes before a datagram's data in the receive's buffers.
const GRH: usize = 40;
/// `slid` of a sender without an address handle.
const UNKNOWN: u32 = 0xffff;
const IBV_WC_WITH_IMM: u32 = 1 << 1;

/// A completion that the program is about to get.
struct Completion {
    wr_id: u64,
    /// EFA's status: 0 for success.
    status: u32,
    opcode: u32,
    length: u32,
    immediate: Option<u32>,
    peer_qpn: u32,
    handle: u32,
    gid: Option<[u8; 16]>,
}

/// Whether the tap currently needs a completion of this type. The success of a send is not
/// recorded.
#[inline]
fn is_followed(opcode: u32, is_success: bool) -> bool {
    opcode & IBV_WC_RECV != 0
        || READS_FOLLOWED.load(Ordering::Relaxed)
        || !is_success && ring::current().is_some()
}

impl QueuePair {
    /// Handles a completion that is not recorded: removes the posted request.
    #[inline]
    fn ended(&self, opcode: u32, wr_id: u64) {
        if opcode & IBV_WC_RECV == 0 {
            self.take_read(wr_id);
        } else {
            let mut buffers = Buffers::NONE;
            self.receives
                .with(|receives| receives.take(wr_id, &mut buffers));
        }
    }

    /// Records a completion.
    #[inline(always)]
    fn completed(&self, ring: &'static Ring, seen: &Completion) {
        if seen.opcode & IBV_WC_RECV == 0 {
            return self.request_completed(ring, seen);
        }
        // A write to a queue pair for unsolicited writes consumes no receive.
        let mut buffers = Buffers::NONE;
        self.receives
            .with(|receives| receives.take(seen.wr_id, &mut buffers));
        if seen.status == 0 {
            self.arrived(ring, seen, &buffers);
        }
    }

    #[inline(never)]
    fn request_completed(&self, ring: &'static Ring, seen: &Completion) {
        let read = self.take_read(seen.wr_id);
        // Successful completions are not recorded, except for their data.
        if seen.status == 0 && read.is_none() {
            return;
        }
        let buffers = read.filter(|_| seen.status == 0);
        let is_recorded =
            |buffers: &Buffers| buffers.length() <= ring.rdma_data && buffers.is_readable();
        let buffers = buffers.filter(is_recorded).unwrap_or(Buffers::NONE);
        let body = Body {
            time: ring.now(),
            status: seen.status,
            recorded: buffers.length() as u32,
            ..self.body(seen)
        };
        write(ring, kind::COMPLETED, 0, body, &buffers, 0);
    }

    #[inline(always)]
    fn arrived(&self, ring: &'static Ring, seen: &Completion, buffers: &Buffers) {
        let is_write = seen.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
        let skipped = if self.is_datagram { GRH } else { 0 };
        let length = (seen.length as usize).saturating_sub(skipped);
        let there = match !is_write && buffers.is_readable() {
            true => buffers.length().saturating_sub(skipped),
            false => 0,
        };
        let kind = match (is_write, self.is_datagram) {
            (true, _) => kind::RECEIVED_WRITE,
            (false, true) => kind::RECEIVED_DATAGRAM,
            (false, false) => kind::RECEIVED,
        };
        let has = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
        let flags =
            has(seen.immediate.is_some(), flag::IMMEDIATE) | has(seen.gid.is_some(), flag::GID);
        let body = Body {
            time: ring.now(),
            handle: seen.handle.into(),
            peer_qpn: seen.peer_qpn,
            qkey: self.qkey.load(Ordering::Relaxed),
            data_length: length as u32,
            recorded: length.min(ring.send_data).min(there) as u32,
            immediate: seen.immediate.unwrap_or(0),
            gid: seen.gid.unwrap_or_default(),
            ..self.body(seen)
        };
        write(ring, kind, flags, body, buffers, skipped);
    }

    #[inline(always)]
    fn body(&self, seen: &Completion) -> Body {
        Body {
            wr_id: seen.wr_id,
            qpn: self.qpn,
            device: self.context.device,
            ..Body::default()
        }
    }
}

/// Writes a record and the first bytes of its memory.
#[inline(always)]
fn write(ring: &'static Ring, kind: u8, flags: u8, body: Body, buffers: &Buffers, skipped: usize) {
    if let Some(reservation) = ring.reserve(body.recorded as usize) {
        // SAFETY: there is room; the memory was received into, and does not belong to the program
        // again yet.
        unsafe { reservation.fill(body, &Source::Memory(buffers, skipped)) };
        reservation.publish(kind, flags);
    }
}

/// `ibv_poll_cq`.
///
/// # Safety
/// The arguments are valid for rdma-core's `ibv_poll_cq`.
pub(crate) unsafe extern "C" fn poll_cq(
    queue: *mut ffi::ibv_cq,
    limit: c_int,
    completions: *mut ffi::ibv_wc,
) -> c_int {
    // SAFETY: the queue is valid, by contract.
    let context = || CONTEXTS.get(unsafe { (*queue).context }.addr());
    let ops = OPS.get().or_else(|| Some(&context()?.real));
    let Some(real) = ops.and_then(|ops| ops.poll_cq) else {
        return -libc::EINVAL;
    };
    // SAFETY: by contract.
    let count = unsafe { real(queue, limit, completions) };
    if count > 0
        && ring::own().is_some()
        && let Some(context) = context()
    {
        for index in 0..count as usize {
            // SAFETY: the library has written this many.
            see(context, unsafe { &*completions.add(index) });
        }
    }
    count
}

fn see(context: &Context, wc: &ffi::ibv_wc) {
    let is_success = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
    if is_followed(wc.opcode, is_success)
        && let Some(pair) = context.pair(wc.qp_num)
    {
        let Some(ring) = ring::recording() else {
            return pair.ended(wc.opcode, wc.wr_id);
        };
        let has_immediate = is_success && wc.wc_flags & ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        let seen = Completion {
            wr_id: wc.wr_id,
            status: if is_success { 0 } else { wc.vendor_err },
            opcode: wc.opcode,
            length: wc.byte_len,
            // SAFETY: both members of the union are 32 bits that the library has written.
            immediate: has_immediate.then(|| u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data })),
            peer_qpn: wc.src_qp,
            handle: wc.slid.into(),
            gid: None,
        };
        pair.completed(ring, &seen);
    }
}

/// `start_poll` of a known completion queue.
///
/// # Safety
/// The arguments are valid for rdma-core's `ibv_start_poll`.
pub(crate) unsafe extern "C" fn start_poll(
    queue: *mut ffi::ibv_cq_ex,
    attributes: *mut ffi::ibv_poll_cq_attr,
) -> c_int {
    let polls = POLLS
        .get()
        .or_else(|| Some(&QUEUES.get(queue.addr())?.real));
    let Some(real) = polls.and_then(|polls| polls.start_poll) else {
        return libc::ENOENT;
    };
    // SAFETY: by contract.
    let result = unsafe { real(queue, attributes) };
    if result == 0 {
        // SAFETY: the call has made a completion the current one.
        unsafe { see_current(queue) };
    }
    result
}

/// `next_poll` of a known completion queue.
///
/// # Safety
/// The arguments are valid for rdma-core's `ibv_next_poll`.
pub(crate) unsafe extern "C" fn next_poll(queue: *mut ffi::ibv_cq_ex) -> c_int {
    let polls = POLLS
        .get()
        .or_else(|| Some(&QUEUES.get(queue.addr())?.real));
    let Some(real) = polls.and_then(|polls| polls.next_poll) else {
        return libc::ENOENT;
    };
    // SAFETY: by contract.
    let result = unsafe { real(queue) };
    if result == 0 {
        // SAFETY: as in `start_poll`.
        unsafe { see_current(queue) };
    }
    result
}

/// # Safety
/// The queue has a current completion.
#[inline(always)]
unsafe fn see_current(queue: *mut ffi::ibv_cq_ex) {
    // SAFETY: by contract. Functions that the program did not request are missing.
    unsafe {
        let current = &*queue;
        if let Some(read_opcode) = current.read_opcode {
            let opcode = read_opcode(queue);
            if is_followed(opcode, current.status == 0) {
                look_at_current(queue, opcode);
            }
        }
    }
}

/// Records the current completion. It is a separate function, so that an idle tap need not save or
/// restore registers for it.
///
/// # Safety
/// The queue has a current completion.
#[inline(never)]
unsafe fn look_at_current(queue: *mut ffi::ibv_cq_ex, opcode: u32) {
    // SAFETY: by contract.
    unsafe {
        let current = &*queue;
        let read = |function: Option<unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> u32>| {
            function.map(|function| function(queue))
        };
        let Some(known) = QUEUES.get(queue.addr()) else {
            return;
        };
        let Some(pair) = read(current.read_qp_num).and_then(|qpn| known.context.pair(qpn)) else {
            return;
        };
        let Some(ring) = ring::recording() else {
            return pair.ended(opcode, current.wr_id);
        };
        let status = match current.status {
            0 => 0,
            // The operation did not succeed, so the recorded status must not be 0.
            _ => read(current.read_vendor_err)
                .filter(|code| *code != 0)
                .unwrap_or(u32::MAX),
        };
        let mut seen = Completion {
            wr_id: current.wr_id,
            status,
            opcode,
            length: 0,
            immediate: None,
            peer_qpn: 0,
            handle: UNKNOWN,
            gid: None,
        };
        if opcode & IBV_WC_RECV != 0 && status == 0 {
            seen.length = read(current.read_byte_len).unwrap_or(0);
            let flags = read(current.read_wc_flags).unwrap_or(0);
            if flags & IBV_WC_WITH_IMM != 0 {
                seen.immediate = read(current.read_imm_data).map(u32::from_be);
            }
            seen.peer_qpn = read(current.read_src_qp).unwrap_or(0);
            seen.handle = read(current.read_slid).unwrap_or(UNKNOWN);
            if seen.handle & UNKNOWN == UNKNOWN
                && let Some(efa) = known.efa.as_ref()
                && let Some(read_sgid) = efa.wc_read_sgid
            {
                let mut gid = ffi::ibv_gid { raw: [0; 16] };
                if read_sgid(known.efa, &raw mut gid) == 0 {
                    seen.gid = Some(gid.raw);
                }
            }
        }
        pair.completed(ring, &seen);
    }
}
