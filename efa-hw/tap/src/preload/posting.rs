//! Records posting: `ibv_post_send`, `ibv_post_recv`, and the functions of `ibv_qp_ex`.
//!
//! A request is written before the library gets it, because another thread may see its completion
//! before the call returns. The record is published after the call, if the request was posted.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use efa_verbs_sys as ffi;
use efa_verbs_sys::ibv_wr_opcode::{IBV_WR_SEND, IBV_WR_SEND_WITH_IMM};

use super::memory::{Buffers, Source};
use super::ring::{self, Reservation, Ring};
use super::session::{Session, WorkRequest};
use super::state::{
    BUILDERS, CONTEXTS, OPS, PAIRS, QueuePair, READS_FOLLOWED, RealBuilders, RealOps,
};
use crate::exchange::{Body, kind};

/// A request that is written and not posted yet.
struct UnpostedRequest {
    reservation: Reservation,
    kind: u8,
    flags: u8,
    wr_id: u64,
}

/// The requests of one call: most calls have one, and need no memory.
#[derive(Default)]
struct Batch {
    first: Option<UnpostedRequest>,
    others: Vec<Option<UnpostedRequest>>,
    count: usize,
}

impl Batch {
    fn push(&mut self, entry: Option<UnpostedRequest>) {
        match self.count {
            0 => self.first = entry,
            _ => self.others.push(entry),
        }
        self.count += 1;
    }
}

impl QueuePair {
    /// Writes a request, except the word that publishes it.
    #[inline]
    fn reserve(
        &self,
        ring: &'static Ring,
        request: &WorkRequest,
        inline: &[u8],
        time: u64,
    ) -> Option<UnpostedRequest> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let source = match &request.inline {
            Some(range) => Source::Inline(inline.get(range.clone()).unwrap_or_default()),
            None => Source::Memory(&request.buffers, 0),
        };
        let length = match &source {
            Source::Inline(bytes) => bytes.len(),
            Source::Memory(buffers, _) => buffers.length(),
        };
        let most = match request.kind {
            kind::READ => 0,
            kind::WRITE if length > ring.rdma_data => 0,
            kind::WRITE => length,
            _ => ring.send_data,
        };
        let is_readable = request.inline.is_some() || most == 0 || request.buffers.is_readable();
        let recorded = if is_readable { length.min(most) } else { 0 };
        let reservation = ring.reserve(recorded)?;
        let body = Body {
            time,
            qpn: self.qpn,
            device: self.context.device,
            data_length: length as u32,
            recorded: recorded as u32,
            sequence,
            ..request.body
        };
        // SAFETY: there is room for this many bytes, which the program has passed to its device.
        unsafe { reservation.fill(body, &source) };
        if request.kind == kind::READ {
            self.follow_read(request);
        }
        Some(UnpostedRequest {
            reservation,
            kind: request.kind,
            flags: request.flags,
            wr_id: request.body.wr_id,
        })
    }

    /// Stores an RDMA read until it completes.
    #[inline(never)]
    fn follow_read(&self, request: &WorkRequest) {
        self.reads
            .with(|reads| reads.add(request.body.wr_id).set_to(&request.buffers));
        self.reads_under_way.fetch_add(1, Ordering::Relaxed);
        READS_FOLLOWED.store(true, Ordering::Relaxed);
    }

    /// Publishes requests, of which the first `posted` were posted.
    fn publish(&self, batch: Batch, posted: usize) {
        self.publish_one(batch.first, posted > 0);
        for (index, entry) in batch.others.into_iter().enumerate() {
            self.publish_one(entry, index + 1 < posted);
        }
    }

    #[inline]
    fn publish_one(&self, entry: Option<UnpostedRequest>, is_posted: bool) {
        let Some(written) = entry else { return };
        if is_posted {
            return written.reservation.publish(written.kind, written.flags);
        }
        written.reservation.void();
        if written.kind == kind::READ {
            self.take_read(written.wr_id);
        }
    }

    /// The memory of an RDMA read whose data is to be recorded.
    pub(crate) fn take_read(&self, wr_id: u64) -> Option<Buffers> {
        if self.reads_under_way.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut buffers = Buffers::NONE;
        if !self.reads.with(|reads| reads.take(wr_id, &mut buffers)) {
            return None;
        }
        self.reads_under_way.fetch_sub(1, Ordering::Relaxed);
        Some(buffers)
    }
}

