//! Opened devices.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::async_event::AsyncEvents;
use crate::device::Device;
use crate::errno::{self, Errno};
use crate::handles::{Handle, Registry};
use crate::hardware::Hardware;
use crate::interrupted::Locking;
use crate::{comp_queue, domain, poll, post, query, queue_pair, residue};

/// `ibv_context.abi_compat` of contexts that lie in a `verbs_context`.
const EXTENDED: usize = usize::MAX;

pub(crate) static CONTEXTS: Registry<Context> = Registry::new();

/// An opened device. Programs read its table of functions on the data path, so the structure stays for
/// a while after it was closed; what it opened goes.
pub(crate) struct Context {
    c: UnsafeCell<verbs_context>,
    /// What the context was opened on.
    pub(crate) device: &'static Device,
    /// No other context has it.
    pub(crate) serial: u64,
    /// `None` once the device was closed.
    opened: Mutex<Option<Opened>>,
}

struct Opened {
    /// The hardware half and the way to the other hosts.
    hardware: Arc<Hardware>,
    /// What the device tells by itself.
    async_events: Arc<AsyncEvents>,
}

// SAFETY: the C structure is written only while it is made; programs read it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

// SAFETY: the context is inside the cell, and its place does not change.
unsafe impl Handle for Context {
    type C = ibv_context;

    fn c_pointer(&self) -> *mut ibv_context {
        // SAFETY: the cell's pointer is valid; only an address is computed.
        unsafe { &raw mut (*self.c.get()).context }
    }
}

impl Context {
    fn open(device: &'static Device) -> Result<Arc<Context>, Errno> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let serial = OPENED.fetch_add(1, Ordering::Relaxed);
        let async_events = Arc::new(AsyncEvents::new()?);
        let c = verbs_context {
            since_59: [None; 6],
            query_port: Some(query::query_port),
            memory_and_flow_actions: [None; 13],
            alloc_parent_domain: Some(domain::alloc_parent_domain),
            dealloc_td: Some(domain::dealloc_td),
            alloc_td: Some(domain::alloc_td),
            work_queues: [None; 8],
            create_cq_ex: Some(comp_queue::create_cq_ex),
            private: null_mut(),
            query_device_ex: Some(query::query_device_ex),
            flows: [None; 5],
            create_qp_ex: Some(queue_pair::create_qp_ex),
            shared_queues: [None; 4],
            abi_placeholder: 0,
            sz: size_of::<verbs_context>(),
            context: ibv_context {
                device: device.c_pointer(),
                ops: ibv_context_ops {
                    compat_query: [None; 7],
                    alloc_mw: Some(post::alloc_mw),
                    bind_mw: Some(post::bind_mw),
                    dealloc_mw: Some(post::dealloc_mw),
                    compat_create_cq: None,
                    poll_cq: Some(poll::poll_cq),
                    req_notify_cq: Some(comp_queue::req_notify_cq),
                    compat_cq: [None; 7],
                    post_srq_recv: Some(post::post_srq_recv),
                    compat_qp: [None; 4],
                    post_send: Some(post::post_send),
                    post_recv: Some(post::post_recv),
                    compat_ah: [None; 5],
                },
                cmd_fd: -1,
                async_fd: async_events.descriptor(),
                num_comp_vectors: device.profile.comp_vectors as c_int,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                abi_compat: core::ptr::without_provenance_mut(EXTENDED),
            },
        };
        Ok(Arc::new(Context {
            c: UnsafeCell::new(c),
            device,
            serial,
            opened: Mutex::new(Some(Opened {
                hardware: Arc::new(Hardware::open(device, serial, Arc::clone(&async_events))?),
                async_events,
            })),
        }))
    }

    /// What was opened; `EBADF` after the device was closed, as a system call on its descriptor would
    /// be.
    fn with_opened<R>(&self, get: impl FnOnce(&Opened) -> R) -> Result<R, Errno> {
        let _locking = Locking::new();
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().map(get).ok_or(Errno::BADF)
    }

    /// The hardware, for a verb; `EBADF` after the device was closed.
    pub(crate) fn hardware(&self) -> Result<Arc<Hardware>, Errno> {
        self.with_opened(|opened| Arc::clone(&opened.hardware))
    }

    /// Runs a verb that ends an object; see [`Hardware::forget`]. After the device was closed there is
    /// nothing to end either.
    pub(crate) fn forget(
        &self,
        verb: impl FnOnce(
            &mut efa_device_model::device::Device,
        ) -> Result<(), efa_device_model::device::Error>,
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

    /// Ends what was opened, unless a verb of another thread is using it: then that verb does.
    fn close(&self) {
        let opened = {
            let _locking = Locking::new();
            let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            opened.take()
        };
        drop(opened);
    }
}

/// Opens the device and starts what serves it. Each call makes a context of its own.
pub(crate) extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    errno::pointer(residue::cleared(|| {
        Device::find(device)
            .and_then(Context::open)
            .map(|context| CONTEXTS.insert(context))
    }))
}

/// Closes the context: its thread, its descriptors and its memory are gone when this returns. Objects
/// made from it go on existing until they are destroyed, but do nothing. `EBUSY`, and the device stays
/// open, while a peer that has stopped in the middle of a copy from or to memory of the device
/// would go on with it.
pub(crate) extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    errno::status_of_end(|| {
        if let Ok(hardware) = CONTEXTS.get(context)?.hardware() {
            hardware.quiesce()?;
        }
        let context = CONTEXTS.remove(context)?;
        queue_pair::end_all(&context);
        comp_queue::end_all(&context);
        context.close();
        Ok(())
    })
}
