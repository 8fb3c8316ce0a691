//! The queues of a queue pair, and the index by which a completion queue finds them.

use std::sync::Arc;

use efa_core::address::Qpn;
use efa_device_model::provider::{CompletionQueue, QueueOwner, RecvQueue, Retired, SendQueue};

use super::hardware::Hardware;
use crate::ffi::interrupted::Locking;
use crate::ffi::interrupted::SpinCell;

/// Both queues of a queue pair, each behind a separate lock. `None` once it was destroyed: their
/// memory and their reference to the device are released before the handle is freed.
pub(crate) struct Queues {
    pub(crate) send: SpinCell<Option<Sender>>,
    pub(crate) recv: SpinCell<Option<RecvQueue>>,
    /// Whether it is a connected queue pair, which has neither.
    pub(crate) is_connected: bool,
}

/// A send queue, and the hardware behind its doorbell.
pub(crate) struct Sender {
    pub(crate) queue: SendQueue,
    /// Whoever holds the lock may call it: it exists until the queue pair is destroyed.
    pub(crate) hardware: Arc<Hardware>,
}

impl Sender {
    pub(crate) fn new(queue: SendQueue, hardware: Arc<Hardware>) -> Sender {
        Sender { queue, hardware }
    }
}

const PAGE_BITS: u32 = 8;
const PAGE: usize = 1 << PAGE_BITS;

type Page = [Option<Arc<Queues>>; PAGE];

/// Queue pairs by number.
pub(crate) struct QueueIndex {
    pages: Box<[Option<Box<Page>>; PAGE]>,
}

impl Default for QueueIndex {
    fn default() -> QueueIndex {
        QueueIndex {
            pages: Box::new([const { None }; PAGE]),
        }
    }
}

impl QueueIndex {
    fn place(qpn: Qpn) -> (usize, usize) {
        (usize::from(qpn.0 >> PAGE_BITS), usize::from(qpn.0) % PAGE)
    }

    pub(crate) fn insert(&mut self, qpn: Qpn, queues: Arc<Queues>) {
        let (page, slot) = Self::place(qpn);
        let page = self.pages[page].get_or_insert_with(|| Box::new([const { None }; PAGE]));
        page[slot] = Some(queues);
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) {
        let (page, slot) = Self::place(qpn);
        if let Some(page) = &mut self.pages[page] {
            page[slot] = None;
        }
    }

    #[inline]
    fn get(&self, qpn: Qpn) -> Option<&Queues> {
        let (page, slot) = Self::place(qpn);
        self.pages[page].as_ref()?[slot].as_deref()
    }
}

/// Queue pairs by number, for a call that may lock their queues.
pub(crate) struct Owners<'a> {
    pub(crate) index: &'a QueueIndex,
    pub(crate) locking: &'a Locking,
}

impl QueueOwner for Owners<'_> {
    #[inline(always)]
    fn retire_send(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match self.index.get(qpn) {
            Some(queues) if queues.is_connected => Retired::Connected,
            Some(queues) => match queues.send.lock(self.locking).as_mut() {
                Some(sender) => sender.queue.retire(request_id),
                None => Retired::Stale,
            },
            None => Retired::Stale,
        }
    }

    #[inline(always)]
    fn retire_recv(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match self.index.get(qpn) {
            Some(queues) => match queues.recv.lock(self.locking).as_mut() {
                Some(queue) => queue.retire(request_id),
                None => Retired::Stale,
            },
            None => Retired::Stale,
        }
    }

    fn owns(&mut self, qpn: Qpn) -> bool {
        self.index.get(qpn).is_some()
    }
}

/// A completion queue together with the queue pairs that complete to it. They are added and removed
/// under the completion queue's lock, so that polling sees whole queue pairs only.
pub(crate) struct PolledQueue {
    /// The hardware that fills the queue.
    pub(crate) hardware: Arc<Hardware>,
    pub(crate) completions: CompletionQueue,
    pub(crate) owners: QueueIndex,
    /// Whether an event was requested while entries were unread, and therefore raised immediately.
    pub(crate) event_for_unread: bool,
}

impl PolledQueue {
    /// The completion queue, and the parts that polling needs.
    #[inline]
    pub(crate) fn split<'a>(
        &'a mut self,
        locking: &'a Locking,
    ) -> (&'a mut CompletionQueue, Owners<'a>) {
        let index = &self.owners;
        (&mut self.completions, Owners { index, locking })
    }
}
