//! The initiating side: from the send queue to the link, and the answers back into completions.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use efa_core::address::{Ahn, Qpn};
use efa_core::nic::{Access, DeviceCaps, Status};

use super::address_book::AddressBook;
use super::flight::{FlightTable, Place, Request, RequestData};
use super::keys::RegionTable;
use super::queue::{
    BadWorkRequest, CompletionEntry, Payload, QueueSide, SendDetail, WorkRequest, WqeOperation,
};
use super::queue_pair::{QpState, QueuePair, RNR_RETRY_INFINITE, SendSide, Service};
use super::{Device, Error};
use crate::link::{HostSegment, Link, LinkBusy, Operation, RemoteRange, RequestHeader, Token};
use crate::profile::Profile;

/// Entries that one queue pair may have read before the next one's turn.
const TURN: u32 = 16;

/// Requests for one destination that the link refused, oldest first, linked through their slots.
#[derive(Clone, Copy, Default)]
struct Backlog {
    ends: Option<(u32, u32)>,
}

#[derive(Default)]
pub(super) struct Initiator {
    flight: FlightTable,
    /// Queue pairs with entries that were not read yet; each at most once.
    scheduled: VecDeque<Qpn>,
    /// Queue pairs whose doorbells nobody reports.
    watched: Vec<Qpn>,
    /// By address handle number.
    backlogs: Vec<Backlog>,
    /// The numbers whose backlog is not empty.
    backlogged: Vec<u16>,
    /// Requests that wait because the receiver was not ready, by the time of their retry.
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

impl Initiator {
    pub(super) fn watch(&mut self, qpn: Qpn, watched: bool) {
        self.watched.retain(|other| *other != qpn);
        if watched {
            self.watched.push(qpn);
        }
    }

    fn has_backlog(&self, ahn: u16) -> bool {
        self.backlogs
            .get(usize::from(ahn))
            .is_some_and(|backlog| backlog.ends.is_some())
    }

    fn push_backlog(&mut self, index: u32) {
        let Some(request) = self.flight.get_mut(index) else {
            return;
        };
        request.place = Place::Backlog { next: None };
        let ahn = request.ahn;
        let position = usize::from(ahn);
        if self.backlogs.len() <= position {
            self.backlogs.resize(position + 1, Backlog::default());
        }
        let backlog = &mut self.backlogs[position];
        match &mut backlog.ends {
            Some((_, last)) => {
                if let Some(previous) = self.flight.get_mut(*last) {
                    previous.place = Place::Backlog { next: Some(index) };
                }
                *last = index;
            }
            None => {
                backlog.ends = Some((index, index));
                self.backlogged.push(ahn);
            }
        }
    }

    fn pop_backlog(&mut self, ahn: u16) -> Option<u32> {
        let backlog = &mut self.backlogs[usize::from(ahn)];
        let (head, last) = backlog.ends?;
        backlog.ends = match self.flight.get(head).map(|request| request.place) {
            Some(Place::Backlog { next: Some(next) }) => Some((next, last)),
            _ => None,
        };
        Some(head)
    }

    /// Offers a request to the link and notes where it is now.
    fn offer(&mut self, index: u32, link: &mut impl Link) -> Result<(), LinkBusy> {
        let token = self.flight.token(index);
        let Some(request) = self.flight.get_mut(index) else {
            return Ok(());
        };
        link.try_send(request.to, token, &request.header, request.data.as_local())?;
        request.place = Place::Link;
        Ok(())
    }
}

impl Device {
    /// Tells the device that the send queue's doorbell was written. The device reads the new entries
    /// in the next [`Device::transmit`].
    ///
    /// A producer counter that is further ahead than the ring is long fails the queue pair.
    pub fn ring_send_doorbell(&mut self, qpn: Qpn) -> Result<(), Error> {
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
            self.initiator.scheduled.push_back(qpn);
        }
        Ok(())
    }

    /// Looks at the doorbells of all watched queue pairs and completion queues.
    pub fn poll_doorbells(&mut self) {
        for position in 0..self.initiator.watched.len() {
            let qpn = self.initiator.watched[position];
            // Destroyed queue pairs are not watched.
            let _ = self.ring_send_doorbell(qpn);
        }
        self.cqs.ring_watched();
    }

