//! Pending work: requests that wait for room in the device's queues.

use crate::endpoint::api::time::Instant;
use crate::nic::Nic;

use super::Posting;
use super::in_flight::{InFlight, PostedRequest};
use super::work::{Priority, Work};

impl<N: Nic> Posting<N> {
    /// Queues work, to be done as soon as there is room.
    pub(crate) fn queue(&mut self, work: Work) {
        self.work.push(self.priority(work), work);
    }

    /// Puts work back for which the device had no room.
    pub(crate) fn requeue(&mut self, work: Work) {
        self.work.requeue(self.priority(work), work);
    }

    /// Removes and returns the next work.
    #[inline]
    pub(crate) fn next_work(&mut self) -> Option<Work> {
        self.work.pop()
    }

    fn priority(&self, work: Work) -> Priority {
        match work {
            Work::Retry(id) => match self.in_flight.get(id) {
                Some(InFlight {
                    request: PostedRequest::Copied(_),
                    ..
                }) => Priority::RetryWithoutBuffer,
                _ => Priority::Retry,
            },
            Work::GiveUp => Priority::GiveUp,
            _ => Priority::Other,
        }
    }

    /// Returns whether there are requests in flight, or work that waits.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.len() > 0 || self.work.has_other() || self.deferred_work > 0
    }

    /// Returns whether there is something to do before the next completion of the device.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.receives.has_some()
            || self.work.has_any()
            || self.backoffs.next_end().is_some_and(|end| end <= now)
    }
}
