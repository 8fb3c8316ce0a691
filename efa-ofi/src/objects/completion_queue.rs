//! Completion queues.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use efa_core::endpoint::{Errno, ProviderError};

use crate::ffi::object::{self, Object, Ref, close, new_fid, transfer_object};
use crate::ffi::result::{EAVAIL, ENOSYS, Result, ssize, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::domain::Domain;
use crate::objects::queue::{Waitable, control, describe};
use crate::objects::wait_set::Membership;
use crate::state::completions::{Completions, Format, Reader};
use crate::state::wait::{Deadline, Sleeper, WaitFd, WaitObject, Woken};

/// Default number of entries of a queue.
const DEFAULT_SIZE: usize = 8192;

/// A completion queue (`fid_cq`).
#[repr(C)]
pub(crate) struct CompletionQueue {
    c: fid_cq,
    format: Format,
    /// The key of its entries in the domain's tables.
    pub(crate) key: usize,
    wait_object: WaitObject,
    wait_set: Option<Membership>,
    /// Calls wait for a number of completions (`FI_CQ_COND_THRESHOLD`).
    threshold: bool,
    signaled: AtomicBool,
    pub(crate) domain: Ref<Domain>,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these
// operations.
unsafe impl Object for CompletionQueue {
    const CLASS: u32 = FI_CLASS_CQ;
    const OPERATIONS: &'static Table<fi_ops> = &FID;

    fn opened(&self) {
        if let Some(wait_set) = &self.wait_set {
            wait_set.enter(self);
        }
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<CompletionQueue>),
    control: Some(control::<CompletionQueue>),
    ..unsupported::FID
});

static OPS: Table<fi_ops_cq> = Table::new(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
});

impl CompletionQueue {
    /// Opens a queue. Attributes that the application does not set get defaults.
    ///
    /// # Errors
    /// `FI_EINVAL` for unknown flags and conditions, `FI_ENOSYS` for unsupported formats and wait
    /// objects.
    pub(crate) fn open(
        domain: &Domain,
        attributes: &mut fi_cq_attr,
        context: *mut c_void,
    ) -> Result<CompletionQueue> {
        // Queues of a GPU (`FI_XPU`), of another provider (`FI_PEER`), and future flags.
        if attributes.flags & !FI_AFFINITY != 0 {
            return Err(Errno::EINVAL);
        }
        let threshold = match attributes.wait_cond {
            FI_CQ_COND_NONE => false,
            FI_CQ_COND_THRESHOLD => true,
            // Conditions only concern calls that wait.
            _ if attributes.wait_obj == FI_WAIT_NONE => false,
            _ => return Err(Errno::EINVAL),
        };
        if attributes.format == FI_CQ_FORMAT_UNSPEC {
            attributes.format = FI_CQ_FORMAT_TAGGED;
        }
        let format = match attributes.format {
            FI_CQ_FORMAT_TAGGED => Format::Tagged,
            FI_CQ_FORMAT_CONTEXT => Format::Context,
            FI_CQ_FORMAT_MSG => Format::Message,
            FI_CQ_FORMAT_DATA => Format::Data,
            _ => return Err(ENOSYS),
        };
        let mut state = domain.state()?;
        let wait_object = state.wait_object(attributes.wait_obj)?;
        let descriptor = wait_object.fd().map(|fd| fd.as_fd());
        let wait_set = Membership::of(attributes.wait_obj, attributes.wait_set, descriptor)?;
        if wait_set.is_none() {
            attributes.wait_obj = wait_object.kind();
        }
        if attributes.size == 0 {
            attributes.size = DEFAULT_SIZE;
        }
        let completions = Completions::new(attributes.size, wait_object.fd().cloned());
        Ok(CompletionQueue {
            c: fid_cq {
                fid: new_fid(context),
                ops: OPS.as_c(),
            },
            format,
            key: state.tables.queues.insert(completions),
            wait_object,
            wait_set,
            threshold,
            signaled: AtomicBool::new(false),
            domain: Ref::new(domain),
        })
    }

    pub(crate) fn fid(&self) -> &fid {
        &self.c.fid
    }

    /// Returns whether calls or programs may sleep until it changes.
    pub(crate) fn can_sleep(&self) -> bool {
        self.wait_object.fd().is_some()
    }

