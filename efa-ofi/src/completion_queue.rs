//! Completion queues.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use efa_core::endpoint::{CompletionEntry, Errno, ErrorEntry};

use crate::border::{self, EAVAIL, ENOSYS, Object, Result, Users};
use crate::domain::Domain;
use crate::ffi::*;
use crate::unsupported;
use crate::wait::Patience;

/// A completion queue (`fid_cq`).
#[repr(C)]
pub(crate) struct CompletionQueue {
    c: fid_cq,
    domain: *const Domain,
    format: Format,
    pub(crate) users: Users,
    entries: Mutex<Entries>,
    signaled: AtomicBool,
}

/// What an entry tells (`enum fi_cq_format`).
#[derive(Clone, Copy, Debug)]
enum Format {
    Context,
    Message,
    Data,
    Tagged,
}

impl Format {
    fn size(self) -> usize {
        match self {
            Format::Context => size_of::<fi_cq_entry>(),
            Format::Message => size_of::<fi_cq_msg_entry>(),
            Format::Data => size_of::<fi_cq_data_entry>(),
            Format::Tagged => size_of::<fi_cq_tagged_entry>(),
        }
    }
}

#[derive(Debug, Default)]
struct Entries {
    done: VecDeque<(fi_cq_tagged_entry, fi_addr_t)>,
    failed: VecDeque<ErrorEntry>,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these operations.
unsafe impl Object for CompletionQueue {
    const CLASS: u32 = FI_CLASS_CQ;

    fn operations() -> &'static fi_ops {
        &FID
    }
}

static FID: fi_ops = fi_ops {
    close: Some(close),
    ..unsupported::FID
};

static OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
};

impl CompletionQueue {
    /// Adds the end of an operation.
    pub(crate) fn add(
        &self,
        result: std::result::Result<CompletionEntry, ErrorEntry>,
        source: fi_addr_t,
    ) {
        let Ok(mut entries) = self.entries.lock() else {
            return;
        };
        match result {
            Ok(entry) => entries.done.push_back((
                fi_cq_tagged_entry {
                    op_context: entry.context as *mut c_void,
                    flags: entry.flags.bits(),
                    len: entry.length as usize,
                    buf: entry.buffer as *mut c_void,
                    data: entry.data,
                    tag: entry.tag,
                },
                source,
            )),
            Err(entry) => entries.failed.push_back(entry),
        }
    }

    /// Makes progress, and moves what has completed to the application.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there is nothing, `FI_EAVAIL` if an error comes first.
    ///
    /// # Safety
    /// `buffer` has room for `count` entries, and `sources`, unless null, for as many addresses.
    unsafe fn read(
        &self,
        buffer: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
    ) -> Result<usize> {
        // SAFETY: a domain is not closed before its completion queues.
        unsafe { &*self.domain }.state()?.progress();
        let mut entries = self.entries.lock().map_err(|_| Errno::EOTHER)?;
        if !entries.failed.is_empty() {
            return Err(EAVAIL);
        }
        if entries.done.is_empty() {
            return Err(Errno::EAGAIN);
        }
        if buffer.is_null() && count > 0 {
            return Err(Errno::EINVAL);
        }
        let size = self.format.size();
        let taken = entries.done.len().min(count);
        for (index, (entry, source)) in entries.done.drain(..taken).enumerate() {
            // SAFETY: the room that the caller promises. The formats are prefixes of each other.
            unsafe {
                let to = buffer.cast::<u8>().add(index * size);
                std::ptr::copy_nonoverlapping(std::ptr::from_ref(&entry).cast::<u8>(), to, size);
                if !sources.is_null() {
                    sources.add(index).write(source);
                }
            }
        }
        Ok(taken)
    }