    /// Reads new send queue entries, repeats requests whose time has come, and offers everything to
    /// the link. Requests that the link refuses wait without holding up those for other
    /// destinations. Returns how many requests the link took.
    pub fn transmit(&mut self, now: Duration, link: &mut impl Link) -> usize {
        let before = self.counters.tx_pkts;
        if !self.initiator.timers.is_empty() {
            self.expire_timers(now);
        }
        if !self.initiator.backlogged.is_empty() {
            self.drain_backlogs(link);
        }
        for _ in 0..self.initiator.scheduled.len() {
            if let Some(qpn) = self.initiator.scheduled.pop_front() {
                self.read_send_queue(qpn, link);
            }
        }
        (self.counters.tx_pkts - before) as usize
    }

    /// Whether a further [`Device::transmit`] would have something to do now.
    pub fn has_unsent(&self) -> bool {
        !self.initiator.scheduled.is_empty() || !self.initiator.backlogged.is_empty()
    }

    /// The time at which [`Device::transmit`] has to be called next, if any.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.initiator.timers.peek().map(|Reverse((time, _))| *time)
    }

    fn expire_timers(&mut self, now: Duration) {
        while let Some(Reverse((time, token))) = self.initiator.timers.peek().copied()
            && time <= now
        {
            self.initiator.timers.pop();
            let Some(index) = self.initiator.flight.find(Token(token)) else {
                continue;
            };
            if let Some(request) = self.initiator.flight.get(index) {
                self.counters.retrans_pkts += 1;
                self.counters.retrans_bytes += outgoing_bytes(&request.header);
                self.initiator.push_backlog(index);
            }
        }
    }

    fn drain_backlogs(&mut self, link: &mut impl Link) {
        let initiator = &mut self.initiator;
        let mut position = 0;
        while let Some(&ahn) = initiator.backlogged.get(position) {
            let mut busy = false;
            while let Some((head, last)) = initiator.backlogs[usize::from(ahn)].ends {
                let Some(request) = initiator.flight.get(head) else {
                    break;
                };
                let next = match request.place {
                    Place::Backlog { next } => next,
                    _ => None,
                };
                let bytes = outgoing_bytes(&request.header);
                if initiator.offer(head, link).is_err() {
                    busy = true;
                    break;
                }
                initiator.backlogs[usize::from(ahn)].ends = next.map(|next| (next, last));
                self.counters.tx_pkts += 1;
                self.counters.tx_bytes += bytes;
            }
            if busy {
                position += 1;
            } else {
                initiator.backlogged.swap_remove(position);
            }
        }
    }

    fn read_send_queue(&mut self, qpn: Qpn, link: &mut impl Link) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        let mut broken = false;
        let mut turn = TURN;
        while qp.send.fetched != qp.send.producer
            && qp.state == QpState::ReadyToSend
            && qp.send.in_flight < qp.config.send_entries
        {
            if turn == 0 {
                self.initiator.scheduled.push_back(qpn);
                return;
            }
            turn -= 1;
            let entry = qp.rings.send.read(qp.send.fetched);
            qp.send.fetched = qp.send.fetched.wrapping_add(1);
            let prepared = match &entry {
                Ok(wqe) => prepare(wqe, qpn, qp, &self.regions, &self.book, &self.profile),
                Err(error) => Err(LocalFailure::unreadable(error)),
            };
            let request = match prepared {
                Ok(request) => request,
                Err(failure) => {
                    failure.count(&mut self.counters);
                    self.cqs.write(qp.config.send_cq, &failure.entry(qpn));
                    if failure.status == Status::LocalQpInternalError {
                        broken = true;
                        break;
                    }
                    continue;
                }
            };
            qp.send.sequence = qp.send.sequence.wrapping_add(1);
            qp.send.in_flight += 1;
            let ahn = request.ahn;
            let bytes = outgoing_bytes(&request.header);
            let index = self.initiator.flight.insert(request);
            if self.initiator.has_backlog(ahn) || self.initiator.offer(index, link).is_err() {
                self.initiator.push_backlog(index);
            } else {
                self.counters.tx_pkts += 1;
                self.counters.tx_bytes += bytes;
            }
        }
        qp.send.scheduled = false;
        if broken {
            self.fail(qpn);
        }
    }

    /// The answer to a request. A token that is not with the link (any more) is ignored.
    ///
    /// The status is one that a responder gives, or the link's own: unresponsive or unreachable
    /// remote, or local invalid lkey if the local memory is gone. Anything else is an answer that
    /// makes no sense and becomes [`Status::RemoteBadStatus`]. "Receiver not ready" makes the request wait and go again, as often as the queue pair says. A
    /// datagram succeeds whatever became of it.
    pub fn complete(&mut self, now: Duration, token: Token, status: Status) {
        let Some(index) = self.initiator.flight.find(token) else {
            return;
        };
        let Some(request) = self.initiator.flight.get_mut(index) else {
            return;
        };
        if request.place != Place::Link {
            return;
        }
        let qpn = request.qpn;
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        let status = answered(request.header.operation, status);
        if status == Status::RemoteRnr {
            if qp.rnr_retry == RNR_RETRY_INFINITE || request.rnr_retries < u32::from(qp.rnr_retry) {
                let delay = self.profile.rnr_backoff.delay(request.rnr_retries);
                request.rnr_retries = request.rnr_retries.saturating_add(1);
                request.place = Place::RnrTimer;
                let token = self.initiator.flight.renew(index);
                self.initiator.timers.push(Reverse((now + delay, token.0)));
                return;
            }
            self.counters.retrans_timeout_events += 1;
        }
        let Some(request) = self.initiator.flight.remove(index) else {
            return;
        };
        qp.send.in_flight -= 1;
        count_completed(&mut self.counters, &request, status);
        if request.signaled || status != Status::Ok {
            self.cqs
                .write(qp.config.send_cq, &send_entry(&request, status));
        }
        if qp.send.fetched != qp.send.producer && !qp.send.scheduled {
            qp.send.scheduled = true;
            self.initiator.scheduled.push_back(qpn);
        }
    }

    /// The local memory of a request that is with the link: where the data of an RDMA read goes.
    /// `None` if the request is gone or its memory is no longer registered; then nothing may be
    /// written.
    pub fn local_memory(&self, token: Token) -> Option<&[HostSegment]> {
        let request = self
            .initiator
            .flight
            .get(self.initiator.flight.find(token)?)?;
        let qp = self.qps.get(request.qpn)?;
        if !local_still_valid(request, qp, &self.regions) {
            return None;
        }
        match &request.data {
            RequestData::Inline(_) => Some(&[]),
            RequestData::Segments {
                count, segments, ..
            } => Some(&segments[..usize::from(*count)]),
        }
    }

    /// The requests of a queue pair that are with the link.
    pub fn outstanding(&self, qpn: Qpn) -> impl Iterator<Item = Token> {
        let flight = &self.initiator.flight;
        flight
            .iter()
            .filter(move |(_, request)| request.qpn == qpn && request.place == Place::Link)
            .map(|(index, _)| flight.token(index))
    }

    /// Puts a queue pair into the error state because its queues make no sense.
    pub(super) fn fail(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.state = QpState::Error;
            self.flush(qpn);
        }
    }

    /// Completes everything outstanding with [`Status::Flushed`]: requests in flight, then entries
    /// that were posted and not read, then receives.
    pub(super) fn flush(&mut self, qpn: Qpn) {
        let requests = self.take_requests(qpn);
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        for request in requests {
            count_completed(&mut self.counters, &request, Status::Flushed);
            self.cqs
                .write(qp.config.send_cq, &send_entry(&request, Status::Flushed));
        }
        qp.send.in_flight = 0;
        let producer = qp.rings.send.doorbell().read() as u16;
        if u32::from(producer.wrapping_sub(qp.send.fetched)) <= qp.config.send_entries {
            qp.send.producer = producer;
        }
        while qp.send.fetched != qp.send.producer {
            let mut failure = match qp.rings.send.read(qp.send.fetched) {
                Ok(wqe) => LocalFailure::of(&wqe, Status::Flushed),
                Err(error) => LocalFailure::unreadable(&error),
            };
            failure.status = Status::Flushed;
            failure.count(&mut self.counters);
            self.cqs.write(qp.config.send_cq, &failure.entry(qpn));
            qp.send.fetched = qp.send.fetched.wrapping_add(1);
        }
        qp.flush_receives(qpn, &mut self.cqs);
    }

    /// Drops everything outstanding without completions.
    pub(super) fn forget_requests(&mut self, qpn: Qpn) {
        self.take_requests(qpn);
    }

    fn take_requests(&mut self, qpn: Qpn) -> Vec<Request> {
        let initiator = &mut self.initiator;
        let mut of_qp: Vec<(u32, u32)> = initiator
            .flight
            .iter()
            .filter(|(_, request)| request.qpn == qpn)
            .map(|(index, request)| (request.header.sequence, index))
            .collect();
        of_qp.sort_unstable_by_key(|&(sequence, _)| sequence);
        // Take the backlogs apart and put those of other queue pairs back.
        let mut kept = Vec::new();
        for ahn in std::mem::take(&mut initiator.backlogged) {
            while let Some(index) = initiator.pop_backlog(ahn) {
                if initiator.flight.get(index).is_some_and(|r| r.qpn != qpn) {
                    kept.push(index);
                }
            }
        }
        for index in kept {
            initiator.push_backlog(index);
        }
        of_qp
            .into_iter()
            .filter_map(|(_, index)| initiator.flight.remove(index))
            .collect()
    }

    /// Fails the requests that wait for a destination whose handle is gone.
    pub(super) fn abandon_backlog(&mut self, ahn: Ahn) {
        if !self.initiator.has_backlog(ahn.0) {
            return;
        }
        self.initiator.backlogged.retain(|other| *other != ahn.0);
        while let Some(index) = self.initiator.pop_backlog(ahn.0) {
            let Some(request) = self.initiator.flight.remove(index) else {
                continue;
            };
            if let Some(qp) = self.qps.get_mut(request.qpn) {
                qp.send.in_flight -= 1;
                let status = Status::LocalInvalidAh;
                count_completed(&mut self.counters, &request, status);
                self.cqs
                    .write(qp.config.send_cq, &send_entry(&request, status));
            }
        }
    }
}