/// The library's functions for a queue pair.
///
/// # Safety
/// The queue pair is valid.
#[inline]
unsafe fn ops_of(pair: *mut ffi::ibv_qp) -> Option<&'static RealOps> {
    OPS.get().or_else(|| {
        // SAFETY: by contract.
        let context = unsafe { (*pair).context };
        Some(&CONTEXTS.get(context.addr())?.real)
    })
}

/// `ibv_post_send`.
///
/// # Safety
/// The arguments are valid for rdma-core's `ibv_post_send`.
pub(crate) unsafe extern "C" fn post_send(
    pair: *mut ffi::ibv_qp,
    list: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    // SAFETY: the pair is valid, by contract.
    let Some(real) = unsafe { ops_of(pair) }.and_then(|ops| ops.post_send) else {
        return libc::EINVAL;
    };
    if ring::current().is_none() {
        // SAFETY: by contract.
        return unsafe { real(pair, list, bad) };
    }
    // SAFETY: by contract.
    unsafe { post_recorded(real, pair, list, bad) }
}

/// `ibv_post_send` of the library.
type PostSend = unsafe extern "C" fn(
    *mut ffi::ibv_qp,
    *mut ffi::ibv_send_wr,
    *mut *mut ffi::ibv_send_wr,
) -> c_int;

/// Posts and records. It is a separate function, so that an idle tap need not save or restore
/// registers for it.
///
/// # Safety
/// The arguments are valid for rdma-core's `ibv_post_send`, which is `real`.
#[inline(never)]
unsafe fn post_recorded(
    real: PostSend,
    pair: *mut ffi::ibv_qp,
    list: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    let recording = ring::recording().and_then(|ring| Some((ring, PAIRS.get(pair.addr())?)));
    let Some((ring, known)) = recording else {
        // SAFETY: by contract.
        return unsafe { real(pair, list, bad) };
    };
    let time = ring.now();
    let mut batch = Batch::default();
    let mut next = list;
    // SAFETY: a list of valid requests, by contract.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above. A queue pair of EFA has requests of this form.
        unsafe {
            let count = usize::try_from(wr.num_sge).unwrap_or(0);
            let buffers = Buffers::of(wr.sg_list, count);
            let is_inline = wr.send_flags & ffi::ibv_send_flags::IBV_SEND_INLINE.0 != 0;
            let mut inline = Vec::new();
            if is_inline {
                inline.resize(buffers.length(), 0);
                Source::Memory(&buffers, 0).copy_to(inline.as_mut_ptr(), inline.len());
            }
            let ud = wr.wr.ud;
            let immediate = (wr.opcode == IBV_WR_SEND_WITH_IMM)
                .then(|| u32::from_be(wr.__bindgen_anon_1.imm_data));
            let body = Body {
                wr_id: wr.wr_id,
                handle: ud.ah.addr() as u64,
                peer_qpn: ud.remote_qpn,
                qkey: ud.remote_qkey,
                ..Body::default()
            };
            let mut request = WorkRequest::default();
            request.set(known.kind_of_send(), body, immediate);
            request.buffers = buffers;
            request.inline = is_inline.then_some(0..inline.len());
            let entry = match wr.opcode {
                IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => known.reserve(ring, &request, &inline, time),
                _ => {
                    known.sequence.fetch_add(1, Ordering::Relaxed);
                    None
                }
            };
            batch.push(entry);
        }
        next = wr.next;
    }
    // SAFETY: by contract.
    let result = unsafe { real(pair, list, bad) };
    let posted = match result {
        0 => batch.count,
        // SAFETY: the library has reported the refused request by the list's own pointer.
        _ => unsafe { place_in(list, bad) },
    };
    let refused = batch.count.saturating_sub(posted) as u32;
    known.sequence.fetch_sub(refused, Ordering::Relaxed);
    known.publish(batch, posted);
    result
}