    /// Makes progress, and moves completions to the application.
    ///
    /// # Errors
    /// `FI_EAGAIN` if fewer than `least` completions are available and no error follows them,
    /// `FI_EAVAIL` if the next entry is an error.
    ///
    /// # Safety
    /// `buffer` has room for `count` entries, and `sources`, unless null, for `count` addresses.
    unsafe fn read(
        &self,
        buffer: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        least: usize,
    ) -> Result<usize> {
        let mut state = self.domain.state()?;
        // SAFETY: the room that the caller promises.
        let mut reader = unsafe { Reader::new(self.format, buffer, sources, count) };
        // Reading entries makes room for the device's completions, for which peers wait.
        if state.tables.check_room(Some(self.key)).is_ok() {
            if least == 1 && !buffer.is_null() {
                reader = state.progress_into(self.key, reader)?;
            } else {
                state.progress();
            }
        }
        if reader.count() == 0 {
            let completions = state.tables.completions(self.key)?;
            let available = completions.available(least)?;
            if buffer.is_null() && count > 0 {
                return Err(Errno::EINVAL);
            }
            for (entry, source) in completions.take(available.min(count)) {
                reader.put(&entry, source);
            }
        }
        Ok(reader.count())
    }

    /// As [`CompletionQueue::read`], for at most `timeout` milliseconds, or without end if that is
    /// negative.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the queue was opened without waiting; `FI_EAGAIN` after the time, after
    /// `fi_cq_signal`, and after a signal that the process handled.
    ///
    /// # Safety
    /// `buffer` has room for `count` entries, and `sources`, unless null, for `count` addresses.
    /// `condition` is null, or leads to a number if the queue has a threshold.
    unsafe fn wait(
        &self,
        buffer: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        condition: *const c_void,
        timeout: c_int,
    ) -> Result<usize> {
        if matches!(self.wait_object, WaitObject::None) {
            return Err(ENOSYS);
        }
        let least = match self.threshold && !condition.is_null() {
            // SAFETY: by the caller's contract a number.
            true => unsafe { condition.cast::<usize>().read() }.clamp(1, count.max(1)),
            false => 1,
        };
        let (start, until) = (Instant::now(), Deadline::after(timeout));
        loop {
            // SAFETY: the buffer and the sources have the room, by the caller's contract.
            match unsafe { self.read(buffer, count, sources, least) } {
                Err(Errno::EAGAIN) => {}
                result => return result,
            }
            if self.signaled.swap(false, Ordering::AcqRel) {
                return Err(Errno::EAGAIN);
            }
            let is_over = until.has_passed()
                || self.wait_object.pause(start, until, |wait_fd| {
                    let sleeper = self.arm(wait_fd, least)?;
                    Ok(sleeper.filter(|_| !self.signaled.load(Ordering::Acquire)))
                })? == Woken::Interrupted;
            if is_over {
                // Fewer than requested, if there are no more.
                // SAFETY: as above.
                return unsafe { self.read(buffer, count, sources, 1) };
            }
        }
    }

    /// Requests a notification at the next entry. Returns `None` if there are already `enough`
    /// entries, or may be some soon.
    fn arm<'a>(&self, wait_fd: &'a Arc<WaitFd>, enough: usize) -> Result<Option<Sleeper<'a>>> {
        let mut state = self.domain.state()?;
        let waits = state.arm()? && state.tables.completions(self.key)?.arm(enough);
        Ok(waits.then(|| wait_fd.prepare()))
    }
}

impl Waitable for CompletionQueue {
    fn wait_object(&self) -> (fi_wait_obj, Option<BorrowedFd<'_>>) {
        if let Some(wait_set) = &self.wait_set {
            return wait_set.wait_object();
        }
        let fd = self.wait_object.fd().map(|fd| fd.as_fd());
        (self.wait_object.kind(), fd)
    }

    fn try_wait(&self) -> Result<()> {
        let wait_fd = self.wait_object.fd().ok_or(Errno::EINVAL)?;
        let is_empty = self.arm(wait_fd, 1)?.is_some();
        match is_empty && !self.signaled.swap(false, Ordering::AcqRel) {
            true => Ok(()),
            false => Err(Errno::EAGAIN),
        }
    }

