//! The events of completion queues that a completion channel delivers. An event has 8 bytes: the
//! address of the `ibv_cq`, as in the kernel's `ib_uverbs_comp_event_desc`.

use std::os::fd::RawFd;

use super::event_pipe::{Discard, EventPipe};
use crate::abi::ibv_cq;
use crate::ffi::errno::Errno;

/// Bytes of an event.
const EVENT_SIZE: usize = size_of::<u64>();

/// The completion queue of an event: the address of the program's handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CqAddress(usize);

impl CqAddress {
    pub(crate) fn new(queue: *mut ibv_cq) -> CqAddress {
        CqAddress(queue.expose_provenance())
    }

    /// The pointer is looked up, not followed: the program may have written any value into the
    /// event.
    pub(crate) fn pointer(self) -> *mut ibv_cq {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    fn to_bytes(self) -> [u8; EVENT_SIZE] {
        (self.0 as u64).to_ne_bytes()
    }

    fn from_bytes(bytes: [u8; EVENT_SIZE]) -> CqAddress {
        CqAddress(u64::from_ne_bytes(bytes) as usize)
    }
}

/// Events that the program has not read yet.
pub(crate) struct EventQueue(EventPipe<EVENT_SIZE>);

impl EventQueue {
    pub(crate) fn new() -> Result<EventQueue, Errno> {
        EventPipe::new().map(EventQueue)
    }

    /// The descriptor for the program.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.descriptor()
    }

    /// Adds an event. Called by the device, under its lock. A queue has one event at a time, unless
    /// its client writes the doorbell repeatedly.
    pub(crate) fn raise(&self, queue: CqAddress) {
        self.0.push(queue.to_bytes());
    }

    /// Drops the events of a completion queue that is being destroyed.
    pub(crate) fn discard(&self, queue: CqAddress) {
        let bytes = queue.to_bytes();
        self.0.discard(Discard::All, |event| *event == bytes);
    }

    /// Withdraws an event of a completion queue that the program has not read yet, and returns
    /// whether there was one.
    pub(crate) fn take_back(&self, queue: CqAddress) -> bool {
        let bytes = queue.to_bytes();
        self.0.discard(Discard::Oldest, |event| *event == bytes)
    }

    /// Removes the oldest event for which `receive` returns a value. Waits for one unless the
    /// program's descriptor is non-blocking. `receive` runs under the lock.
    pub(crate) fn take<R>(
        &self,
        mut receive: impl FnMut(CqAddress) -> Option<R>,
    ) -> Result<R, Errno> {
        self.0.take(|event| receive(CqAddress::from_bytes(event)))
    }
}
