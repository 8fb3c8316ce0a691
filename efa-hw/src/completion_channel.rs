//! A completion channel, on which a program sleeps until a completion queue has an event.

use crate::device::HwDevice;
use crate::error::{OpenError, refused};
use crate::loaded;
use efa_core::nic::NicError;
use efa_verbs_sys as ffi;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::time::{Duration, Instant};

/// A channel for the events of one completion queue.
#[derive(Debug)]
pub(crate) struct CompletionChannel(NonNull<ffi::ibv_comp_channel>);

impl CompletionChannel {
    pub(crate) fn create(device: &HwDevice) -> Result<CompletionChannel, OpenError> {
        // SAFETY: the device is open.
        let channel = NonNull::new(unsafe { loaded::ibv_create_comp_channel(device.context()) })
            .map(CompletionChannel)
            .ok_or_else(|| device.last_error("ibv_create_comp_channel"))?;
        // Reading events must not block: `arm` reads all of them.
        // SAFETY: the descriptor is open, and the call takes no pointer.
        let result = unsafe {
            let flags = libc::fcntl(channel.fd(), libc::F_GETFL);
            libc::fcntl(channel.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        match result {
            -1 => Err(device.last_error("fcntl(O_NONBLOCK) of a completion channel")),
            _ => Ok(channel),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_comp_channel {
        self.0.as_ptr()
    }

    fn fd(&self) -> i32 {
        // SAFETY: the channel is alive, and the member does not change.
        unsafe { self.0.as_ref() }.fd
    }

    /// Readable while there is an event.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }

    /// Reads all events, and requests one for the next completion. A completion that is already in
    /// the queue but was not polled counts as the next one.
    ///
    /// # Safety
    /// `queue` is alive and was created with this channel.
    pub(crate) unsafe fn arm(&self, queue: *mut ffi::ibv_cq) -> Result<(), NicError> {
        let mut events = 0;
        loop {
            let (mut of, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is alive, and both places are valid for writes.
            let result =
                unsafe { loaded::ibv_get_cq_event(self.0.as_ptr(), &mut of, &mut context) };
            if result != 0 {
                break;
            }
            events += 1;
        }
        let error = io::Error::last_os_error();
        if events > 0 {
            // SAFETY: the caller guarantees that `queue` is alive. It is the channel's only queue,
            // so the events belong to it.
            unsafe { loaded::ibv_ack_cq_events(queue, events) };
        }
        if !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ) {
            let errno = error.raw_os_error().unwrap_or(0);
            return Err(refused("ibv_get_cq_event", errno));
        }
        // SAFETY: the caller guarantees that `queue` is alive, and so is its context.
        let result = unsafe {
            match (*(*queue).context).ops.req_notify_cq {
                Some(request) => request(queue, 0),
                None => libc::EOPNOTSUPP,
            }
        };
        match result {
            0 => Ok(()),
            errno => Err(refused("ibv_req_notify_cq", errno)),
        }
    }

    /// Waits for an event. Returns whether there is one; false after `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool, NicError> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // Rounded up: a wait that ends too early would be repeated without sleep.
            let milliseconds = left.map_or(-1, |left| {
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            });
            let mut waiting = libc::pollfd {
                fd: self.fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one structure, which is valid for writes.
            let result = unsafe { libc::poll(&mut waiting, 1, milliseconds) };
            if result > 0 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            if result < 0 && error.kind() != io::ErrorKind::Interrupted {
                let errno = error.raw_os_error().unwrap_or(0);
                return Err(refused("poll(2) on a completion channel", errno));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
        }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: the channel's completion queue was destroyed.
        unsafe { loaded::ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}