/// Bytes of data that leave with a request.
fn outgoing_bytes(header: &RequestHeader) -> u64 {
    match header.operation {
        Operation::RdmaRead => 0,
        _ => u64::from(header.length),
    }
}

/// The status of the initiator's completion for the answer of the link.
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

fn local_access(operation: WqeOperation) -> Access {
    match operation {
        WqeOperation::RdmaRead => Access::LOCAL_WRITE,
        WqeOperation::Send | WqeOperation::RdmaWrite => Access::empty(),
    }
}

fn local_still_valid(request: &Request, qp: &QueuePair, regions: &RegionTable) -> bool {
    let RequestData::Segments {
        count,
        segments,
        named,
    } = &request.data
    else {
        return true;
    };
    let access = local_access(request.operation);
    segments[..usize::from(*count)]
        .iter()
        .zip(named)
        .all(|(segment, &(lkey, iova))| {
            segment.length == 0
                || regions.local(qp.config.pd, lkey, iova, segment.length, access) == Some(*segment)
        })
}

/// Checks a work request and resolves its memory.
fn prepare(
    wqe: &WorkRequest,
    qpn: Qpn,
    qp: &QueuePair,
    regions: &RegionTable,
    book: &AddressBook,
    profile: &Profile,
) -> Result<Request, LocalFailure> {
    let fail = |status| LocalFailure::of(wqe, status);
    let caps = profile.caps;
    let (operation, supported, longest) = match (wqe.operation, qp.config.service) {
        (WqeOperation::Send, Service::Srd) => (Operation::Send, true, profile.mtu),
        (WqeOperation::Send, Service::Ud) => (Operation::Datagram, true, profile.mtu),
        (WqeOperation::RdmaRead, service) => (
            Operation::RdmaRead,
            service == Service::Srd
                && caps.contains(DeviceCaps::RDMA_READ)
                && wqe.immediate.is_none(),
            profile.max_rdma_size,
        ),
        (WqeOperation::RdmaWrite, service) => (
            Operation::RdmaWrite,
            service == Service::Srd && caps.contains(DeviceCaps::RDMA_WRITE),
            profile.max_rdma_size,
        ),
    };
    if !supported {
        return Err(fail(Status::LocalUnsupportedOp));
    }
    let to = book
        .destination(qp.config.pd, wqe.ahn)
        .ok_or_else(|| fail(Status::LocalInvalidAh))?;
    let length = u32::try_from(wqe.payload.length())
        .ok()
        .filter(|length| *length <= longest)
        .ok_or_else(|| fail(Status::LocalBadLength))?;
    if wqe.remote.is_some_and(|remote| remote.length != length) {
        return Err(fail(Status::LocalBadLength));
    }
    let data = match &wqe.payload {
        Payload::Inline(data) => RequestData::Inline(*data),
        Payload::Buffers { count, buffers } => {
            let access = local_access(wqe.operation);
            let mut segments = [HostSegment {
                address: 0,
                length: 0,
            }; 2];
            let mut named = [(0, 0); 2];
            for (position, buffer) in buffers[..usize::from(*count)].iter().enumerate() {
                named[position] = (buffer.lkey, buffer.address);
                if buffer.length == 0 {
                    continue;
                }
                segments[position] = regions
                    .local(
                        qp.config.pd,
                        buffer.lkey,
                        buffer.address,
                        buffer.length,
                        access,
                    )
                    .ok_or_else(|| fail(Status::LocalInvalidLkey))?;
            }
            RequestData::Segments {
                count: *count,
                segments,
                named,
            }
        }
    };
    Ok(Request {
        qpn,
        request_id: wqe.request_id,
        request_id_upper: wqe.request_id_upper,
        operation: wqe.operation,
        signaled: wqe.signaled,
        to,
        ahn: wqe.ahn,
        header: RequestHeader {
            operation,
            source_qpn: qpn,
            destination_qpn: wqe.destination_qpn,
            qkey: wqe.qkey,
            sequence: qp.send.sequence,
            immediate: wqe.immediate,
            remote: wqe.remote.map(|remote| RemoteRange {
                address: remote.address,
                key: remote.rkey,
            }),
            length,
        },
        data,
        rnr_retries: 0,
        place: Place::Backlog { next: None },
    })
}

