//! Commands for completion queues, and their events.

use std::sync::Arc;

use super::error::Error;
use super::event::DeviceEvent;
use super::ids::CqId;
use super::queue::{CompletionRing, RequestIdSize};
use super::state::Device;
use crate::counters::Command;

impl Device {
    pub(super) fn check_request_ids(&self, ids: RequestIdSize) -> Result<(), Error> {
        match (ids, self.profile.longest_request_ids()) {
            (RequestIdSize::Bits64, RequestIdSize::Bits16) => {
                Err(Error::Unsupported("64-bit request ids"))
            }
            _ => Ok(()),
        }
    }

    /// Creates a completion queue with at least `entries` entries, rounded up to a power of two.
    /// `request_ids` is the size of the longest ids of send queues that complete there.
    pub fn create_cq(
        &mut self,
        entries: u32,
        request_ids: RequestIdSize,
    ) -> Result<(CqId, Arc<CompletionRing>), Error> {
        self.command(Command::CreateCq, |device| {
            device.check_cq(entries, request_ids)?;
            let ring = Arc::new(CompletionRing::new(entries.next_power_of_two())?);
            Ok((device.cqs.insert(Arc::clone(&ring), request_ids), ring))
        })
    }

    /// As [`Device::create_cq`], with a ring that the caller has made.
    pub fn create_cq_over(
        &mut self,
        ring: Arc<CompletionRing>,
        request_ids: RequestIdSize,
    ) -> Result<CqId, Error> {
        self.command(Command::CreateCq, |device| {
            device.check_cq(ring.entries(), request_ids)?;
            Ok(device.cqs.insert(ring, request_ids))
        })
    }

    fn check_cq(&self, entries: u32, request_ids: RequestIdSize) -> Result<(), Error> {
        self.check_request_ids(request_ids)?;
        if entries == 0 || entries > self.profile.max_cqe {
            return Err(Error::invalid("number of completion entries", entries));
        }
        if self.cqs.len() >= self.profile.max_cq as usize {
            return Err(Error::Exhausted("completion queue"));
        }
        Ok(())
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        self.command(Command::Other, |device| device.cqs.remove(cq))
    }

    /// Reads a completion queue's doorbell, which its client has written. If the doorbell requests
    /// an event, the event is raised immediately if there are entries beyond the consumer counter,
    /// and with the next entry otherwise.
    pub fn arm_cq(&mut self, cq: CqId) -> Result<(), Error> {
        self.cqs.ring(cq)
    }

    /// Returns whether the next entry of any completion queue raises an event.
    pub fn awaits_event(&self) -> bool {
        self.cqs.is_any_armed()
    }

    /// Returns whether there are events since the last [`Device::take_events`].
    #[inline]
    pub fn has_events(&self) -> bool {
        self.cqs.has_events()
    }

    /// Removes and returns the events since the last call.
    pub fn take_events(&mut self) -> impl Iterator<Item = DeviceEvent> {
        self.cqs.events()
    }

    /// Runs `work`, then writes every completion entry that it has added a second time, to stage a
    /// fault of the device.
    pub fn duplicating<T>(&mut self, work: impl FnOnce(&mut Device) -> T) -> T {
        let before = self.completion_counters();
        let result = work(self);
        self.repeat_completions(&before);
        result
    }

    /// The counters of all completion queues, for [`Device::repeat_completions`].
    pub fn completion_counters(&self) -> Vec<(CqId, u16)> {
        self.cqs.counters()
    }

    /// Writes every completion entry that was written since `since` a second time.
    pub fn repeat_completions(&mut self, since: &[(CqId, u16)]) {
        self.cqs.repeat_since(since);
    }

    /// The memory of a completion queue.
    pub fn completion_ring(&self, cq: CqId) -> Option<&Arc<CompletionRing>> {
        self.cqs.direct_ring(cq)
    }

    /// The counter of the next entry of a completion queue.
    pub fn next_completion(&self, cq: CqId) -> Option<u16> {
        self.cqs.producer(cq)
    }

    /// As [`Device::watch_qp`], for a completion queue's doorbell.
    pub fn watch_cq(&mut self, cq: CqId, watched: bool) -> Result<(), Error> {
        self.cqs.set_watched(cq, watched)
    }
}
