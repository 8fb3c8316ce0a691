//! The device's completion queues: writing entries, raising events.

use std::sync::Arc;

use efa_core::address::Qpn;
use hashbrown::HashMap;
use slab::Slab;

use super::comp_counter::{AttachedCounters, CountedOps};
use super::error::Error;
use super::event::DeviceEvent;
use super::ids::CqId;
use super::queue::{CompletionEntry, CompletionRing, CompletionSlot, CqDoorbell, RequestIdSize};
use crate::prefetch;

pub(super) struct CompletionQueue {
    ring: Arc<CompletionRing>,
    /// The longest request ids of send queues that complete here.
    request_ids: RequestIdSize,
    /// Counter of the next entry.
    producer: u16,
    /// The number of send and receive queues that complete here.
    users: u32,
    /// Whether the next entry raises an event.
    armed: bool,
    /// Whether only a solicited entry raises it, while `armed`.
    solicited_only: bool,
    /// The sequence number of the last request for an event that was served.
    served: Option<u8>,
    /// Whether the client writes the doorbell without a call.
    watched: bool,
    /// Whether a queue pair that completes here has, or had, completion counters.
    counted: bool,
    /// An entry was lost because the queue was full.
    overrun: bool,
    /// The next entry will be lost; see [`CqTable::lose_next`].
    loses_next: bool,
    /// The counter of the next entry that needs more than a write: it raises an event, is counted,
    /// or may be lost because the ring is full.
    attention: u16,
}

/// The device's completion queues, and the events that it has raised.
#[derive(Default)]
pub(super) struct CqTable {
    queues: Slab<CompletionQueue>,
    events: Vec<DeviceEvent>,
    /// The completion counters of the queue pairs that have any.
    counters: HashMap<Qpn, AttachedCounters>,
    /// Completions that were lost because their queue was full.
    overruns: u64,
}

impl CqTable {
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn overruns(&self) -> u64 {
        self.overruns
    }

    pub(super) fn insert(&mut self, ring: Arc<CompletionRing>, request_ids: RequestIdSize) -> CqId {
        CqId(self.queues.insert(CompletionQueue {
            // In lent memory every entry needs attention; see `next_attention`.
            attention: if ring.is_lent() {
                0
            } else {
                ring.entries() as u16
            },
            ring,
            request_ids,
            producer: 0,
            users: 0,
            armed: false,
            solicited_only: false,
            served: None,
            watched: false,
            counted: false,
            overrun: false,
            loses_next: false,
        }) as u32)
    }

    fn get_mut(&mut self, cq: CqId) -> Result<&mut CompletionQueue, Error> {
        self.queues
            .get_mut(cq.0 as usize)
            .ok_or_else(|| Error::not_found("completion queue", cq.0))
    }

    pub(super) fn remove(&mut self, cq: CqId) -> Result<(), Error> {
        if self.get_mut(cq)?.users > 0 {
            return Err(Error::Busy("completion queue"));
        }
        self.queues.remove(cq.0 as usize);
        self.events.retain(|event| !event.is_of_cq(cq));
        Ok(())
    }

