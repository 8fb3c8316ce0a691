//! Completion channels, on which a program waits for completions.

use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use efa_device_model::device::CqId;

use super::context::Context;
use super::event_queue::{CqAddress, EventQueue};
use super::handle::{CStruct, Handle, handle};
use super::hardware::Hardware;
use crate::abi::ibv_comp_channel;
use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;

/// A completion channel. Only `refcnt` of its C structure changes, and it is accessed atomically.
pub(crate) struct Channel {
    c: CStruct<ibv_comp_channel>,
    context: Arc<Context>,
    /// `None` once the channel was destroyed: its descriptors are closed before the handle is
    /// freed.
    events: Mutex<Option<Arc<EventQueue>>>,
}

handle!(Channel, ibv_comp_channel);

impl Channel {
    pub(crate) fn create(context: Arc<Context>) -> Result<Arc<Channel>, Errno> {
        let events = EventQueue::new()?;
        Ok(Arc::new(Channel {
            c: CStruct::new(ibv_comp_channel {
                context: context.c_pointer(),
                fd: events.descriptor(),
                refcnt: 0,
            }),
            context,
            events: Mutex::new(Some(Arc::new(events))),
        }))
    }

    /// Destroys the channel, and with `remove` its handle; `EBUSY` while completion queues use it.
    pub(crate) fn destroy(&self, remove: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.with_events(|events| {
            if self.users().load(Ordering::Relaxed) != 0 {
                return Err(Errno::BUSY);
            }
            remove()?;
            *events = None;
            Ok(())
        })
    }

    /// The number of completion queues that use the channel; programs may read the field.
    fn users(&self) -> &AtomicI32 {
        // SAFETY: the field is aligned, is valid as long as the channel and is accessed only
        // through this atomic by the library.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.c.pointer()).refcnt) }
    }

    pub(crate) fn belongs_to(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Runs `work` on the events, `None` once the channel was destroyed. It is not destroyed
    /// meanwhile.
    fn with_events<R>(&self, work: impl FnOnce(&mut Option<Arc<EventQueue>>) -> R) -> R {
        let _locking = Locking::new();
        work(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The events; `EINVAL` once the channel was destroyed.
    pub(crate) fn events(&self) -> Result<Arc<EventQueue>, Errno> {
        self.with_events(|events| events.clone().ok_or(Errno::INVAL))
    }

    /// Subscribes the channel to the events of a completion queue of `hardware`.
    pub(crate) fn attach(
        &self,
        queue: CqId,
        address: CqAddress,
        hardware: &Hardware,
    ) -> Result<(), Errno> {
        self.with_events(|events| {
            let events = events.clone().ok_or(Errno::INVAL)?;
            self.users().fetch_add(1, Ordering::Relaxed);
            hardware.subscribe(queue, events, address);
            Ok(())
        })
    }

    /// See [`EventQueue::take_back`].
    pub(crate) fn take_back(&self, queue: CqAddress) -> bool {
        let events = self.events();
        events.is_ok_and(|events| events.take_back(queue))
    }

    /// Drops the events of a completion queue that raises no more.
    pub(crate) fn discard(&self, queue: CqAddress) {
        if let Ok(events) = self.events() {
            events.discard(queue);
        }
    }

    /// Counts that a completion queue of the channel was destroyed.
    pub(crate) fn detach(&self) {
        self.users().fetch_sub(1, Ordering::Relaxed);
    }
}