    fn has_news(&self) -> Result<bool> {
        // SAFETY: no entries are read, for which there would have to be room.
        let looked = unsafe { self.read(std::ptr::null_mut(), 0, std::ptr::null_mut(), 1) };
        match looked {
            Ok(_) | Err(EAVAIL) => Ok(true),
            Err(Errno::EAGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if let Ok(mut state) = self.domain.state() {
            state.tables.queues.try_remove(self.key);
        }
    }
}

/// Reads completions (`fi_cq_read`).
///
/// # Returns
/// The number of completions that were read; `-FI_EAGAIN` if there are none, `-FI_EAVAIL` if the
/// next entry is a failure.
///
/// # Safety
/// `queue` is null or a live object of libfabric; `buffer` is null or has room for that many
/// `entries` of the queue's format.
unsafe extern "C" fn read(queue: *mut fid_cq, buffer: *mut c_void, entries: usize) -> isize {
    // SAFETY: the queue and the buffer by the caller's contract; the sources may be null.
    unsafe { readfrom(queue, buffer, entries, std::ptr::null_mut()) }
}

/// Reads completions, with the addresses of senders (`fi_cq_readfrom`).
///
/// # Returns
/// As [`read`].
///
/// # Safety
/// `queue` is null or a live object of libfabric; `buffer` is null or has room for that many
/// `entries` of the queue's format, and `sources` is null or has room for as many addresses.
unsafe extern "C" fn readfrom(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    entries: usize,
    sources: *mut fi_addr_t,
) -> isize {
    ssize(|| {
        // SAFETY: by the caller's contract.
        let queue: &CompletionQueue = unsafe { transfer_object(queue.cast()) }?;
        // SAFETY: as above.
        unsafe { queue.read(buffer, entries, sources, 1) }
    })
}

/// Reads completions, and waits for them for `timeout` milliseconds (`fi_cq_sread`).
///
/// # Returns
/// As [`read`], and `-FI_ENOSYS` if the queue was opened without waiting.
///
/// # Safety
/// `queue` is null or a live object of libfabric; `buffer` is null or has room for that many
/// `entries` of the queue's format; `condition` is null, or leads to a number if the queue was
/// opened for `FI_CQ_COND_THRESHOLD`.
unsafe extern "C" fn sread(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    entries: usize,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: queue, buffer and condition by the caller's contract; the sources may be null.
    unsafe {
        sreadfrom(
            queue,
            buffer,
            entries,
            std::ptr::null_mut(),
            condition,
            timeout,
        )
    }
}

/// As [`sread`], with the addresses of senders (`fi_cq_sreadfrom`).
///
/// # Returns
/// As [`sread`].
///
/// # Safety
/// `queue` is null or a live object of libfabric; `buffer` is null or has room for that many
/// `entries` of the queue's format, and `sources` is null or has room for as many addresses;
/// `condition` is null, or leads to a number if the queue was opened for `FI_CQ_COND_THRESHOLD`.
unsafe extern "C" fn sreadfrom(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    entries: usize,
    sources: *mut fi_addr_t,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    ssize(|| {
        // SAFETY: by the caller's contract.
        let queue: &CompletionQueue = unsafe { transfer_object(queue.cast()) }?;
        // SAFETY: as above.
        unsafe { queue.wait(buffer, entries, sources, condition, timeout) }
    })
}

/// Reads a failure (`fi_cq_readerr`).
///
/// # Returns
/// 1; `-FI_EAGAIN` if there is none, or successes precede it; `-FI_EINVAL` for a wrong object.
///
/// # Safety
/// `buffer` is null or points to an entry. If its `err_data_size` is not 0, `err_data` is null or
/// has that many bytes.
unsafe extern "C" fn readerr(
    queue: *mut fid_cq,
    buffer: *mut fi_cq_err_entry,
    _flags: u64,
) -> isize {
    ssize(|| {
        // SAFETY: any pointer is permitted.
        let queue: &CompletionQueue = unsafe { object::object(queue.cast()) }?;
        // SAFETY: by the caller's contract.
        let to = unsafe { buffer.as_mut() }.ok_or(Errno::EINVAL)?;
        let mut state = queue.domain.state()?;
        let failure = state.tables.completions(queue.key)?.take_failure();
        let failed = failure.ok_or(Errno::EAGAIN)?;
        to.op_context = failed.context as *mut c_void;
        to.flags = failed.flags.bits();
        to.len = failed.length as usize;
        to.buf = std::ptr::null_mut();
        to.data = failed.data;
        to.tag = failed.tag;
        to.olen = failed.overflow_length as usize;
        to.err = failed.failure.errno.0;
        to.prov_errno = failed.failure.provider.code() as c_int;
        // Truncated, cancelled and missing messages need no further explanation.
        let has_reason = failed.failure.provider != ProviderError::None;
        let peer = failed.source.filter(|_| has_reason);
        let peer = peer.map(|peer| match state.core.lookup_address(peer) {
            Some(address) => format!("peer {address}"),
            None => "a peer that was removed from the address vector".to_owned(),
        });
        let detail = CString::new(peer.unwrap_or_default()).unwrap_or_default();
        // SAFETY: by the caller's contract.
        unsafe { give_detail(to, &detail, queue.domain.knows_detail_sizes) };
        state.tables.completions(queue.key)?.detail = detail;
        Ok(1)
    })
}

/// Attaches the text about a failure to an entry. It is copied to the application's buffer if the
/// entry has one. Otherwise the entry points to the text, which is valid until the next failure is
/// read. `has_size` is set for entries of interface 1.5 or newer, which have the length.
///
/// # Safety
/// With a length other than 0, `err_data` of the entry is valid for writes of that many bytes.
unsafe fn give_detail(to: &mut fi_cq_err_entry, detail: &CString, has_size: bool) {
    let bytes = detail.to_bytes_with_nul();
    // A failure without a peer has no text.
    if bytes.len() == 1 {
        to.err_data = std::ptr::null_mut();
        if has_size {
            to.err_data_size = 0;
        }
        return;
    }
    if !has_size {
        to.err_data = detail.as_ptr().cast_mut().cast();
        return;
    }
    if to.err_data_size == 0 || to.err_data.is_null() {
        to.err_data = detail.as_ptr().cast_mut().cast();
        to.err_data_size = bytes.len();
        return;
    }
    let count = bytes.len().min(to.err_data_size);
    // SAFETY: the buffer has room for this number of bytes, by the caller's contract.
    unsafe {
        let buffer = to.err_data.cast::<u8>();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, count);
        buffer.add(count - 1).write(0);
    }
    to.err_data_size = count;
}

/// Describes a provider's error number and a remedy, and the peer if `data` is from the failure's
/// entry (`fi_cq_strerror`). The text is also copied to the buffer unless that is null.
///
/// # Returns
/// A string that is valid until the calling thread describes the next error.
///
/// # Safety
/// `data` is null or a string, and `buffer` is null or valid for writes of `length` bytes.
unsafe extern "C" fn strerror(
    _queue: *mut fid_cq,
    provider_errno: c_int,
    data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: by the caller's contract.
    let detail = (!data.is_null()).then(|| unsafe { CStr::from_ptr(data.cast()) });
    let detail = detail.map(|detail| detail.to_string_lossy());
    // SAFETY: as above.
    unsafe { describe(provider_errno, detail.as_deref(), buffer, length) }
}

/// Ends a call that waits for completions (`fi_cq_signal`).
///
/// # Returns
/// 0, or `-FI_EINVAL` for a wrong object and a queue that was opened without waiting.
///
/// # Safety
/// Any pointer is permitted.
unsafe extern "C" fn signal(queue: *mut fid_cq) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let queue: &CompletionQueue = unsafe { object::object(queue.cast()) }?;
        if matches!(queue.wait_object, WaitObject::None) {
            return Err(Errno::EINVAL);
        }
        // The flag is set before the eventfd, whose system calls order the two: a thread that the
        // eventfd wakes sees the signal, and a thread that checked the flag earlier was already
        // prepared to be woken.
        queue.signaled.store(true, Ordering::Release);
        if let Some(wait_fd) = queue.wait_object.fd() {
            wait_fd.eventfd.notify();
        }
        Ok(())
    })
}
