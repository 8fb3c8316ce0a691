//! Event queues: events that the application has written, and failures of operations without a
//! completion. No other events of this provider are asynchronous.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use efa_core::endpoint::Errno;

use crate::ffi::object::{Object, Ref, close, new_fid, object};
use crate::ffi::result::{EAVAIL, ENOSYS, ETOOSMALL, Result, ssize};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::fabric::Fabric;
use crate::objects::queue::{Waitable, control, describe};
use crate::objects::wait_set::Membership;
use crate::state::events::Events;
use crate::state::wait::{self, Deadline, EventFd, Woken};

/// An event queue (`fid_eq`).
#[repr(C)]
pub(crate) struct EventQueue {
    c: fid_eq,
    pub(crate) events: Arc<Events>,
    wait_set: Option<Membership>,
    _fabric: Ref<Fabric>,
}

/// Default number of events of a queue, if its attributes have no size.
const SIZE: usize = 1024;

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these
// operations.
unsafe impl Object for EventQueue {
    const CLASS: u32 = FI_CLASS_EQ;
    const OPERATIONS: &'static Table<fi_ops> = &FID;

    fn opened(&self) {
        if let Some(wait_set) = &self.wait_set {
            wait_set.enter(self);
        }
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<EventQueue>),
    control: Some(control::<EventQueue>),
    ..unsupported::FID
});

static OPS: Table<fi_ops_eq> = Table::new(fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
});

impl EventQueue {
    /// # Errors
    /// `FI_EINVAL` for unknown flags, `FI_ENOSYS` for wait objects without a descriptor.
    pub(crate) fn open(
        fabric: &Fabric,
        attributes: Option<&fi_eq_attr>,
        context: *mut c_void,
    ) -> Result<EventQueue> {
        const DEFAULT: fi_eq_attr = fi_eq_attr {
            size: 0,
            flags: 0,
            wait_obj: FI_WAIT_NONE,
            signaling_vector: 0,
            wait_set: std::ptr::null_mut(),
        };
        let attributes = attributes.unwrap_or(&DEFAULT);
        if attributes.flags & !(FI_WRITE | FI_AFFINITY) != 0 {
            return Err(Errno::EINVAL);
        }
        let eventfd = match attributes.wait_obj {
            FI_WAIT_NONE => None,
            FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_SET => Some(EventFd::new()?),
            // Mutexes with condition variables, and looking again and again.
            _ => return Err(ENOSYS),
        };
        let descriptor = eventfd.as_ref().map(|eventfd| eventfd.as_fd());
        let wait_set = Membership::of(attributes.wait_obj, attributes.wait_set, descriptor)?;
        let limit = match attributes.size {
            0 => SIZE,
            size => size,
        };
        Ok(EventQueue {
            c: fid_eq {
                fid: new_fid(context),
                ops: OPS.as_c(),
            },
            events: Arc::new(Events::new(limit, eventfd)),
            wait_set,
            _fabric: Ref::new(fabric),
        })
    }

    /// Removes and returns the first event, or only returns it.
    ///
    /// # Errors
    /// `FI_EAVAIL` if the next event is a failure, `FI_EAGAIN` if there is none, `FI_ETOOSMALL` if
    /// the event does not fit the buffer, `FI_EINVAL` for other flags than `FI_PEEK`.
    ///
    /// # Safety
    /// `event` is valid for a write, and `buffer` for `length` bytes.
    unsafe fn take(
        &self,
        event: *mut u32,
        buffer: *mut c_void,
        length: usize,
        flags: u64,
    ) -> Result<usize> {
        let is_null = event.is_null() || (buffer.is_null() && length > 0);
        if is_null || flags & !FI_PEEK != 0 {
            return Err(Errno::EINVAL);
        }
        self.events.with(|events| {
            if !events.failed.is_empty() {
                return Err(EAVAIL);
            }
            let (kind, bytes) = events.written.front().ok_or(Errno::EAGAIN)?;
            if bytes.len() > length {
                return Err(ETOOSMALL);
            }
            let count = bytes.len();
            // SAFETY: by the caller's contract, and the event has room.
            unsafe {
                event.write(*kind);
                if count > 0 {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), count);
                }
            }
            if flags & FI_PEEK == 0 {
                events.written.pop_front();
            }
            Ok(count)
        })
    }
}

impl Waitable for EventQueue {
    fn wait_object(&self) -> (fi_wait_obj, Option<BorrowedFd<'_>>) {
        if let Some(wait_set) = &self.wait_set {
            return wait_set.wait_object();
        }
        match &self.events.eventfd {
            Some(eventfd) => (FI_WAIT_FD, Some(eventfd.as_fd())),
            None => (FI_WAIT_NONE, None),
        }
    }