/// A send queue entry that fails before it leaves.
struct LocalFailure {
    request_id: u16,
    request_id_upper: u64,
    operation: WqeOperation,
    status: Status,
}

impl LocalFailure {
    fn of(wqe: &WorkRequest, status: Status) -> Self {
        LocalFailure {
            request_id: wqe.request_id,
            request_id_upper: wqe.request_id_upper,
            operation: wqe.operation,
            status,
        }
    }

    fn unreadable(error: &BadWorkRequest) -> Self {
        let (request_id, status) = match *error {
            BadWorkRequest::Operation { request_id, .. } => {
                (request_id, Status::LocalUnsupportedOp)
            }
            BadWorkRequest::Length { request_id, .. } => (request_id, Status::LocalBadLength),
            BadWorkRequest::Control { request_id, .. } => {
                (request_id, Status::LocalQpInternalError)
            }
        };
        LocalFailure {
            request_id,
            request_id_upper: 0,
            operation: WqeOperation::Send,
            status,
        }
    }

    fn count(&self, counters: &mut super::Counters) {
        count_failed(counters, self.operation);
    }

    fn entry(&self, qpn: Qpn) -> CompletionEntry {
        CompletionEntry {
            request_id: self.request_id,
            status: self.status.code(),
            operation: self.operation,
            qpn,
            side: QueueSide::Send(SendDetail {
                request_id_upper: self.request_id_upper,
            }),
        }
    }
}

