//! Posting: `ibv_post_send`, `ibv_post_recv`, and the calls of `ibv_qp_ex`.
//!
//! A request is written down before the library gets it, since another thread may see it complete before the call
//! returns. The reader gets the record after the call, if the request was posted.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::Ordering;

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_wr_opcode::{IBV_WR_SEND, IBV_WR_SEND_WITH_IMM};

use super::memory::{Buffers, Source};
use super::ring::{self, Reservation, Ring};
use super::state::{
    BUILDERS, CONTEXTS, OPS, PAIRS, Posted, QueuePair, READS_FOLLOWED, RealBuilders, RealOps, take,
};
use crate::exchange::{Record, flag, kind};

/// A request that is being built, or was posted.
#[derive(Clone)]
struct Request {
    kind: u8,
    wr_id: u64,
    immediate: Option<u32>,
    handle: u64,
    peer_qpn: u32,
    qkey: u32,
    remote_address: u64,
    remote_key: u32,
    buffers: Buffers,
    /// Which of the session's bytes are its data.
    inline: Option<Range<usize>>,
}

/// The requests between `wr_start` and `wr_complete`.
#[derive(Default)]
pub(crate) struct Session {
    /// The recording ([`ring::current`]) in which it began, if it is recorded. One that is switched off in between is
    /// another one, which leaves the session out.
    recording: Option<u32>,
    requests: Vec<Request>,
    inline: Vec<u8>,
}

/// A request that is written down and not posted yet.
struct Written {
    reservation: Reservation,
    kind: u8,
    flags: u8,
    wr_id: u64,
}

/// Requests of one call: most have one, and need no memory.
#[derive(Default)]
struct Batch {
    first: Option<Written>,
    others: Vec<Option<Written>>,
    count: usize,
}

impl Batch {
    fn push(&mut self, entry: Option<Written>) {
        match self.count {
            0 => self.first = entry,
            _ => self.others.push(entry),
        }
        self.count += 1;
    }
}

impl QueuePair {
    /// Writes a request down, all but the word that hands it to the reader.
    fn reserve(
        &self,
        ring: &'static Ring,
        request: &Request,
        inline: &[u8],
        time: u64,
        sequence: u32,
    ) -> Option<Written> {
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
        let record = Record {
            kind: request.kind,
            flags: request.immediate.map_or(0, |_| flag::IMMEDIATE),
            time,
            wr_id: request.wr_id,
            qpn: self.qpn,
            device: self.context.device,
            peer_qpn: request.peer_qpn,
            qkey: request.qkey,
            handle: request.handle,
            data_length: length as u32,
            recorded: recorded as u32,
            immediate: request.immediate.unwrap_or(0),
            remote_address: request.remote_address,
            remote_key: request.remote_key,
            sequence,
            ..Record::default()
        };
        let reservation = ring.reserve(recorded)?;
        // SAFETY: there is room for so many bytes, which the program has given to its device.
        unsafe { reservation.fill(&record, &source) };
        if request.kind == kind::READ {
            self.reads.with(|reads| {
                reads.push_back(Posted {
                    wr_id: request.wr_id,
                    buffers: Some(request.buffers),
                });
            });
            self.reads_under_way.fetch_add(1, Ordering::Relaxed);
            READS_FOLLOWED.store(true, Ordering::Relaxed);
        }
        Some(Written {
            reservation,
            kind: record.kind,
            flags: record.flags,
            wr_id: record.wr_id,
        })
    }

    /// Hands requests to the reader of which the first `posted` were posted.
    fn publish(&self, batch: Batch, posted: usize) {
        let entries = core::iter::once(batch.first).chain(batch.others);
        for (index, entry) in entries.enumerate() {
            let Some(written) = entry else { continue };
            if index < posted {
                written.reservation.publish(written.kind, written.flags);
                continue;
            }
            written.reservation.void();
            if written.kind == kind::READ {
                self.take_read(written.wr_id);
            }
        }
    }

