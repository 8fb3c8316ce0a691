//! What a completion channel delivers: events of completion queues. An event is 8 bytes: the address of the
//! `ibv_cq`, as in the kernel's `ib_uverbs_comp_event_desc`.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::abi::ibv_cq;
use crate::comp_queue::{CompQueue, QUEUES};
use crate::errno::Errno;
use crate::event_pipe::{EventPipe, Extent};
use crate::handles::Handle;

/// Bytes of an event.
const EVENT_SIZE: usize = size_of::<u64>();

/// The completion queue that raised an event: its address, as the program knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RaisedBy(*mut ibv_cq);

// SAFETY: only an address here.
unsafe impl Send for RaisedBy {}
// SAFETY: as above.
unsafe impl Sync for RaisedBy {}

impl RaisedBy {
    pub(crate) fn new(queue: &CompQueue) -> RaisedBy {
        RaisedBy(queue.c_pointer())
    }

    fn to_bytes(self) -> [u8; EVENT_SIZE] {
        (self.0.expose_provenance() as u64).to_ne_bytes()
    }

    /// The program may have written anything into the bytes; the address is looked up, not followed.
    fn from_bytes(bytes: [u8; EVENT_SIZE]) -> RaisedBy {
        let address = u64::from_ne_bytes(bytes) as usize;
        RaisedBy(std::ptr::with_exposed_provenance_mut(address))
    }
}

/// Events that the program has not taken yet.
pub(crate) struct EventQueue(EventPipe<EVENT_SIZE>);

impl EventQueue {
    pub(crate) fn new() -> Result<EventQueue, Errno> {
        EventPipe::new().map(EventQueue)
    }

    /// The descriptor for the program.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.descriptor()
    }

    /// Adds an event. Called by the device, under its lock. A queue has one event at a time, unless its doorbell
    /// is written by a client that asks again and again.
    pub(crate) fn raise(&self, by: RaisedBy) {
        self.0.push(by.to_bytes());
    }

    /// Drops the events of a completion queue that goes away.
    pub(crate) fn discard(&self, of: RaisedBy) {
        let of = of.to_bytes();
        self.0.discard(Extent::All, |event| *event == of);
    }

    /// Takes back an event of a completion queue that the program has not taken yet, and returns whether there
    /// was one.
    pub(crate) fn take_back(&self, of: RaisedBy) -> bool {
        let of = of.to_bytes();
        self.0.discard(Extent::One, |event| *event == of)
    }

    /// Takes the oldest event, waiting for it unless the program's descriptor is non-blocking. It is
    /// counted at once, so that a completion queue that is being destroyed finds it among the
    /// events or in its count.
    pub(crate) fn take(&self) -> Result<Arc<CompQueue>, Errno> {
        self.0.take(|event| {
            let queue = QUEUES.get(RaisedBy::from_bytes(event).0).ok()?;
            queue.count_event();
            Some(queue)
        })
    }
}