fn send_entry(request: &Request, status: Status) -> CompletionEntry {
    CompletionEntry {
        request_id: request.request_id,
        status: status.code(),
        operation: request.operation,
        qpn: request.qpn,
        side: QueueSide::Send(SendDetail {
            request_id_upper: request.request_id_upper,
        }),
    }
}

fn count_failed(counters: &mut super::Counters, operation: WqeOperation) {
    match operation {
        WqeOperation::Send => {}
        WqeOperation::RdmaRead => counters.rdma_read_wr_err += 1,
        WqeOperation::RdmaWrite => counters.rdma_write_wr_err += 1,
    }
}

fn count_completed(counters: &mut super::Counters, request: &Request, status: Status) {
    let bytes = u64::from(request.header.length);
    match status {
        Status::Ok => match request.operation {
            WqeOperation::Send => {
                counters.send_wrs += 1;
                counters.send_bytes += bytes;
            }
            WqeOperation::RdmaRead => {
                counters.rdma_read_wrs += 1;
                counters.rdma_read_bytes += bytes;
            }
            WqeOperation::RdmaWrite => {
                counters.rdma_write_wrs += 1;
                counters.rdma_write_bytes += bytes;
            }
        },
        _ => count_failed(counters, request.operation),
    }
    match status {
        Status::LocalUnresponsiveRemote => counters.unresponsive_remote_events += 1,
        Status::LocalUnreachableRemote => counters.impaired_remote_conn_events += 1,
        _ => {}
    }
}