    /// The memory of an RDMA read whose data is to be recorded.
    pub(crate) fn take_read(&self, wr_id: u64) -> Option<Buffers> {
        if self.reads_under_way.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let buffers = self.reads.with(|reads| take(reads, wr_id))?;
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
/// As the library's.
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

/// Posts and writes down. It stands apart, so that an idle tap has nothing of it to save or restore.
///
/// # Safety
/// As [`post_send`].
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
        // SAFETY: as above. A queue pair of EFA's has requests of this form.
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
            let request = Request {
                kind: known.kind_of_send(),
                wr_id: wr.wr_id,
                immediate: (wr.opcode == IBV_WR_SEND_WITH_IMM)
                    .then(|| u32::from_be(wr.__bindgen_anon_1.imm_data)),
                handle: ud.ah.addr() as u64,
                peer_qpn: ud.remote_qpn,
                qkey: ud.remote_qkey,
                remote_address: 0,
                remote_key: 0,
                buffers,
                inline: is_inline.then_some(0..inline.len()),
            };
            let sequence = known.sequence.fetch_add(1, Ordering::Relaxed);
            let is_known = matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM);
            let entry = is_known.then(|| known.reserve(ring, &request, &inline, time, sequence));
            batch.push(entry.flatten());
        }
        next = wr.next;
    }
    // SAFETY: by contract.
    let result = unsafe { real(pair, list, bad) };
    let posted = match result {
        0 => batch.count,
        // SAFETY: the library has said which request it refused, by the list's own pointer.
        _ => unsafe { place_in(list, bad) },
    };
    let refused = batch.count.saturating_sub(posted) as u32;
    known.sequence.fetch_sub(refused, Ordering::Relaxed);
    known.publish(batch, posted);
    result
}

/// How many requests stand before the one that was refused.
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

/// `ibv_post_recv`. Receives are remembered also while nothing is recorded: they may complete later.
///
/// # Safety
/// As the library's.
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
            // SAFETY: as above.
            let buffers = unsafe { Buffers::of(wr.sg_list, count) };
            receives.push_back(Posted {
                wr_id: wr.wr_id,
                buffers: Some(buffers),
            });
            next = wr.next;
        }
    });
    // SAFETY: by contract.
    let result = unsafe { real(pair, list, bad) };
    if result != 0 {
        // SAFETY: the library has said which receive it refused.
        unsafe { forget(known, bad.as_ref().map_or(list, |bad| *bad)) };
    }
    result
}