    /// As [`CompletionQueue::read`], for at most `timeout` milliseconds, or without end if that is negative.
    ///
    /// # Safety
    /// As there.
    unsafe fn wait(
        &self,
        buffer: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        timeout: c_int,
    ) -> Result<usize> {
        let patience = Patience::new(timeout);
        loop {
            // SAFETY: the caller's contract is the same.
            match unsafe { self.read(buffer, count, sources) } {
                Err(Errno::EAGAIN) => {}
                result => return result,
            }
            if self.signaled.swap(false, Ordering::Relaxed) || !patience.pause() {
                return Err(Errno::EAGAIN);
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: a domain is not closed before its completion queues.
        unsafe { (*self.domain).users.remove() };
    }
}

/// # Safety
/// As libfabric documents `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cq_attr,
    result: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let domain: &Domain = unsafe { border::object(domain.cast()) }?;
        // SAFETY: likewise.
        let attributes = unsafe { attributes.as_mut() }.ok_or(Errno::EINVAL)?;
        // There is no descriptor to wait on.
        if !matches!(
            attributes.wait_obj,
            FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD
        ) {
            return Err(ENOSYS);
        }
        let format = match attributes.format {
            FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_TAGGED => Format::Tagged,
            FI_CQ_FORMAT_CONTEXT => Format::Context,
            FI_CQ_FORMAT_MSG => Format::Message,
            FI_CQ_FORMAT_DATA => Format::Data,
            _ => return Err(ENOSYS),
        };
        if attributes.format == FI_CQ_FORMAT_UNSPEC {
            attributes.format = FI_CQ_FORMAT_TAGGED;
        }
        domain.users.add();
        let queue = CompletionQueue {
            c: fid_cq {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: std::ptr::from_ref(&OPS).cast_mut(),
            },
            domain,
            format,
            users: Users::default(),
            entries: Mutex::default(),
            signaled: AtomicBool::new(false),
        };
        // SAFETY: by the caller's contract.
        unsafe { queue.give_to(result) }
    })
}

/// # Safety
/// As libfabric documents `fi_close`.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let queue: &CompletionQueue = unsafe { border::object(fid.cast()) }?;
        queue.users.none()?;
        // SAFETY: no endpoint uses it, and C gives up its pointer.
        drop(unsafe { border::take(queue) });
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_cq_read`.
unsafe extern "C" fn read(queue: *mut fid_cq, buffer: *mut c_void, count: usize) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            border::transfer_object::<CompletionQueue>(queue.cast())?.read(
                buffer,
                count,
                std::ptr::null_mut(),
            )
        }
    })
}

/// # Safety
/// As libfabric documents `fi_cq_readfrom`.
unsafe extern "C" fn readfrom(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            border::transfer_object::<CompletionQueue>(queue.cast())?.read(buffer, count, sources)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_cq_sread`.
unsafe extern "C" fn sread(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            border::transfer_object::<CompletionQueue>(queue.cast())?.wait(
                buffer,
                count,
                std::ptr::null_mut(),
                timeout,
            )
        }
    })
}

/// # Safety
/// As libfabric documents `fi_cq_sreadfrom`.
unsafe extern "C" fn sreadfrom(
    queue: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            border::transfer_object::<CompletionQueue>(queue.cast())?
                .wait(buffer, count, sources, timeout)
        }
    })
}

/// # Safety
/// As libfabric documents `fi_cq_readerr`.
unsafe extern "C" fn readerr(
    queue: *mut fid_cq,
    buffer: *mut fi_cq_err_entry,
    _flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let queue: &CompletionQueue = unsafe { border::object(queue.cast()) }?;
        // SAFETY: likewise.
        let to = unsafe { buffer.as_mut() }.ok_or(Errno::EINVAL)?;
        let mut entries = queue.entries.lock().map_err(|_| Errno::EOTHER)?;
        let failed = entries.failed.pop_front().ok_or(Errno::EAGAIN)?;
        to.op_context = failed.context as *mut c_void;
        to.flags = failed.flags.bits();
        to.len = failed.length as usize;
        to.buf = std::ptr::null_mut();
        to.data = failed.data;
        to.tag = failed.tag;
        to.olen = failed.overflow_length as usize;
        to.err = failed.failure.errno.0;
        to.prov_errno = failed.failure.provider.code() as c_int;
        // Since interface 1.5 the application says how much room it has for more; there is no more.
        to.err_data_size = 0;
        Ok(1)
    })
}

/// # Safety
/// As libfabric documents `fi_cq_signal`.
unsafe extern "C" fn signal(queue: *mut fid_cq) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let queue: &CompletionQueue = unsafe { border::object(queue.cast()) }?;
        queue.signaled.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_cq_strerror`.
unsafe extern "C" fn strerror(
    _queue: *mut fid_cq,
    provider_errno: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: the caller's contract is the same.
    unsafe { strerror_of(provider_errno, buffer, length) }
}

/// A text for a provider's error number, also copied to the buffer unless that is null.
///
/// # Safety
/// The buffer is null or has room for `length` bytes.
pub(crate) unsafe fn strerror_of(
    provider_errno: c_int,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    let text: &'static CStr = match provider_errno {
        0 => c"no further detail",
        1..4096 => c"status of the device",
        _ => c"error of the protocol",
    };
    if !buffer.is_null() && length > 0 {
        let bytes = text.to_bytes();
        let count = bytes.len().min(length - 1);
        // SAFETY: there is room for `length` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), count);
            buffer.add(count).write(0);
        }
    }
    text.as_ptr()
}
