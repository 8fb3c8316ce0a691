//! Progress: device completions, pending work, and the results that the application polls.

use crate::nic::{Nic, PolledNic};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{CompletionEntry, ErrorEntry, Event};
use crate::endpoint::api::time::Instant;

impl<N: PolledNic> Endpoint<N> {
    /// Makes all progress that is possible at time `now`: reads completions from the device (one
    /// poll of `poll_batch`), handles packets, and posts pending and resent ones. Returns the
    /// number of device completions. If that is the whole batch, there may be more.
    pub fn progress(&mut self, now: Instant) -> usize {
        self.channel.now = now;
        if self.channel.posting.is_deferring() {
            self.channel.posting.flush();
        }
        let mut taken = 0;
        if self.channel.reports.has_room() {
            let mut batch = core::mem::take(&mut self.batch);
            taken = self
                .channel
                .posting
                .nic_mut()
                .poll(&mut batch, self.channel.config.poll_batch);
            for completion in &batch {
                self.on_completion(completion);
            }
            batch.clear();
            self.batch = batch;
            if taken == 0 {
                self.end_waits();
            }
        }
        self.finish_progress();
        taken
    }
}

impl<N: Nic> Endpoint<N> {
    /// The time when `progress` must be called even if no completion arrives; `None` if no such
    /// call is needed.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.channel.posting.next_backoff_end()
    }

    /// Removes and returns the next completion, in the order in which operations ended.
    pub fn poll_completion(&mut self) -> Option<Result<CompletionEntry, ErrorEntry>> {
        self.channel.reports.next_completion()
    }

    /// Removes all completions, in the order in which operations ended, and passes each to `take`.
    /// Unlike [`Endpoint::poll_completion`], it does not copy them.
    #[inline(always)]
    pub fn drain_completions(&mut self, take: impl FnMut(&Result<CompletionEntry, ErrorEntry>)) {
        self.channel.reports.drain_completions(take);
    }

    /// Removes and returns the next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.channel.reports.next_event()
    }

    /// Returns whether any work still needs calls of `progress`: packets in flight or pending,
    /// including internal ones (handshake, EOR, receipt, ...). For an orderly shutdown, call
    /// `progress` until this is false.
    pub fn has_packets_in_flight(&self) -> bool {
        self.channel.posting.is_busy() || !self.channel.gone.is_empty()
    }

    /// Posts pending requests, as far as the device has room.
    #[inline]
    pub(crate) fn finish_progress(&mut self) {
        self.channel.end_backoffs();
        self.do_pending_work();
        self.channel.post_receives();
    }
}
