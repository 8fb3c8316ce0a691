//! The initiating side: from the send queue to the link, and the answers back into completions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::Status;

use super::backlog::Backlogs;
use super::flight::{FlightTable, Place, Request};
use super::prepare::{LocalFailure, count_completed, local_still_valid, prepare, send_entry};
use super::queue_pair::{QpState, QueuePair, RNR_RETRY_INFINITE, SendSide};
use super::{Device, Error};
use crate::link::{HostSegment, Link, LinkBusy, LocalData, Operation, RequestHeader, Token};

/// Entries that one queue pair may have read before the next one's turn.
const TURN: u32 = 16;

#[derive(Default)]
pub(super) struct Initiator {
    flight: FlightTable,
    /// Queue pairs with entries that were not read yet, in turn; each at most once.
    scheduled: Vec<Qpn>,
    /// Queue pairs whose doorbells nobody reports.
    watched: Vec<Qpn>,
    /// Queue pairs in the error state: what is posted to them has to be flushed.
    failed: Vec<Qpn>,
    backlogs: Backlogs,
    /// Tokens of the requests that wait because the receiver was not ready, by the time of their
    /// retry.
    timers: BinaryHeap<Reverse<(Duration, u64)>>,
}

impl SendSide {
    /// Starts over with an empty ring. Whether the queue pair is in the device's list stays.
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
            // Written out, so that the compiler knows that the header of a send has no remote memory.
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
    /// Whether there are entries that may be started.
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

    /// Takes a destroyed queue pair out of the lists of queue pairs.
    pub(super) fn remove_qp(&mut self, qpn: Qpn) {
        self.watch(qpn, false);
        self.scheduled.retain(|other| *other != qpn);
    }

    /// Offers a request again that the link refused, or that was not accepted by the responder.
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

    /// Notes that a queue pair is in the error state no more.
    pub(super) fn note_reset(&mut self, qpn: Qpn) {
        self.failed.retain(|other| *other != qpn);
    }

    /// Takes all requests of a queue pair, in no order.
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

    /// Takes the oldest request that waits for a destination.
    pub(super) fn take_from_backlog(&mut self, ahn: Ahn) -> Option<Request> {
        let index = self.backlogs.pop(ahn, &self.flight)?;
        self.flight.remove(index)
    }
}

impl Device {
    /// Looks at a send queue's doorbell, which its client has written. The device reads the new
    /// entries in the next [`Device::transmit`].
    ///
    /// A producer counter that is further ahead than the ring is long fails the queue pair.
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

    /// Looks at the doorbells of all watched queue pairs and completion queues.
    pub fn look_at_watched(&mut self) {
        for position in 0..self.initiator.watched.len() {
            let qpn = self.initiator.watched[position];
            // A destroyed queue pair is not watched any more, so this cannot fail.
            let _ = self.look_at_send_queue(qpn);
        }
        self.cqs.ring_watched();
    }

    /// Reads new send queue entries, repeats requests whose time has come, and offers everything to
    /// the link. Requests that the link refuses wait without holding up those for other
    /// destinations. Returns how many requests the link took.
    #[inline]
    pub fn transmit(&mut self, now: Duration, link: &mut impl Link) -> usize {
        let before = self.counters.tx_pkts;
        if !self.initiator.timers.is_empty() {
            self.expire_timers(now);
        }
        if !self.initiator.backlogs.is_empty() {
            self.drain_backlogs(link);
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
        for position in 0..self.initiator.failed.len() {
            self.flush_posted(self.initiator.failed[position]);
        }
        (self.counters.tx_pkts - before) as usize
    }

    /// Whether a further [`Device::transmit`] would have something to do now.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.initiator.scheduled.is_empty() || !self.initiator.backlogs.is_empty()
    }

    /// The time at which [`Device::transmit`] has to be called next, if any.
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
            // Requests of queue pairs that went away leave their timers behind.
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
    fn drain_backlogs(&mut self, link: &mut impl Link) {
        let initiator = &mut self.initiator;
        let mut position = 0;
        while let Some(ahn) = initiator.backlogs.destination(position) {
            let mut busy = false;
            while let Some(index) = initiator.backlogs.first(ahn) {
                if initiator.offer(index, link).is_err() {
                    busy = true;
                    break;
                }
                initiator.backlogs.pop(ahn, &initiator.flight);
                initiator.set_place(index, Place::Link);
                if let Some(request) = initiator.flight.get(index) {
                    self.counters.tx_pkts += 1;
                    self.counters.tx_bytes += request.outgoing_bytes();
                }
            }
            // An emptied queue has left the list: the next one is at the same position.
            if busy {
                position += 1;
            }
        }
    }

    /// Reads the new entries of a queue pair, as many as it may have in its turn, and offers them to
    /// the link. Returns whether there are more.
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
                // It is looked at once more to tell what is wrong.
                Err(_) => Err(Status::LocalQpInternalError),
            };
            if let Err(status) = prepared {
                let failure = LocalFailure::of_entry(&request.wqe, entry, status);
                initiator.flight.release(index);
                failure.count(&mut self.counters);
                self.cqs.write(qp.config.send_cq, &failure.entry(qpn));
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
                initiator.backlogs.push(index, &mut initiator.flight);
            } else {
                self.counters.tx_pkts += 1;
                self.counters.tx_bytes += bytes;
            }
        }
        qp.send.scheduled = false;
        false
    }

    /// The answer to a request. A token that is not with the link (any more) is ignored.
    ///
    /// The status is one that a responder gives, or the link's own: unresponsive or unreachable
    /// remote, or local invalid lkey if the local memory is gone. Anything else is an answer that
    /// makes no sense and becomes [`Status::RemoteBadStatus`]. "Receiver not ready" makes the request
    /// wait and go again, as often as the queue pair says. A datagram succeeds whatever became of it.
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
                .write(qp.config.send_cq, &send_entry(request, status));
        }
        found.release();
        if qp.send.fetched != qp.send.producer && !qp.send.scheduled {
            qp.send.scheduled = true;
            initiator.scheduled.push(qpn);
        }
    }

    /// The local memory of a request that is with the link: where the data of an RDMA read goes.
    /// `None` if the request is gone or its memory is no longer registered; then nothing may be
    /// written.
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

    /// Whether a request that is with the link names the region with this key as its local memory.
    pub fn uses_region(&self, token: Token, lkey: super::Lkey) -> bool {
        let flight = &self.initiator.flight;
        let request = flight.find(token).and_then(|index| flight.get(index));
        request.is_some_and(|request| {
            let wqe = &request.wqe;
            (0..wqe.buffer_count()).any(|index| wqe.buffer(index).lkey == lkey.0)
        })
    }

    /// The destination, the header and the local data of a request that is with the link. The data may
    /// be read as long as [`Device::local_memory`] answers `Some`.
    pub fn request(&self, token: Token) -> Option<(Gid, RequestHeader, LocalData<'_>)> {
        let flight = &self.initiator.flight;
        let request = flight.get(flight.find(token)?)?;
        Some((request.to, request.header(), request.local()))
    }

    /// The requests of a queue pair that are with the link.
    pub fn outstanding(&self, qpn: Qpn) -> impl Iterator<Item = Token> {
        let flight = &self.initiator.flight;
        flight
            .iter()
            .filter(move |(_, request)| request.qpn == qpn && request.place == Place::Link)
            .map(|(index, _)| flight.token(index))
    }
}

/// The status of the initiator's completion for the answer of the link.
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
