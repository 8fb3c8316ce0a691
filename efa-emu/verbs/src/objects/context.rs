//! Opened devices.

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

use efa_device_model::device::{self, DeviceEvent};

use super::async_events::AsyncEvents;
use super::device::Device;
use super::handle::{CStruct, Handle};
use super::hardware::Hardware;
use crate::abi::{ibv_context, verbs_context};
use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;

/// An opened device. Programs read its table of functions on the data path, so the structure is
/// kept for a while after the device was closed, without its resources.
pub(crate) struct Context {
    c: CStruct<verbs_context>,
    /// The device of the context.
    pub(crate) device: &'static Device,
    /// Unique among contexts.
    pub(crate) serial: u64,
    /// `None` once the device was closed.
    opened: Mutex<Option<OpenedDevice>>,
}

struct OpenedDevice {
    /// The hardware half and the link to the other hosts.
    hardware: Arc<Hardware>,
    async_events: Arc<AsyncEvents>,
}

impl Handle for Context {
    type C = ibv_context;

    fn c_pointer(&self) -> *mut ibv_context {
        // SAFETY: the pointer is valid; only an address is computed.
        unsafe { &raw mut (*self.c.pointer()).context }
    }
}

impl Context {
    /// Opens the device. `c` makes the structure with its table of functions, from the descriptor
    /// of asynchronous events; `on_event` receives these events, with the serial number of the
    /// context.
    pub(crate) fn open(
        device: &'static Device,
        c: impl FnOnce(RawFd) -> verbs_context,
        on_event: fn(DeviceEvent, u64, &AsyncEvents),
    ) -> Result<Arc<Context>, Errno> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let serial = OPENED.fetch_add(1, Ordering::Relaxed);
        let async_events = Arc::new(AsyncEvents::new()?);
        let events = Arc::clone(&async_events);
        let hardware = Hardware::open(device, move |event| on_event(event, serial, &events))?;
        Ok(Arc::new(Context {
            c: CStruct::new(c(async_events.descriptor())),
            device,
            serial,
            opened: Mutex::new(Some(OpenedDevice {
                hardware: Arc::new(hardware),
                async_events,
            })),
        }))
    }

    /// The opened device; `EBADF` after it was closed, as a system call on its descriptor
    /// would be.
    fn with_opened<R>(&self, get: impl FnOnce(&OpenedDevice) -> R) -> Result<R, Errno> {
        let _locking = Locking::new();
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().map(get).ok_or(Errno::BADF)
    }

    /// The hardware, for a verb; `EBADF` after the device was closed.
    pub(crate) fn hardware(&self) -> Result<Arc<Hardware>, Errno> {
        self.with_opened(|opened| Arc::clone(&opened.hardware))
    }

    /// Runs a verb that destroys an object; see [`Hardware::forget`]. Does nothing after the device
    /// was closed.
    pub(crate) fn forget(
        &self,
        verb: impl FnOnce(&mut device::Device) -> Result<(), device::Error>,
    ) -> Result<(), Errno> {
        match self.hardware() {
            Ok(hardware) => hardware.forget(verb),
            Err(_) => Ok(()),
        }
    }

    /// `EIO` once the device was removed from the host.
    pub(crate) fn check_present(&self) -> Result<(), Errno> {
        self.hardware()?.check_present()
    }

    /// Returns whether this is a forked child of the process that opened the device.
    pub(crate) fn is_forked(&self) -> bool {
        self.hardware().is_ok_and(|hardware| hardware.is_forked())
    }

    /// The asynchronous events.
    pub(crate) fn async_events(&self) -> Result<Arc<AsyncEvents>, Errno> {
        self.with_opened(|opened| Arc::clone(&opened.async_events))
    }

    /// Releases the opened device, unless a verb of another thread uses it: that verb releases it
    /// then.
    pub(crate) fn close(&self) {
        let opened = {
            let _locking = Locking::new();
            let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            opened.take()
        };
        drop(opened);
    }
}