/// Forgets receives that were refused: the first one and those behind it were not posted.
///
/// # Safety
/// The list is valid.
#[cold]
unsafe fn forget(known: &QueuePair, list: *mut ffi::ibv_recv_wr) {
    let mut next = list;
    // SAFETY: by contract.
    while let Some(wr) = unsafe { next.as_ref() } {
        known.receives.with(|receives| {
            let mut of_id = receives.iter_mut().rev();
            if let Some(entry) = of_id.find(|entry| entry.wr_id == wr.wr_id) {
                entry.buffers = None;
            }
        });
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

    /// Runs `step` on the session, if it belongs to this recording.
    ///
    /// # Safety
    /// The caller is between `wr_start` and `wr_complete` or `wr_abort`.
    #[inline]
    unsafe fn step(&self, recording: u32, step: impl FnOnce(&mut Session)) {
        // SAFETY: by contract.
        let session = unsafe { &mut *self.session.get() };
        if session.recording == Some(recording) {
            step(session);
        }
    }

    /// Begins a request in the session.
    ///
    /// # Safety
    /// As [`QueuePair::step`]; `pair` is the library's.
    #[inline(never)]
    unsafe fn begin(
        &self,
        recording: u32,
        pair: *mut ffi::ibv_qp_ex,
        kind: u8,
        immediate: Option<u32>,
        (remote_key, remote_address): (u32, u64),
    ) {
        // SAFETY: by contract.
        unsafe {
            let wr_id = (*pair).wr_id;
            self.step(recording, |session| {
                session.requests.push(Request {
                    kind,
                    wr_id,
                    immediate,
                    handle: 0,
                    peer_qpn: 0,
                    qkey: 0,
                    remote_address,
                    remote_key,
                    buffers: Buffers::NONE,
                    inline: None,
                });
            });
        }
    }

    /// Changes the last request of the session.
    ///
    /// # Safety
    /// As [`QueuePair::step`].
    #[inline(never)]
    unsafe fn change(&self, recording: u32, change: impl FnOnce(&mut Request, &mut Vec<u8>)) {
        // SAFETY: by contract.
        unsafe {
            self.step(recording, |session| {
                if let Some(request) = session.requests.last_mut() {
                    change(request, &mut session.inline);
                }
            });
        }
    }
}

/// The library's function for a call of `ibv_qp_ex`. Only queue pairs that are known have the functions of this file.
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

/// Makes the library's call. The function goes on behind it with the queue pair and the number of the recording if the
/// call is recorded, and else returns what the library does.
macro_rules! call {
    ($function:ident($pair:ident $(, $argument:expr)*)) => {{
        let Some(real) = real_of($pair, |real| real.$function) else {
            return;
        };
        let recording = ring::current();
        let recorded = recording.and_then(|recording| Some((PAIRS.get($pair.addr())?, recording)));
        let Some(recorded) = recorded else {
            // SAFETY: by contract.
            return unsafe { real($pair $(, $argument)*) };
        };
        // SAFETY: by contract.
        unsafe { real($pair $(, $argument)*) };
        recorded
    }};
}

/// # Safety
/// As the library's; the same holds for all that follow.
unsafe extern "C" fn wr_start(pair: *mut ffi::ibv_qp_ex) {
    let (known, recording) = call!(wr_start(pair));
    // SAFETY: the session is this thread's from here on.
    let session = unsafe { &mut *known.session.get() };
    session.recording = Some(recording);
    session.requests.clear();
    session.inline.clear();
}

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

/// Posts what was built and writes it down.
///
/// # Safety
/// As [`wr_complete`].
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
        if session.recording.take() != Some(number) {
            return real(pair);
        }
        let time = ring.now();
        let mut batch = Batch::default();
        for request in &session.requests {
            let sequence = known.sequence.fetch_add(1, Ordering::Relaxed);
            batch.push(known.reserve(ring, request, &session.inline, time, sequence));
        }
        let count = batch.count;
        // From here on the session may be another thread's.
        let result = real(pair);
        let posted = if result == 0 { count } else { 0 };
        if result != 0 {
            known.sequence.fetch_sub(count as u32, Ordering::Relaxed);
        }
        known.publish(batch, posted);
        result
    }
}

unsafe extern "C" fn wr_send(pair: *mut ffi::ibv_qp_ex) {
    let (known, recording) = call!(wr_send(pair));
    // SAFETY: by contract.
    unsafe {
        known.begin(recording, pair, known.kind_of_send(), None, (0, 0));
    }
}

unsafe extern "C" fn wr_send_imm(pair: *mut ffi::ibv_qp_ex, immediate: u32) {
    let (known, recording) = call!(wr_send_imm(pair, immediate));
    // SAFETY: by contract.
    unsafe {
        let immediate = Some(u32::from_be(immediate));
        known.begin(recording, pair, known.kind_of_send(), immediate, (0, 0));
    }
}

unsafe extern "C" fn wr_rdma_read(pair: *mut ffi::ibv_qp_ex, key: u32, address: u64) {
    let (known, recording) = call!(wr_rdma_read(pair, key, address));
    // SAFETY: by contract.
    unsafe {
        known.begin(recording, pair, kind::READ, None, (key, address));
    }
}

