//! The initiator: requests from the send queue to the link, and completions from their answers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::Status;

use super::backlog::Backlogs;
use super::comp_counter::CountedOps;
use super::flight::{FlightTable, Place, Request};
use super::prepare::{LocalFailure, count_completed, local_still_valid, prepare, send_entry};
use super::queue_pair::{QpState, QueuePair, RNR_RETRY_INFINITE, SendSide};
use super::{Device, Error};
use crate::link::{HostSegment, Link, LinkBusy, LocalData, Operation, RequestHeader, Token};

/// The number of entries that are read of one queue pair before the next one has its turn.
const TURN: u32 = 16;

#[derive(Default)]
pub(super) struct Initiator {
    flight: FlightTable,
    /// Queue pairs with entries that the device has not read, in the order of their turns. Each is there
    /// at most once.
    scheduled: Vec<Qpn>,
    /// Queue pairs whose clients write doorbells without a call.
    watched: Vec<Qpn>,
    /// Queue pairs in the error state. What is posted to them has to be flushed.
    failed: Vec<Qpn>,
    backlogs: Backlogs,
    /// Tokens of the requests that wait because the receiver was not ready, by the time of their
    /// retry.
    timers: BinaryHeap<Reverse<(Duration, u64)>>,
}

impl SendSide {
    /// Starts again with an empty ring. The queue pair stays in the device's list if it is there.
    pub(super) fn restart(&mut self) {
        *self = SendSide {
            scheduled: self.scheduled,
            ..SendSide::default()
        };
    }
}

impl Request {
    /// Offers the request to the link.
    #[inline(always)]
    fn offer(&self, token: Token, link: &mut impl Link) -> Result<(), LinkBusy> {
        match self.operation {
            // Separate, so that the compiler knows that the header of a send has no remote memory.
            Operation::Send => {
                let header = RequestHeader {
                    operation: Operation::Send,
                    remote: None,
                    ..self.header()
                };
                link.try_send(self.to, token, &header, self.local())
            }
            _ => self.offer_other(token, link),
        }
    }

    #[cold]
    fn offer_other(&self, token: Token, link: &mut impl Link) -> Result<(), LinkBusy> {
        link.try_send(self.to, token, &self.header(), self.local())
    }
}

impl QueuePair {
    /// Returns whether there are entries that may be started.
    #[inline(always)]
    fn has_unread(&self) -> bool {
        self.send.fetched != self.send.producer
            && self.state == QpState::ReadyToSend
            && self.send.in_flight < self.config.send_entries
    }
}

impl Initiator {
    pub(super) fn prefetch(&self, token: Token) {
        self.flight.prefetch(token);
    }

    pub(super) fn watch(&mut self, qpn: Qpn, watched: bool) {
        self.watched.retain(|other| *other != qpn);
        if watched {
            self.watched.push(qpn);
        }
    }

    /// Removes a destroyed queue pair from the lists of queue pairs.
    pub(super) fn remove_qp(&mut self, qpn: Qpn) {
        self.watch(qpn, false);
        self.scheduled.retain(|other| *other != qpn);
    }

    /// Offers the link a request again that the link or the responder has refused.
    fn offer(&mut self, index: u32, link: &mut impl Link) -> Result<(), LinkBusy> {
        let token = self.flight.token(index);
        let Some(request) = self.flight.get(index) else {
            return Ok(());
        };
        request.offer_other(token, link)
    }

    fn set_place(&mut self, index: u32, place: Place) {
        if let Some(request) = self.flight.get_mut(index) {
            request.place = place;
        }
    }

    /// Notes that a queue pair is in the error state.
    pub(super) fn note_failed(&mut self, qpn: Qpn) {
        if !self.failed.contains(&qpn) {
            self.failed.push(qpn);
        }
    }

    /// Notes that a queue pair is no longer in the error state.
    pub(super) fn note_reset(&mut self, qpn: Qpn) {
        self.failed.retain(|other| *other != qpn);
    }