    fn try_wait(&self) -> Result<()> {
        if self.events.eventfd.is_none() {
            return Err(Errno::EINVAL);
        }
        match self.has_news()? {
            false => Ok(()),
            true => Err(Errno::EAGAIN),
        }
    }

    fn has_news(&self) -> Result<bool> {
        Ok(!self.events.lock()?.is_empty())
    }
}

/// Reads an event that the application has written (`fi_eq_read`).
///
/// # Returns
/// Its length in bytes; `-FI_EAGAIN` if there is none, `-FI_EAVAIL` if the next event is a failure,
/// `-FI_ETOOSMALL` if it does not fit the buffer.
///
/// # Safety
/// `event` is null or valid for a write, and `buffer` is null or has room for `length` bytes.
unsafe extern "C" fn read(
    queue: *mut fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    ssize(|| {
        // SAFETY: any pointer is permitted for the queue; the others by the caller's contract.
        unsafe { object::<EventQueue>(queue.cast())?.take(event, buffer, length, flags) }
    })
}

/// As [`read`], and waits for an event for `timeout` milliseconds (`fi_eq_sread`).
///
/// # Returns
/// As [`read`], and `-FI_ENOSYS` if the queue was opened without waiting.
///
/// # Safety
/// `event` is null or valid for a write, and `buffer` is null or has room for `length` bytes.
unsafe extern "C" fn sread(
    queue: *mut fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    ssize(|| {
        // SAFETY: any pointer is permitted.
        let queue: &EventQueue = unsafe { object(queue.cast()) }?;
        let eventfd = queue.events.eventfd.as_ref().ok_or(ENOSYS)?;
        let until = Deadline::after(timeout);
        loop {
            // SAFETY: by the caller's contract.
            match unsafe { queue.take(event, buffer, length, flags) } {
                Err(Errno::EAGAIN) if !until.has_passed() => {}
                result => return result,
            }
            if wait::sleep(eventfd.as_fd(), until)? == Woken::Interrupted {
                // SAFETY: by the caller's contract.
                return unsafe { queue.take(event, buffer, length, flags) };
            }
        }
    })
}

/// Reads the failure of an operation that has no completion (`fi_eq_readerr`).
///
/// # Returns
/// The size of the entry in bytes; `-FI_EAGAIN` if there is none.
///
/// # Safety
/// `buffer` is null or points to an entry.
unsafe extern "C" fn readerr(
    queue: *mut fid_eq,
    buffer: *mut fi_eq_err_entry,
    flags: u64,
) -> isize {
    ssize(|| {
        // SAFETY: any pointer is permitted.
        let queue: &EventQueue = unsafe { object(queue.cast()) }?;
        // SAFETY: by the caller's contract.
        let to = unsafe { buffer.as_mut() }.ok_or(Errno::EINVAL)?;
        queue.events.with(|events| {
            let failed = events.failed.front().ok_or(Errno::EAGAIN)?;
            to.fid = failed.endpoint;
            to.context = failed.context;
            to.data = 0;
            to.err = failed.failure.errno.0;
            to.prov_errno = failed.failure.provider.code() as c_int;
            // The application passes a buffer for more data; there is none.
            to.err_data_size = 0;
            if flags & FI_PEEK == 0 {
                events.failed.pop_front();
            }
            Ok(size_of::<fi_eq_err_entry>())
        })
    })
}

/// Writes an event for [`read`] (`fi_eq_write`).
///
/// # Returns
/// `length`; `-FI_EAGAIN` if the queue is full, `-FI_EINVAL` with flags.
///
/// # Safety
/// `buffer` is null or has `length` bytes.
unsafe extern "C" fn write(
    queue: *mut fid_eq,
    event: u32,
    buffer: *const c_void,
    length: usize,
    flags: u64,
) -> isize {
    ssize(|| {
        // SAFETY: any pointer is permitted.
        let queue: &EventQueue = unsafe { object(queue.cast()) }?;
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let bytes = match length {
            0 => Vec::new(),
            _ if buffer.is_null() => return Err(Errno::EINVAL),
            // SAFETY: by the caller's contract.
            _ => unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) }.to_vec(),
        };
        queue
            .events
            .with(|events| match events.written.len() < events.limit {
                true => {
                    events.written.push_back((event, bytes));
                    Ok(length)
                }
                // The application has to read first.
                false => Err(Errno::EAGAIN),
            })
    })
}

/// Describes a provider's error number and a remedy (`fi_eq_strerror`). The text is also copied to
/// the buffer unless that is null. Events have no data.
///
/// # Returns
/// A string that is valid until the calling thread describes the next error.
///
/// # Safety
/// `buffer` is null or valid for writes of `length` bytes.
unsafe extern "C" fn strerror(
    _queue: *mut fid_eq,
    provider_errno: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: the buffer by the caller's contract.
    unsafe { describe(provider_errno, None, buffer, length) }
}
