//! Completion channels: where a program waits for completion queues that have something.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::comp_queue::CompQueue;
use crate::context::{CONTEXTS, Context};
use crate::errno::{self, Errno};
use crate::event_queue::{EventQueue, RaisedBy};
use crate::handles::{Handle, Registry};
use crate::hardware::Hardware;
use crate::interrupted::Locking;

pub(crate) static CHANNELS: Registry<Channel> = Registry::new();

/// A completion channel.
pub(crate) struct Channel {
    c: UnsafeCell<ibv_comp_channel>,
    context: Arc<Context>,
    /// `None` once the channel was destroyed: its descriptors do not wait for the handle.
    events: Mutex<Option<Arc<EventQueue>>>,
}

// SAFETY: of the C structure only `refcnt` changes, which is accessed atomically here.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

// SAFETY: the structure is inside the cell.
unsafe impl Handle for Channel {
    type C = ibv_comp_channel;

    fn c_pointer(&self) -> *mut ibv_comp_channel {
        self.c.get()
    }
}

impl Channel {
    /// How many completion queues use the channel; programs may read the field.
    fn users(&self) -> &AtomicI32 {
        // SAFETY: the field is aligned, lives as long as the channel and is accessed only through
        // this atomic by the library.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.c.get()).refcnt) }
    }

    pub(crate) fn belongs_to(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Runs `work` on what is there until the channel is destroyed. It is not destroyed meanwhile.
    fn with_events<R>(&self, work: impl FnOnce(&mut Option<Arc<EventQueue>>) -> R) -> R {
        let _locking = Locking::new();
        work(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The events; `EINVAL` once the channel was destroyed.
    fn events(&self) -> Result<Arc<EventQueue>, Errno> {
        self.with_events(|events| events.clone().ok_or(Errno::INVAL))
    }

    /// A completion queue of `hardware` begins to send its events here.
    pub(crate) fn attach(&self, queue: &CompQueue, hardware: &Hardware) -> Result<(), Errno> {
        self.with_events(|events| {
            let events = events.clone().ok_or(Errno::INVAL)?;
            self.users().fetch_add(1, Ordering::Relaxed);
            hardware.listen(queue.id, events, RaisedBy::new(queue));
            Ok(())
        })
    }

    /// See [`EventQueue::take_back`].
    pub(crate) fn take_back(&self, queue: &CompQueue) -> bool {
        let events = self.events();
        events.is_ok_and(|events| events.take_back(RaisedBy::new(queue)))
    }

    /// No event of the completion queue will come any more, and those that came are dropped.
    pub(crate) fn silence(&self, queue: &CompQueue) {
        if let Ok(hardware) = queue.context.hardware() {
            hardware.unlisten(queue.id);
        }
        if let Ok(events) = self.events() {
            events.discard(RaisedBy::new(queue));
        }
    }

    /// The completion queue is gone.
    pub(crate) fn detach(&self) {
        self.users().fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    errno::pointer(CONTEXTS.get(context).and_then(|owner| {
        let events = EventQueue::new()?;
        let c = ibv_comp_channel {
            context,
            fd: events.descriptor(),
            refcnt: 0,
        };
        Ok(CHANNELS.insert(Arc::new(Channel {
            c: UnsafeCell::new(c),
            context: owner,
            events: Mutex::new(Some(Arc::new(events))),
        })))
    }))
}

/// `EBUSY` while completion queues use the channel.
pub(crate) extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    errno::status_of_end(|| {
        let found = CHANNELS.get(channel)?;
        found.with_events(|events| {
            if found.users().load(Ordering::Relaxed) != 0 {
                return Err(Errno::BUSY);
            }
            CHANNELS.remove(channel)?;
            *events = None;
            Ok(())
        })
    })
}

/// Waits for the next event of the channel, unless its descriptor is non-blocking. Each event taken
/// has to be acknowledged before its completion queue can be destroyed.
///
/// # Safety
/// `queue` and `queue_context` are null or valid for writes.
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    queue_context: *mut *mut c_void,
) -> c_int {
    let result = CHANNELS.get(channel).and_then(|channel| {
        if queue.is_null() || queue_context.is_null() {
            return Err(Errno::INVAL);
        }
        let queue = channel.events()?.take()?;
        queue.catch_up();
        Ok((queue.c_pointer(), queue.program_context()))
    });
    errno::zero_or_minus_one(result.map(|(of, context)| {
        // SAFETY: valid by contract.
        unsafe {
            queue.write(of);
            queue_context.write(context);
        }
    }))
}