    /// Removes all requests of a queue pair, in no order.
    pub(super) fn take_requests(&mut self, qpn: Qpn) -> Vec<Request> {
        self.backlogs
            .remove_if(&mut self.flight, |request| request.qpn == qpn);
        let indices: Vec<u32> = self
            .flight
            .iter()
            .filter(|(_, request)| request.qpn == qpn)
            .map(|(index, _)| index)
            .collect();
        indices
            .into_iter()
            .filter_map(|index| self.flight.remove(index))
            .collect()
    }

    /// Removes the oldest request that waits for a destination.
    pub(super) fn take_from_backlog(&mut self, ahn: Ahn) -> Option<Request> {
        let index = self.backlogs.pop(ahn, &self.flight)?;
        self.flight.remove(index)
    }
}

impl Device {
    /// Reads a send queue's doorbell, which its client has written. The next [`Device::transmit`] reads
    /// the new entries.
    ///
    /// A producer counter that is further ahead than the length of the ring fails the queue pair.
    #[inline(always)]
    pub fn look_at_send_queue(&mut self, qpn: Qpn) -> Result<(), Error> {
        let qp = self
            .qps
            .get_mut(qpn)
            .ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
        if qp.state != QpState::ReadyToSend {
            return Ok(());
        }
        let producer = qp.rings.send.doorbell().read() as u16;
        if u32::from(producer.wrapping_sub(qp.send.fetched)) > qp.config.send_entries {
            self.fail(qpn);
            return Ok(());
        }
        qp.send.producer = producer;
        if producer != qp.send.fetched && !qp.send.scheduled {
            qp.send.scheduled = true;
            self.initiator.scheduled.push(qpn);
        }
        Ok(())
    }

    /// Reads the doorbells of all watched queue pairs and completion queues. Returns whether a queue pair's was rung.
    pub fn look_at_watched(&mut self) -> bool {
        let mut is_rung = false;
        for position in 0..self.initiator.watched.len() {
            let qpn = self.initiator.watched[position];
            is_rung |= self.look_at_direct_doorbell(qpn);
        }
        self.cqs.ring_watched();
        is_rung
    }