/// The number of requests before the refused one.
///
/// # Safety
/// The list is valid; `bad` is null or valid.
unsafe fn place_in(list: *mut ffi::ibv_send_wr, bad: *mut *mut ffi::ibv_send_wr) -> usize {
    let (mut next, mut place) = (list, 0);
    // SAFETY: by contract.
    unsafe {
        let refused = bad.as_ref().copied();
        while !next.is_null() && Some(next) != refused {
            next = (*next).next;
            place += 1;
        }
    }
    if next.is_null() { 0 } else { place }
}

/// `ibv_post_recv`. Receives are also stored while nothing is recorded, because they may complete
/// later.
///
/// # Safety
/// The arguments are valid for rdma-core's `ibv_post_recv`.
pub(crate) unsafe extern "C" fn post_recv(
    pair: *mut ffi::ibv_qp,
    list: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: the pair is valid, by contract.
    let Some(real) = unsafe { ops_of(pair) }.and_then(|ops| ops.post_recv) else {
        return libc::EINVAL;
    };
    let Some(known) = PAIRS.get(pair.addr()).filter(|_| ring::own().is_some()) else {
        // SAFETY: by contract.
        return unsafe { real(pair, list, bad) };
    };
    let receives = &known.receives;
    receives.with(|receives| {
        let mut next = list;
        // SAFETY: a list of valid receives, by contract.
        while let Some(wr) = unsafe { next.as_ref() } {
            let count = usize::try_from(wr.num_sge).unwrap_or(0);
            let buffers = receives.add(wr.wr_id);
            // SAFETY: as above.
            unsafe { buffers.set(wr.sg_list, count) };
            next = wr.next;
        }
    });
    // SAFETY: by contract.
    let result = unsafe { real(pair, list, bad) };
    if result != 0 {
        // SAFETY: the library has reported the refused receive.
        unsafe { forget(known, bad.as_ref().map_or(list, |bad| *bad)) };
    }
    result
}

/// Forgets refused receives: the first one and all after it were not posted.
///
/// # Safety
/// The list is valid.
#[cold]
unsafe fn forget(known: &QueuePair, list: *mut ffi::ibv_recv_wr) {
    let mut next = list;
    // SAFETY: by contract.
    while let Some(wr) = unsafe { next.as_ref() } {
        known
            .receives
            .with(|receives| receives.forget_last(wr.wr_id));
        next = wr.next;
    }
}

impl QueuePair {
    fn kind_of_send(&self) -> u8 {
        match self.is_datagram {
            true => kind::DATAGRAM,
            false => kind::SEND,
        }
    }
}

