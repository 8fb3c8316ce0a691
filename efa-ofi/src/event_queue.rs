//! Event queues: what the application has written, and failures of operations that have no completion. Nothing else
//! of this provider happens asynchronously.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard};

use efa_core::endpoint::{Errno, Failure};

use crate::border::{self, EAVAIL, ENOSYS, EOVERFLOW, ETOOSMALL, Object, Result, Users};
use crate::completion_queue::strerror_of;
use crate::fabric::Fabric;
use crate::ffi::*;
use crate::host::{Part, warn};
use crate::table::Table;
use crate::unsupported;
use crate::wait::{self, Bell, Deadline, Woken};

/// An event queue (`fid_eq`).
#[repr(C)]
pub(crate) struct EventQueue {
    c: fid_eq,
    fabric: *const Fabric,
    pub(crate) users: Users,
    events: Mutex<Events>,
    /// Rung while there are events, if the queue was opened for waiting.
    bell: Option<Bell>,
}

#[derive(Debug)]
struct Events {
    written: VecDeque<(u32, Vec<u8>)>,
    failed: VecDeque<Failed>,
    /// As many events as the queue holds of each kind.
    limit: usize,
}

impl Events {
    fn is_empty(&self) -> bool {
        self.written.is_empty() && self.failed.is_empty()
    }
}

/// Events that a queue holds if its attributes do not say.
const SIZE: usize = 1024;

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

    fn operations() -> &'static Table<fi_ops> {
        &FID
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    control: Some(control),
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
    /// `FI_ENOSYS` for wait objects that have a descriptor.
    pub(crate) fn open(
        fabric: &Fabric,
        attributes: Option<&fi_eq_attr>,
        context: *mut c_void,
    ) -> Result<EventQueue> {
        let (wait_obj, size, flags) = match attributes {
            Some(attributes) => (attributes.wait_obj, attributes.size, attributes.flags),
            None => (FI_WAIT_NONE, 0, 0),
        };
        if flags & !(FI_WRITE | FI_AFFINITY) != 0 {
            return Err(Errno::EINVAL);
        }
        let bell = match wait_obj {
            FI_WAIT_NONE => None,
            FI_WAIT_UNSPEC | FI_WAIT_FD => Some(Bell::new()?),
            // Wait sets, mutexes with condition variables, and looking again and again.
            _ => return Err(ENOSYS),
        };
        fabric.users.add();
        Ok(EventQueue {
            c: fid_eq {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: OPS.as_c(),
            },
            fabric,
            users: Users::default(),
            events: Mutex::new(Events {
                written: VecDeque::new(),
                failed: VecDeque::new(),
                limit: if size == 0 { SIZE } else { size },
            }),
            bell,
        })
    }

    fn events(&self) -> Result<MutexGuard<'_, Events>> {
        self.events.lock().map_err(|_| Errno::EOTHER)
    }

    /// Runs a call on the events, after which the bell says whether there are any.
    fn with<T>(&self, call: impl FnOnce(&mut Events) -> Result<T>) -> Result<T> {
        let mut events = self.events()?;
        let result = call(&mut events);
        if let Some(bell) = &self.bell {
            match events.is_empty() {
                true => bell.silence(),
                false => bell.ring(),
            }
        }
        result
    }

    /// Adds the failure of an operation of an endpoint. Without room for it, it is in the log instead.
    pub(crate) fn fail(&self, endpoint: &fid, failure: Failure) {
        let failed = Failed {
            endpoint: std::ptr::from_ref(endpoint).cast_mut(),
            context: endpoint.context,
            failure,
        };
        let added = self.with(|events| match events.failed.len() < events.limit {
            true => {
                events.failed.push_back(failed);
                Ok(())
            }
            false => Err(EOVERFLOW),
        });
        if added.is_err() {
            let text = format!(
                "an event queue is full; an operation without a completion failed: {failure}"
            );
            warn(Part::Endpoint, &text);
        }
    }

    /// Prepares for sleeping on the descriptor (`fi_trywait`).
    ///
    /// # Errors
    /// `FI_EAGAIN` if there are events, `FI_EINVAL` if there is no descriptor.
    pub(crate) fn try_wait(&self) -> Result<()> {
        if self.bell.is_none() {
            return Err(Errno::EINVAL);
        }
        match self.events()?.is_empty() {
            true => Ok(()),
            false => Err(Errno::EAGAIN),
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
        if event.is_null() || (buffer.is_null() && length > 0) {
            return Err(Errno::EINVAL);
        }
        self.with(|events| {
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
        let bell = queue.bell.as_ref().ok_or(ENOSYS)?;
        let until = Deadline::after(timeout);
        loop {
            // SAFETY: by the caller's contract.
            match unsafe { queue.take(event, buffer, length, flags) } {
                Err(Errno::EAGAIN) if !until.has_passed() => {}
                result => return result,
            }
            if wait::sleep(bell.as_fd(), until)? == Woken::Interrupted {
                // SAFETY: by the caller's contract.
                return unsafe { queue.take(event, buffer, length, flags) };
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
        queue.with(|events| {
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
        queue.with(|events| match events.written.len() < events.limit {
            true => {
                events.written.push_back((event, bytes));
                Ok(length)
            }
            // Somebody has to read first.
            false => Err(Errno::EAGAIN),
        })
    })
}

/// # Safety
/// As libfabric documents `fi_control` of event queues.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let queue: &EventQueue = unsafe { border::object(fid.cast()) }?;
        let kind = match queue.bell {
            Some(_) => FI_WAIT_FD,
            None => FI_WAIT_NONE,
        };
        let descriptor = queue.bell.as_ref().map(AsFd::as_fd);
        // SAFETY: the caller's contract is the same.
        unsafe { wait::control(command, argument, kind, descriptor) }
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