    /// As [`Device::look_at_send_queue`], for the doorbell of a client that rings without a call. Returns whether its
    /// value is new.
    fn look_at_direct_doorbell(&mut self, qpn: Qpn) -> bool {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
        };
        if qp.state != QpState::ReadyToSend || !qp.take_ring() {
            return false;
        }
        let send = &mut qp.send;
        let ahead = send.rung.wrapping_sub(send.fetched);
        if u32::from(ahead) > qp.config.send_entries {
            // Entries may have been read before it was rung for them, see `look_at_written`.
            if u32::from(send.fetched.wrapping_sub(send.rung)) > qp.config.send_entries {
                self.fail(qpn);
            }
            return true;
        }
        if ahead > send.producer.wrapping_sub(send.fetched) {
            send.producer = send.rung;
        }
        if send.producer != send.fetched && !send.scheduled {
            send.scheduled = true;
            self.initiator.scheduled.push(qpn);
        }
        true
    }

    /// Reads the doorbell that the client of a queue pair uses.
    pub(super) fn look_at_posted(&mut self, qpn: Qpn) -> Result<(), Error> {
        if self.qps.get(qpn).is_some_and(|qp| qp.send.is_direct) {
            self.look_at_direct_doorbell(qpn);
            return Ok(());
        }
        self.look_at_send_queue(qpn)
    }

    /// Looks for entries that a client has written. It is about to ring for them, without a call: so they are complete.
    pub fn look_at_written(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        if qp.state != QpState::ReadyToSend {
            return;
        }
        let send = &mut qp.send;
        while u32::from(send.producer.wrapping_sub(send.fetched)) < qp.config.send_entries
            && qp.rings.send.is_written(send.producer)
        {
            send.producer = send.producer.wrapping_add(1);
        }
        send.is_direct = true;
        if send.producer != send.fetched && !send.scheduled {
            send.scheduled = true;
            self.initiator.scheduled.push(qpn);
        }
    }

    /// Reads new send queue entries, repeats requests whose time has come, and offers all of them to the
    /// link. Requests that the link refuses wait, without delaying requests to other destinations.
    /// Returns the number of requests that the link took.
    #[inline]
    pub fn transmit(&mut self, now: Duration, link: &mut impl Link) -> usize {
        let before = self.counters.tx_pkts;
        if !self.initiator.timers.is_empty() {
            self.expire_timers(now);
        }
        if !self.initiator.backlogs.is_empty() {
            self.drain_backlogs(now, link);
        }
        // Queue pairs with more entries go on in the next turn, in the same order.
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

    /// Returns whether there are queue pairs that the device has failed: their clients may go on posting, so that
    /// [`Device::flush_failed`] is due again and again.
    pub fn has_broken(&self) -> bool {
        let mut failed = self.initiator.failed.iter();
        failed.any(|qpn| self.qps.get(*qpn).is_some_and(|qp| qp.broken))
    }

    /// Flushes what has been posted to queue pairs that have failed.
    pub fn flush_failed(&mut self) {
        for position in 0..self.initiator.failed.len() {
            self.flush_posted(self.initiator.failed[position]);
        }
    }

    /// Returns whether another [`Device::transmit`] would have something to do now.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.initiator.scheduled.is_empty() || !self.initiator.backlogs.is_empty()
    }

    /// The time at which [`Device::transmit`] has to be called next. `None` if it need not be.
    #[inline]
    pub fn next_timeout(&self) -> Option<Duration> {
        let Reverse((time, _)) = self.initiator.timers.peek()?;
        Some(*time)
    }

    #[cold]
    fn expire_timers(&mut self, now: Duration) {
        let initiator = &mut self.initiator;
        while let Some(&Reverse((time, token))) = initiator.timers.peek()
            && time <= now
        {
            initiator.timers.pop();
            // The timers of requests of destroyed queue pairs remain.
            let Some(index) = initiator.flight.find(Token(token)) else {
                continue;
            };
            if let Some(request) = initiator.flight.get(index) {
                self.counters.retrans_pkts += 1;
                self.counters.retrans_bytes += request.outgoing_bytes();
            }
            initiator.backlogs.push(index, &mut initiator.flight);
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
                initiator.set_place(index, Place::Link);
                if !is_registered {
                    let token = initiator.flight.token(index);
                    self.complete(now, token, Status::LocalInvalidLkey);
                } else if let Some(request) = initiator.flight.get(index) {
                    self.counters.tx_pkts += 1;
                    self.counters.tx_bytes += request.outgoing_bytes();
                }
            }
            // An empty queue has left the list, so the next one is at the same position.
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

    /// Reads the new entries of a queue pair, at most [`TURN`], and offers them to the link. Returns
    /// whether there are more.
    #[inline(never)]
    fn read_send_queue(&mut self, qpn: Qpn, link: &mut impl Link) -> bool {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
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
                // It is read once more to find out what is wrong.
                Err(_) => Err(Status::LocalQpInternalError),
            };
            if let Err(status) = prepared {
                let failure = LocalFailure::of_entry(&request.wqe, entry, status);
                initiator.flight.release(index);
                tracing::debug!(%qpn, status = ?failure.status, "work request refused");
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
                self.trouble.full_queues += 1;
                initiator.backlogs.push(index, &mut initiator.flight);
            } else {
                self.counters.tx_pkts += 1;
                self.counters.tx_bytes += bytes;
            }
        }
        qp.send.scheduled = false;
        false
    }

    /// Takes the answer to a request. A token of a request that the link does not have is ignored.
    ///
    /// The status is a responder's, or the link's own: the remote is unresponsive or unreachable, or the
    /// lkey is invalid because the local memory was deregistered. Any other status is invalid and
    /// becomes [`Status::RemoteBadStatus`]. After "receiver not ready" the request waits and is sent
    /// again, as often as the queue pair's attributes allow. A datagram succeeds whatever the answer is.
    #[inline]
    pub fn complete(&mut self, now: Duration, token: Token, status: Status) {
        let initiator = &mut self.initiator;
        let Some(mut found) = initiator.flight.find_mut(token) else {
            return;
        };
        let request = found.request();
        if request.place != Place::Link {
            return;
        }
        let Some(qp) = self.qps.get_mut(request.qpn) else {
            return;
        };
        let status = answered(request.operation, status);
        if status == Status::RemoteRnr {
            if qp.rnr_retry == RNR_RETRY_INFINITE || request.rnr_retries < u32::from(qp.rnr_retry) {
                let delay = self.profile.rnr_backoff.delay(request.rnr_retries);
                request.rnr_retries = request.rnr_retries.saturating_add(1);
                trace_rnr_retry(request, delay);
                request.place = Place::RnrTimer;
                let token = found.renew();
                initiator.timers.push(Reverse((now + delay, token.0)));
                return;
            }
            self.counters.retrans_timeout_events += 1;
        }
        let qpn = request.qpn;
        qp.send.in_flight -= 1;
        count_completed(&mut self.counters, request, status);
        if request.wqe.is_signaled() || status != Status::Ok {
            self.cqs
                .write(qp.config.send_cq, &send_entry(request, &qp.config, status));
        } else if qp.counted {
            let op = CountedOps::of_request(request.wqe.operation());
            self.cqs.count(qpn, op);
        }
        found.release();
        if qp.send.fetched != qp.send.producer && !qp.send.scheduled {
            qp.send.scheduled = true;
            initiator.scheduled.push(qpn);
        }
    }

    /// The local memory of a request that the link has, to which the data of an RDMA read is written.
    /// `None`, and nothing may be written, if the request has ended or its memory is no longer
    /// registered.
    pub fn local_memory(&self, token: Token) -> Option<&[HostSegment]> {
        let flight = &self.initiator.flight;
        let request = flight.get(flight.find(token)?)?;
        let qp = self.qps.get(request.qpn)?;
        if !local_still_valid(request, qp, &self.regions) {
            return None;
        }
        match request.local() {
            LocalData::Inline(_) => Some(&[]),
            LocalData::Segments(segments) => Some(segments),
        }
    }

    /// Returns whether a request that the link has uses the region with this key as its local memory.
    pub fn uses_region(&self, token: Token, lkey: super::Lkey) -> bool {
        let flight = &self.initiator.flight;
        let request = flight.find(token).and_then(|index| flight.get(index));
        request.is_some_and(|request| {
            let wqe = &request.wqe;
            (0..wqe.buffer_count()).any(|index| wqe.buffer(index).lkey == lkey.0)
        })
    }

    /// The destination, the header and the local data of a request that the link has. The data may be
    /// read as long as [`Device::local_memory`] returns `Some`.
    pub fn request(&self, token: Token) -> Option<(Gid, RequestHeader, LocalData<'_>)> {
        let flight = &self.initiator.flight;
        let request = flight.get(flight.find(token)?)?;
        Some((request.to, request.header(), request.local()))
    }

    /// The requests of a queue pair that the link has.
    pub fn outstanding(&self, qpn: Qpn) -> impl Iterator<Item = Token> {
        let flight = &self.initiator.flight;
        flight
            .iter()
            .filter(move |(_, request)| request.qpn == qpn && request.place == Place::Link)
            .map(|(index, _)| flight.token(index))
    }
}

#[cold]
fn trace_rnr_retry(request: &Request, again_in: Duration) {
    tracing::debug!(
        qpn = %request.qpn,
        ahn = request.ahn().0,
        peer = %request.to,
        attempt = request.rnr_retries,
        ?again_in,
        "RNR: the request is sent again"
    );
}

/// The status of the initiator's completion, from the link's answer.
#[inline(always)]
fn answered(operation: Operation, status: Status) -> Status {
    match status {
        Status::Ok | Status::LocalInvalidLkey => status,
        _ if operation == Operation::Datagram => Status::Ok,
        Status::RemoteBadAddress
        | Status::RemoteAbort
        | Status::RemoteBadDestQpn
        | Status::RemoteRnr
        | Status::RemoteBadLength
        | Status::RemoteBadStatus
        | Status::RemoteUnknownPeer
        | Status::RemoteFeatureMismatch
        | Status::LocalUnresponsiveRemote
        | Status::LocalUnreachableRemote => status,
        Status::Flushed
        | Status::LocalQpInternalError
        | Status::LocalUnsupportedOp
        | Status::LocalInvalidAh
        | Status::LocalBadLength => Status::RemoteBadStatus,
    }
}