    /// Checks that a send queue with ids of this size can complete in a queue.
    pub(super) fn check_request_ids(&mut self, cq: CqId, ids: RequestIdSize) -> Result<(), Error> {
        let queue = self.get_mut(cq)?;
        match (ids, queue.request_ids) {
            (RequestIdSize::Bits64, RequestIdSize::Bits16) => Err(Error::invalid(
                "completion queue without 64-bit request ids",
                cq.0,
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn attach(&mut self, cq: CqId) -> Result<(), Error> {
        self.get_mut(cq)?.users += 1;
        Ok(())
    }

    pub(super) fn detach(&mut self, cq: CqId) {
        if let Ok(queue) = self.get_mut(cq) {
            queue.users = queue.users.saturating_sub(1);
        }
    }

    pub(super) fn set_watched(&mut self, cq: CqId, watched: bool) -> Result<(), Error> {
        let queue = self.get_mut(cq)?;
        if watched {
            queue.ring.make_direct()?;
        }
        queue.watched = watched;
        queue.attention = queue.producer;
        Ok(())
    }

    /// Writes an entry, and raises an event if one was requested.
    #[inline(always)]
    pub(super) fn write(&mut self, cq: CqId, entry: &CompletionEntry) {
        // A queue cannot be destroyed while a queue pair uses it.
        let Some(queue) = self.queues.get_mut(cq.0 as usize) else {
            return;
        };
        if queue.producer == queue.attention {
            return self.write_attentively(cq, *entry);
        }
        queue.ring.write(queue.producer, entry);
        queue.producer = queue.producer.wrapping_add(1);
    }

    /// As [`CqTable::write`], with all that may have to be done. It gets a copy of the entry,
    /// because a reference would keep every entry in memory.
    #[cold]
    #[inline(never)]
    fn write_attentively(&mut self, cq: CqId, entry: CompletionEntry) {
        let Some(queue) = self.queues.get_mut(cq.0 as usize) else {
            return;
        };
        if queue.counted
            && let Some(attached) = self.counters.get(&entry.qpn())
        {
            attached.count_entry(&entry);
        }
        if std::mem::take(&mut queue.loses_next) {
            queue.attention = queue.next_attention();
            return;
        }
        if queue.is_full() {
            self.overruns += 1;
            if !queue.overrun {
                queue.overrun = true;
                self.events.push(DeviceEvent::CqError(cq));
            }
            return;
        }
        queue.ring.write_sized(queue.producer, &entry);
        queue.producer = queue.producer.wrapping_add(1);
        if queue.watched {
            queue.read_doorbell();
        }
        if queue.armed && (!queue.solicited_only || entry.is_solicited()) {
            queue.armed = false;
            self.events.push(DeviceEvent::Completion(cq));
        }
        queue.attention = queue.next_attention();
    }

    /// Loses the next entry of a queue, and raises its error event now.
    pub(super) fn lose_next(&mut self, cq: CqId) {
        if let Ok(queue) = self.get_mut(cq) {
            queue.loses_next = true;
            queue.attention = queue.producer;
            self.events.push(DeviceEvent::CqError(cq));
        }
    }

    /// The ids of all queues.
    pub(super) fn ids(&self) -> impl Iterator<Item = CqId> {
        self.queues.iter().map(|(index, _)| CqId(index as u32))
    }

    /// Counts the entries of a queue from now on in the completion counters of their queue pairs.
    pub(super) fn count_entries(&mut self, cq: CqId) {
        if let Ok(queue) = self.get_mut(cq) {
            queue.counted = true;
            queue.attention = queue.producer;
        }
    }

    /// The completion counters of a queue pair.
    pub(super) fn counters_of(&mut self, qpn: Qpn) -> &mut AttachedCounters {
        self.counters.entry(qpn).or_default()
    }

    /// Removes the completion counters of a queue pair.
    pub(super) fn take_counters(&mut self, qpn: Qpn) -> Option<AttachedCounters> {
        self.counters.remove(&qpn)
    }

    /// Counts an operation of a queue pair that has succeeded without an entry.
    #[cold]
    pub(super) fn count(&self, qpn: Qpn, op: CountedOps) {
        if let Some(attached) = self.counters.get(&qpn) {
            attached.count(op, true);
        }
    }

    /// Raises an event of the device or one of its queue pairs.
    pub(super) fn raise(&mut self, event: DeviceEvent) {
        self.events.push(event);
    }

    /// Prefetches the table's entry of the oldest queue, which is often the only one.
    pub(super) fn prefetch_first(&self) {
        if let Some(queue) = self.queues.get(0) {
            prefetch::value(queue);
        }
    }

    /// Prefetches the oldest queue's ring, without its entries.
    pub(super) fn prefetch_rings(&self) {
        if let Some(queue) = self.queues.get(0) {
            prefetch::value(&*queue.ring);
        }
    }

    /// Prefetches the next entries.
    pub(super) fn prefetch(&self, cq: CqId) {
        if let Some(queue) = self.queues.get(cq.0 as usize) {
            queue.ring.prefetch(queue.producer);
            queue.ring.prefetch(queue.producer.wrapping_add(2));
        }
    }

    /// Reads the doorbell. If it requests an event and the queue has entries that the client has
    /// not seen, the event is raised immediately.
    pub(super) fn ring(&mut self, cq: CqId) -> Result<(), Error> {
        let queue = self.get_mut(cq)?;
        let doorbell = queue.read_doorbell();
        if queue.armed && queue.has_news(doorbell.consumer) {
            queue.armed = false;
            self.events.push(DeviceEvent::Completion(cq));
        }
        Ok(())
    }

    /// The ring of a queue.
    pub(super) fn direct_ring(&self, cq: CqId) -> Option<&Arc<CompletionRing>> {
        Some(&self.queues.get(cq.0 as usize)?.ring)
    }

    /// The counter of a queue's next entry.
    pub(super) fn producer(&self, cq: CqId) -> Option<u16> {
        Some(self.queues.get(cq.0 as usize)?.producer)
    }

    /// Reads the doorbells of all watched queues.
    pub(super) fn ring_watched(&mut self) {
        for (index, queue) in &mut self.queues {
            if !queue.watched {
                continue;
            }
            let doorbell = queue.read_doorbell();
            if queue.armed && queue.has_news(doorbell.consumer) {
                queue.armed = false;
                self.events
                    .push(DeviceEvent::Completion(CqId(index as u32)));
            }
        }
    }

    /// The producer counters of all queues.
    pub(super) fn counters(&self) -> Vec<(CqId, u16)> {
        let counter =
            |(index, queue): (usize, &CompletionQueue)| (CqId(index as u32), queue.producer);
        self.queues.iter().map(counter).collect()
    }

    /// Writes all entries since these counters a second time.
    pub(super) fn repeat_since(&mut self, counters: &[(CqId, u16)]) {
        for (cq, from) in counters {
            let Ok(queue) = self.get_mut(*cq) else {
                continue;
            };
            let (ring, added) = (Arc::clone(&queue.ring), queue.producer.wrapping_sub(*from));
            for offset in 0..added {
                if let CompletionSlot::Entry(entry) = ring.read(from.wrapping_add(offset)) {
                    self.write(*cq, &entry);
                }
            }
        }
    }

    /// Whether the next entry of any queue raises an event.
    pub(super) fn is_any_armed(&self) -> bool {
        self.queues.iter().any(|(_, queue)| queue.armed)
    }

    #[inline]
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(super) fn events(&mut self) -> impl Iterator<Item = DeviceEvent> {
        self.events.drain(..)
    }
}

impl CompletionQueue {
    /// Latches a request for an event. A doorbell that only moves the consumer counter does not
    /// cancel an earlier request. A doorbell whose sequence number was served already is an old
    /// one.
    #[cold]
    fn read_doorbell(&mut self) -> CqDoorbell {
        let doorbell = CqDoorbell::from_bits(self.ring.doorbell().read());
        let is_new = self.served != Some(doorbell.sequence);
        let wants_more = self.armed && self.solicited_only && !doorbell.solicited_only;
        if doorbell.arm && (is_new || wants_more) {
            self.served = Some(doorbell.sequence);
            // A request for solicited entries does not weaken an earlier one for all entries.
            self.solicited_only = doorbell.solicited_only && (!self.armed || self.solicited_only);
            self.armed = true;
            self.attention = self.producer;
        }
        doorbell
    }

    /// Whether there is an unread entry for which the client has requested an event.
    #[cold]
    fn has_news(&self, consumer: u16) -> bool {
        let unread = self.producer.wrapping_sub(consumer);
        let wakes = |offset| {
            let slot = self.ring.read(consumer.wrapping_add(offset));
            matches!(slot, CompletionSlot::Entry(entry) if entry.is_solicited())
        };
        match self.solicited_only {
            false => unread != 0,
            true => (0..unread).any(wakes),
        }
    }

    /// Whether there is no room for another entry. Unknown, and false, for a client that reads the
    /// ring without calls.
    fn is_full(&self) -> bool {
        let unread = self.producer.wrapping_sub(self.ring.consumer());
        !self.is_read_without_calls() && u32::from(unread) >= self.ring.entries()
    }

    fn is_read_without_calls(&self) -> bool {
        self.watched || self.ring.is_lent()
    }

    /// The counter of the next entry that needs more than a write.
    fn next_attention(&self) -> u16 {
        match self.is_read_without_calls() || self.armed || self.counted {
            true => self.producer,
            false => self
                .ring
                .consumer()
                .wrapping_add(self.ring.entries() as u16),
        }
    }
}