/// The library's function for a call of `ibv_qp_ex`. Only known queue pairs have the functions of
/// this file.
#[inline]
fn real_of<F>(
    pair: *mut ffi::ibv_qp_ex,
    function: impl FnOnce(&'static RealBuilders) -> Option<F>,
) -> Option<F> {
    BUILDERS
        .get()
        .or_else(|| Some(&PAIRS.get(pair.addr())?.real))
        .and_then(function)
}

/// Declares functions of `ibv_qp_ex`. Each makes the library's call. If the session is recorded, a
/// separate function does so and changes the session, so that an idle tap need not save or restore
/// registers for it.
macro_rules! recorded {
    ($($function:ident($($argument:ident: $type:ty),*) |$pair:ident, $known:ident, $session:ident| $change:expr;)*) => {$(
        /// # Safety
        /// The arguments are valid for rdma-core's function of this name.
        unsafe extern "C" fn $function($pair: *mut ffi::ibv_qp_ex $(, $argument: $type)*) {
            /// # Safety
            /// The arguments are valid for rdma-core's function of this name.
            #[inline(never)]
            unsafe fn record(number: u32, $pair: *mut ffi::ibv_qp_ex $(, $argument: $type)*) {
                let Some($known) = PAIRS.get($pair.addr()) else {
                    return;
                };
                if let Some(real) = $known.real.$function {
                    // SAFETY: by contract.
                    unsafe { real($pair $(, $argument)*) };
                }
                // SAFETY: the caller is between `wr_start` and `wr_complete` or `wr_abort`, so it
                // has exclusive access to the session.
                let $session = unsafe { &mut *$known.session.get() };
                if $session.recording == number {
                    $change
                }
            }
            if let Some(number) = ring::current() {
                // SAFETY: by contract.
                return unsafe { record(number, $pair $(, $argument)*) };
            }
            if let Some(real) = real_of($pair, |real| real.$function) {
                // SAFETY: by contract.
                unsafe { real($pair $(, $argument)*) };
            }
        }
    )*};
}

/// # Safety
/// The queue pair is valid, and no other thread builds requests for it.
unsafe extern "C" fn wr_start(pair: *mut ffi::ibv_qp_ex) {
    /// # Safety
    /// The queue pair is valid, and no other thread builds requests for it.
    #[inline(never)]
    unsafe fn record(number: u32, pair: *mut ffi::ibv_qp_ex) {
        let Some(known) = PAIRS.get(pair.addr()) else {
            return;
        };
        if let Some(real) = known.real.wr_start {
            // SAFETY: by contract.
            unsafe { real(pair) };
        }
        // SAFETY: the session belongs to this thread from here on.
        unsafe { &mut *known.session.get() }.start(number);
    }
    if let Some(number) = ring::current() {
        // SAFETY: by contract.
        return unsafe { record(number, pair) };
    }
    if let Some(real) = real_of(pair, |real| real.wr_start) {
        // SAFETY: by contract.
        unsafe { real(pair) };
    }
}

/// # Safety
/// The queue pair is valid, and this thread has called `wr_start`.
unsafe extern "C" fn wr_complete(pair: *mut ffi::ibv_qp_ex) -> c_int {
    let Some(real) = real_of(pair, |real| real.wr_complete) else {
        return libc::EINVAL;
    };
    // SAFETY: by contract.
    unsafe {
        match ring::current() {
            Some(number) => complete_recorded(real, pair, number),
            None => real(pair),
        }
    }
}

/// Posts the built requests and records them.
///
/// # Safety
/// The queue pair is valid, this thread has called `wr_start`, and `real` is its `wr_complete`.
#[inline(never)]
unsafe fn complete_recorded(
    real: unsafe extern "C" fn(*mut ffi::ibv_qp_ex) -> c_int,
    pair: *mut ffi::ibv_qp_ex,
    number: u32,
) -> c_int {
    // SAFETY: by contract.
    unsafe {
        let Some((ring, known)) = ring::own().zip(PAIRS.get(pair.addr())) else {
            return real(pair);
        };
        let session = &mut *known.session.get();
        if core::mem::take(&mut session.recording) != number {
            return real(pair);
        }
        let time = ring.now();
        if session.is_begun && session.earlier.is_empty() {
            let written = known.reserve(ring, &session.last, &session.inline, time);
            // From here on the session may belong to another thread.
            let result = real(pair);
            if result != 0 {
                known.sequence.fetch_sub(1, Ordering::Relaxed);
            }
            known.publish_one(written, result == 0);
            return result;
        }
        let mut batch = Batch::default();
        let last = session.is_begun.then_some(&session.last);
        for request in session.earlier.iter().chain(last) {
            batch.push(known.reserve(ring, request, &session.inline, time));
        }
        let count = batch.count;
        // From here on the session may belong to another thread.
        let result = real(pair);
        let posted = if result == 0 { count } else { 0 };
        if result != 0 {
            known.sequence.fetch_sub(count as u32, Ordering::Relaxed);
        }
        known.publish(batch, posted);
        result
    }
}

/// The known parts of a new request: its id, and the peer's memory.
///
/// # Safety
/// The queue pair is valid, and its session belongs to the caller.
#[inline(always)]
unsafe fn begun(pair: *mut ffi::ibv_qp_ex, (remote_key, remote_address): (u32, u64)) -> Body {
    Body {
        // SAFETY: by contract.
        wr_id: unsafe { (*pair).wr_id },
        remote_key,
        remote_address,
        ..Body::default()
    }
}

// SAFETY of all: a session between `wr_start` and `wr_complete` belongs to one thread, and
// arguments point to valid memory, by the contract of the library's functions.
recorded! {
    wr_send() |pair, known, session| {
        // SAFETY: as above.
        session.begin(known.kind_of_send(), unsafe { begun(pair, (0, 0)) }, None);
    };
    wr_send_imm(immediate: u32) |pair, known, session| {
        let immediate = Some(u32::from_be(immediate));
        // SAFETY: as above.
        session.begin(known.kind_of_send(), unsafe { begun(pair, (0, 0)) }, immediate);
    };
    wr_rdma_read(key: u32, address: u64) |pair, known, session| {
        // SAFETY: as above.
        session.begin(kind::READ, unsafe { begun(pair, (key, address)) }, None);
    };
    wr_rdma_write(key: u32, address: u64) |pair, known, session| {
        // SAFETY: as above.
        session.begin(kind::WRITE, unsafe { begun(pair, (key, address)) }, None);
    };
    wr_rdma_write_imm(key: u32, address: u64, immediate: u32) |pair, known, session| {
        let immediate = Some(u32::from_be(immediate));
        // SAFETY: as above.
        session.begin(kind::WRITE, unsafe { begun(pair, (key, address)) }, immediate);
    };
    wr_set_ud_addr(handle: *mut ffi::ibv_ah, qpn: u32, qkey: u32) |pair, known, session| {
        let body = &mut session.last.body;
        body.handle = handle.addr() as u64;
        body.peer_qpn = qpn;
        body.qkey = qkey;
    };
    wr_set_inline_data(address: *mut c_void, length: usize) |pair, known, session| {
        let buffers = Buffers::one(address.addr() as u64, length as u32, 0);
        // SAFETY: as above.
        unsafe { copy_inline(session, &[buffers]) };
    };
    wr_set_inline_data_list(count: usize, list: *const ffi::ibv_data_buf) |pair, known, session| {
        let parts: Vec<_> = (0..count)
            // SAFETY: as above.
            .map(|index| unsafe { list.add(index).read() })
            .map(|part| Buffers::one(part.addr.addr() as u64, part.length as u32, 0))
            .collect();
        // SAFETY: as above.
        unsafe { copy_inline(session, &parts) };
    };
    wr_set_sge(lkey: u32, address: u64, length: u32) |pair, known, session| {
        session.last.buffers = Buffers::one(address, length, lkey);
        session.last.inline = None;
    };
    wr_set_sge_list(count: usize, list: *const ffi::ibv_sge) |pair, known, session| {
        // SAFETY: as above.
        unsafe { session.last.buffers.set(list, count) };
        session.last.inline = None;
    };
}

/// The most inline data that is copied; a work request of EFA has room for less.
const MOST_INLINE: usize = 4096;

/// # Safety
/// The parts can be read.
unsafe fn copy_inline(session: &mut Session, parts: &[Buffers]) {
    let inline = &mut session.inline;
    let start = inline.len();
    for part in parts {
        let (at, length) = (inline.len(), part.length());
        if at - start + length > MOST_INLINE {
            break;
        }
        inline.resize(at + length, 0);
        // SAFETY: by contract; there is room for the part.
        unsafe { Source::Memory(part, 0).copy_to(inline.as_mut_ptr().add(at), length) };
    }
    session.last.inline = Some(start..inline.len());
}

/// Calls a macro for each function of `ibv_qp_ex` that EFA has.
macro_rules! builders {
    ($($function:ident),*) => {
        /// The builders of a queue pair without any.
        pub(crate) const NO_BUILDERS: RealBuilders = RealBuilders { $($function: None),* };

        /// The builders of a queue pair.
        pub(crate) fn builders(pair: &ffi::ibv_qp_ex) -> RealBuilders {
            RealBuilders { $($function: pair.$function),* }
        }

        /// Puts the functions of this file into a known queue pair. Functions that it lacks stay
        /// null.
        pub(crate) fn install(pair: &mut ffi::ibv_qp_ex) {
            $(pair.$function = pair.$function.map(|_| $function as _);)*
        }

        /// Restores the library's functions.
        pub(crate) fn uninstall(pair: &mut ffi::ibv_qp_ex, real: &RealBuilders) {
            $(pair.$function = real.$function;)*
        }
    };
}

builders!(
    wr_rdma_read,
    wr_rdma_write,
    wr_rdma_write_imm,
    wr_send,
    wr_send_imm,
    wr_set_ud_addr,
    wr_set_inline_data,
    wr_set_inline_data_list,
    wr_set_sge,
    wr_set_sge_list,
    wr_start,
    wr_complete
);