unsafe extern "C" fn wr_rdma_write(pair: *mut ffi::ibv_qp_ex, key: u32, address: u64) {
    let (known, recording) = call!(wr_rdma_write(pair, key, address));
    // SAFETY: by contract.
    unsafe {
        known.begin(recording, pair, kind::WRITE, None, (key, address));
    }
}

unsafe extern "C" fn wr_rdma_write_imm(
    pair: *mut ffi::ibv_qp_ex,
    key: u32,
    address: u64,
    immediate: u32,
) {
    let (known, recording) = call!(wr_rdma_write_imm(pair, key, address, immediate));
    // SAFETY: by contract.
    unsafe {
        let immediate = Some(u32::from_be(immediate));
        known.begin(recording, pair, kind::WRITE, immediate, (key, address));
    }
}

unsafe extern "C" fn wr_set_ud_addr(
    pair: *mut ffi::ibv_qp_ex,
    handle: *mut ffi::ibv_ah,
    qpn: u32,
    qkey: u32,
) {
    let (known, recording) = call!(wr_set_ud_addr(pair, handle, qpn, qkey));
    // SAFETY: by contract.
    unsafe {
        known.change(recording, |request, _| {
            request.handle = handle.addr() as u64;
            request.peer_qpn = qpn;
            request.qkey = qkey;
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(
    pair: *mut ffi::ibv_qp_ex,
    address: *mut c_void,
    length: usize,
) {
    let (known, recording) = call!(wr_set_inline_data(pair, address, length));
    // SAFETY: by contract.
    unsafe {
        let buffers = Buffers::one(address.addr() as u64, length as u32, 0);
        known.change(recording, |request, inline| {
            copy_inline(request, inline, &[buffers])
        });
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    pair: *mut ffi::ibv_qp_ex,
    count: usize,
    list: *const ffi::ibv_data_buf,
) {
    let (known, recording) = call!(wr_set_inline_data_list(pair, count, list));
    // SAFETY: by contract.
    unsafe {
        known.change(recording, |request, inline| {
            let parts: Vec<_> = (0..count)
                .map(|index| list.add(index).read())
                .map(|part| Buffers::one(part.addr.addr() as u64, part.length as u32, 0))
                .collect();
            copy_inline(request, inline, &parts);
        });
    }
}

/// The most that is copied of inline data; a work request of EFA's has room for less.
const MOST_INLINE: usize = 4096;

/// # Safety
/// The parts can be read.
unsafe fn copy_inline(request: &mut Request, inline: &mut Vec<u8>, parts: &[Buffers]) {
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
    request.inline = Some(start..inline.len());
}

unsafe extern "C" fn wr_set_sge(pair: *mut ffi::ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    let (known, recording) = call!(wr_set_sge(pair, lkey, address, length));
    // SAFETY: by contract.
    unsafe {
        known.change(recording, |request, _| {
            request.buffers = Buffers::one(address, length, lkey);
            request.inline = None;
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(
    pair: *mut ffi::ibv_qp_ex,
    count: usize,
    list: *const ffi::ibv_sge,
) {
    let (known, recording) = call!(wr_set_sge_list(pair, count, list));
    // SAFETY: by contract.
    unsafe {
        known.change(recording, |request, _| {
            request.buffers = Buffers::of(list, count);
            request.inline = None;
        });
    }
}

/// What is done with each function of `ibv_qp_ex` that EFA has.
macro_rules! builders {
    ($($function:ident),*) => {
        /// What a queue pair without builders has.
        pub(crate) const NO_BUILDERS: RealBuilders = RealBuilders { $($function: None),* };

        /// The builders of a queue pair.
        pub(crate) fn builders(pair: &ffi::ibv_qp_ex) -> RealBuilders {
            RealBuilders { $($function: pair.$function),* }
        }

        /// Puts the functions of this file into a queue pair that is known. Those that it lacks stay missing.
        pub(crate) fn install(pair: &mut ffi::ibv_qp_ex) {
            $(pair.$function = pair.$function.map(|_| $function as _);)*
        }

        /// Puts the library's functions back.
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
