//! Asynchronous events: what the device tells a program that it did not ask for.
//!
//! The descriptor is a pipe. An event is 16 bytes, as in the kernel's `ib_uverbs_async_event_desc`: the
//! address of the object, or the number of the port, and the type.

use core::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::abi::{ibv_async_event, ibv_context};
use crate::context::CONTEXTS;
use crate::errno::{self, Errno};

/// Types of events (`enum ibv_event_type`).
pub(crate) const IBV_EVENT_CQ_ERR: c_int = 0;
pub(crate) const IBV_EVENT_QP_FATAL: c_int = 1;
pub(crate) const IBV_EVENT_DEVICE_FATAL: c_int = 8;
pub(crate) const IBV_EVENT_PORT_ACTIVE: c_int = 9;
pub(crate) const IBV_EVENT_PORT_ERR: c_int = 10;

/// Bytes of an event.
const EVENT_SIZE: usize = 16;

/// The events of a context that the program has not taken yet.
pub(crate) struct AsyncEvents {
    /// The read end, which the program may make non-blocking.
    program: OwnedFd,
    /// Non-blocking.
    write: File,
}

impl AsyncEvents {
    pub(crate) fn new() -> Result<AsyncEvents, Errno> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: new, and nobody else's.
        let [program, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        // Opened anew, so that it alone does not block.
        let write = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(format!("/proc/self/fd/{}", write.as_raw_fd()))
            .map_err(|error| Errno::new(error.raw_os_error().unwrap_or(libc::EIO)))?;
        Ok(AsyncEvents { program, write })
    }

    /// The descriptor for the program.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.program.as_raw_fd()
    }

    /// Adds an event about an object, by its address, or about a port. Called by the device, under its lock.
    pub(crate) fn raise(&self, event_type: c_int, element: usize) {
        let mut bytes = [0; EVENT_SIZE];
        bytes[..8].copy_from_slice(&(element as u64).to_ne_bytes());
        bytes[8..12].copy_from_slice(&event_type.to_ne_bytes());
        // It fails if the pipe is full of thousands of events that the program does not take.
        let _ = (&self.write).write(&bytes);
    }

    /// Takes the oldest event, waiting for it unless the program's descriptor is non-blocking.
    fn take(&self) -> Result<ibv_async_event, Errno> {
        let mut bytes = [0u8; EVENT_SIZE];
        // SAFETY: there is room for `EVENT_SIZE` bytes.
        let read = unsafe { libc::read(self.descriptor(), bytes.as_mut_ptr().cast(), EVENT_SIZE) };
        if read < 0 {
            return Err(Errno::last());
        }
        let element = u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"));
        let event_type = bytes[8..12].try_into().expect("4 bytes");
        Ok(ibv_async_event {
            element: core::ptr::with_exposed_provenance_mut::<c_void>(element as usize),
            event_type: c_int::from_ne_bytes(event_type),
        })
    }
}

/// Waits for an event on the context.
///
/// # Safety
/// `event` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    errno::zero_or_minus_one(CONTEXTS.get(context).and_then(|context| {
        let taken = context.async_events()?.take()?;
        if event.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: valid by contract.
        unsafe { event.write(taken) };
        Ok(())
    }))
}

/// Objects do not wait for their events to be acknowledged: the address in an event is that of an object that
/// has not ended when the event is raised.
pub(crate) extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {}
