//! Transmits requests from send queues to the link.

use std::cmp::Reverse;
use std::time::Duration;

use efa_core::address::Qpn;
use efa_core::nic::Status;

use super::connected::timer_of;
use super::flight::RequestPlace;
use super::prepare::{LocalFailure, local_still_valid, prepare};
use super::queue_pair::{QpState, QueuePair};
use super::state::Device;
use crate::link::{Link, Token};

/// The most entries of one queue pair that are read in one turn.
const TURN: u32 = 16;

impl QueuePair {
    /// Returns whether there are entries that the device may start.
    #[inline(always)]
    fn has_unread(&self) -> bool {
        self.send.fetched != self.send.producer
            && self.state == QpState::ReadyToSend
            && self.send.in_flight < self.config.send_entries
    }
}

impl Device {
    /// Reads new send queue entries, retries requests after their RNR delay, and offers all of them
    /// to the link. Requests that the link refuses wait, without delaying requests to other
    /// destinations. Returns the number of requests that the link accepted.
    #[inline]
    pub fn transmit(&mut self, now: Duration, link: &mut impl Link) -> usize {
        let before = self.counters.tx_pkts;
        if !self.initiator.timers.is_empty() {
            self.expire_timers(now);
        }
        if !self.initiator.backlogs.is_empty() {
            self.drain_backlogs(now, link);
        }
        // Queue pairs with more entries continue in the next turn, in the same order.
        let mut kept = 0;
        let mut position = 0;
        while let Some(qpn) = self.initiator.scheduled.get(position).copied() {
            position += 1;
            if self.read_send_queue(qpn, link) {
                self.initiator.scheduled[kept] = qpn;
                kept += 1;
            }
        }
        self.initiator.scheduled.truncate(kept);
        self.flush_failed();
        (self.counters.tx_pkts - before) as usize
    }

    /// Returns whether the device has failed any queue pair. Its client may continue to post, so
    /// that [`Device::flush_failed`] must be called repeatedly.
    pub fn has_broken(&self) -> bool {
        let mut failed = self.initiator.failed.iter();
        failed.any(|qpn| self.qps.get(*qpn).is_some_and(|qp| qp.broken))
    }

    /// Flushes requests that were posted to failed queue pairs.
    #[inline]
    pub fn flush_failed(&mut self) {
        for position in 0..self.initiator.failed.len() {
            self.flush_posted(self.initiator.failed[position]);
        }
    }

    /// Returns whether another [`Device::transmit`] would do something now.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.initiator.scheduled.is_empty() || !self.initiator.backlogs.is_empty()
    }

    /// The time of the next required [`Device::transmit`]. `None` if none is required.
    #[inline]
    pub fn next_timeout(&self) -> Option<Duration> {
        let Reverse((time, _)) = self.initiator.timers.peek()?;
        Some(*time)
    }

    #[cold]
    fn expire_timers(&mut self, now: Duration) {
        let initiator = &mut self.initiator;
        let mut connected = Vec::new();
        while let Some(&Reverse((time, token))) = initiator.timers.peek()
            && time <= now
        {
            initiator.timers.pop();
            // Timers of a destroyed queue pair's requests remain.
            let Some(index) = initiator.flight.find(Token(token)) else {
                connected.extend(timer_of(token));
                continue;
            };
            if let Some(request) = initiator.flight.get(index) {
                self.counters.retrans_pkts += 1;
                self.counters.retrans_bytes += request.outgoing_bytes();
            }
            initiator.backlogs.push(index, &mut initiator.flight);
        }
        for qpn in connected {
            self.tick_connected(now, qpn);
        }
    }

    #[cold]
    fn drain_backlogs(&mut self, now: Duration, link: &mut impl Link) {
        let mut position = 0;
        while let Some(ahn) = self.initiator.backlogs.destination(position) {
            let mut busy = false;
            while let Some(index) = self.initiator.backlogs.first(ahn) {
                // The memory may have been deregistered since the entry was read.
                let is_registered = self.has_local_memory(index);
                let initiator = &mut self.initiator;
                if is_registered && initiator.offer(index, link).is_err() {
                    busy = true;
                    break;
                }
                initiator.backlogs.pop(ahn, &initiator.flight);
                initiator.set_place(index, RequestPlace::Link);
                if !is_registered {
                    let token = initiator.flight.token(index);
                    self.complete(now, token, Status::LocalInvalidLkey);
                } else if let Some(request) = initiator.flight.get(index) {
                    self.counters.tx_pkts += 1;
                    self.counters.tx_bytes += request.outgoing_bytes();
                }
            }
            // An empty queue has left the list, so the next one is now at this position.
            if busy {
                position += 1;
            }
        }
    }

    /// Returns whether the local memory of a request is still registered.
    fn has_local_memory(&self, index: u32) -> bool {
        self.initiator.flight.get(index).is_some_and(|request| {
            let qp = self.qps.get(request.qpn);
            qp.is_some_and(|qp| local_still_valid(request, qp, &self.regions))
        })
    }

    /// Reads the new entries of a queue pair, at most [`TURN`], and offers them to the link.
    /// Returns whether there are more.
    #[inline(never)]
    pub(super) fn read_send_queue(&mut self, qpn: Qpn, link: &mut impl Link) -> bool {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return self.transmit_connected(qpn, link);
        };
        let initiator = &mut self.initiator;
        let mut rest = TURN;
        while qp.has_unread() {
            if rest == 0 {
                return true;
            }
            rest -= 1;
            let (index, token, request) = initiator.flight.claim();
            let entry = qp.rings.send.read_into(qp.send.fetched, &mut request.wqe);
            qp.send.fetched = qp.send.fetched.wrapping_add(1);
            request.qpn = qpn;
            let prepared = match entry {
                Ok(()) => prepare(request, qp, &self.regions, &self.book, &self.profile),
                // It is read again to find the error.
                Err(_) => Err(Status::LocalQpInternalError),
            };
            if let Err(status) = prepared {
                let failure = LocalFailure::of_entry(&request.wqe, entry, status);
                initiator.flight.release(index);
                trace_refused(qpn, &failure);
                failure.count(&mut self.counters);
                self.cqs
                    .write(qp.config.send_cq, &failure.entry(qpn, &qp.config));
                if failure.status == Status::LocalQpInternalError {
                    qp.send.scheduled = false;
                    self.fail(qpn);
                    return false;
                }
                continue;
            }
            qp.send.sequence = qp.send.sequence.wrapping_add(1);
            qp.send.in_flight += 1;
            let bytes = request.outgoing_bytes();
            if initiator.backlogs.has(request.ahn()) || request.offer(token, link).is_err() {
                self.diagnostics.full_queues += 1;
                initiator.backlogs.push(index, &mut initiator.flight);
            } else {
                self.counters.tx_pkts += 1;
                self.counters.tx_bytes += bytes;
            }
        }
        qp.send.scheduled = false;
        false
    }
}

#[cold]
fn trace_refused(qpn: Qpn, failure: &LocalFailure) {
    tracing::debug!(%qpn, status = ?failure.status, "work request refused");
}
