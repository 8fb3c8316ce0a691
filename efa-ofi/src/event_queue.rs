//! Event queues: what the application has written, and failures of operations that have no completion. Nothing else
//! of this provider happens asynchronously.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;

use efa_core::endpoint::{Errno, Failure};

use crate::border::{self, EAVAIL, ENOSYS, ETOOSMALL, Object, Result, Users};
use crate::completion_queue::strerror_of;
use crate::fabric::Fabric;
use crate::ffi::*;
use crate::unsupported;
use crate::wait::Patience;

/// An event queue (`fid_eq`).
#[repr(C)]
pub(crate) struct EventQueue {
    c: fid_eq,
    fabric: *const Fabric,
    pub(crate) users: Users,
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Events {
    written: VecDeque<(u32, Vec<u8>)>,
    failed: VecDeque<Failed>,
}

/// The failure of an operation that has no completion.
#[derive(Debug)]
struct Failed {
    endpoint: fid_t,
    /// That of the endpoint.
    context: *mut c_void,
    failure: Failure,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these operations.
unsafe impl Object for EventQueue {
    const CLASS: u32 = FI_CLASS_EQ;

    fn operations() -> &'static fi_ops {
        &FID
    }
}

static FID: fi_ops = fi_ops {
    close: Some(close),
    ..unsupported::FID
};

static OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

impl EventQueue {
    /// # Errors
    /// `FI_ENOSYS` for wait objects that have a descriptor.
    pub(crate) fn open(
        fabric: &Fabric,
        attributes: Option<&fi_eq_attr>,
        context: *mut c_void,
    ) -> Result<EventQueue> {
        if attributes
            .is_some_and(|attributes| !matches!(attributes.wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC))
        {
            return Err(ENOSYS);
        }
        fabric.users.add();
        Ok(EventQueue {
            c: fid_eq {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: std::ptr::from_ref(&OPS).cast_mut(),
            },
            fabric,
            users: Users::default(),
            events: Mutex::default(),
        })
    }

    /// Adds the failure of an operation of an endpoint.
    pub(crate) fn fail(&self, endpoint: &fid, failure: Failure) {
        if let Ok(mut events) = self.events.lock() {
            events.failed.push_back(Failed {
                endpoint: std::ptr::from_ref(endpoint).cast_mut(),
                context: endpoint.context,
                failure,
            });
        }
    }

    /// Takes the first event, or only looks at it.
    ///
    /// # Errors
    /// `FI_EAVAIL` if a failure comes first, `FI_EAGAIN` if there is nothing, `FI_ETOOSMALL` if the event has no room.
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
        let mut events = self.events.lock().map_err(|_| Errno::EOTHER)?;
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
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        // SAFETY: a fabric is not closed before its queues.
        unsafe { (*self.fabric).users.remove() };
    }
}

/// # Safety
/// As libfabric documents `fi_close`.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let queue: &EventQueue = unsafe { border::object(fid.cast()) }?;
        queue.users.none()?;
        // SAFETY: no endpoint uses it, and C gives up its pointer.
        drop(unsafe { border::take(queue) });
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_eq_read`.
unsafe extern "C" fn read(
    queue: *mut fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        unsafe { border::object::<EventQueue>(queue.cast())?.take(event, buffer, length, flags) }
    })
}

/// # Safety
/// As libfabric documents `fi_eq_sread`.
unsafe extern "C" fn sread(
    queue: *mut fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let queue: &EventQueue = unsafe { border::object(queue.cast()) }?;
        let patience = Patience::new(timeout);
        loop {
            // SAFETY: by the caller's contract.
            match unsafe { queue.take(event, buffer, length, flags) } {
                Err(Errno::EAGAIN) if patience.pause() => {}
                result => return result,
            }
        }
    })
}

/// # Safety
/// As libfabric documents `fi_eq_readerr`.
unsafe extern "C" fn readerr(
    queue: *mut fid_eq,
    buffer: *mut fi_eq_err_entry,
    flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let queue: &EventQueue = unsafe { border::object(queue.cast()) }?;
        // SAFETY: likewise.
        let to = unsafe { buffer.as_mut() }.ok_or(Errno::EINVAL)?;
        let mut events = queue.events.lock().map_err(|_| Errno::EOTHER)?;
        let failed = events.failed.front().ok_or(Errno::EAGAIN)?;
        to.fid = failed.endpoint;
        to.context = failed.context;
        to.data = 0;
        to.err = failed.failure.errno.0;
        to.prov_errno = failed.failure.provider.code() as c_int;
        // The application says how much room it has for more; there is no more.
        to.err_data_size = 0;
        if flags & FI_PEEK == 0 {
            events.failed.pop_front();
        }
        Ok(size_of::<fi_eq_err_entry>())
    })
}

/// # Safety
/// As libfabric documents `fi_eq_write`.
unsafe extern "C" fn write(
    queue: *mut fid_eq,
    event: u32,
    buffer: *const c_void,
    length: usize,
    _flags: u64,
) -> isize {
    border::count(|| {
        // SAFETY: by the caller's contract.
        let queue: &EventQueue = unsafe { border::object(queue.cast()) }?;
        let bytes = match length {
            0 => Vec::new(),
            _ if buffer.is_null() => return Err(Errno::EINVAL),
            // SAFETY: by the caller's contract.
            _ => unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) }.to_vec(),
        };
        let mut events = queue.events.lock().map_err(|_| Errno::EOTHER)?;
        events.written.push_back((event, bytes));
        Ok(length)
    })
}

/// # Safety
/// As libfabric documents `fi_eq_strerror`.
unsafe extern "C" fn strerror(
    _queue: *mut fid_eq,
    provider_errno: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: the caller's contract is the same.
    unsafe { strerror_of(provider_errno, buffer, length) }
}
