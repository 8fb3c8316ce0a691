//! Completions of requests by the link's answers, and the link's queries about outstanding
//! requests.

use std::cmp::Reverse;
use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;

use super::comp_counter::CountedOps;
use super::flight::{InFlightRequest, RequestPlace};
use super::prepare::{count_completed, local_still_valid, send_entry};
use super::queue_pair::RNR_RETRY_INFINITE;
use super::regions::Lkey;
use super::state::Device;
use crate::link::{HostSegment, LocalData, Operation, RequestHeader, Token};

impl Device {
    /// Processes the answer to a request. A token of a request that the link does not have is
    /// ignored.
    ///
    /// The status is a responder's, or one of the link: the remote is unresponsive or unreachable,
    /// or the lkey is invalid because the local memory was deregistered. Any other status is
    /// invalid and becomes [`Status::RemoteBadStatus`]. After "receiver not ready" the request
    /// waits and is sent again, as often as the queue pair's attributes allow. A datagram always
    /// succeeds.
    #[inline]
    pub fn complete(&mut self, now: Duration, token: Token, status: Status) {
        let initiator = &mut self.initiator;
        let Some(mut found) = initiator.flight.find_mut(token) else {
            return self.packet_left(token, false);
        };
        let request = found.request();
        if request.place != RequestPlace::Link {
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
                request.place = RequestPlace::RnrTimer;
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

    /// The local memory of a request that the link has, for the data of an RDMA read. If it returns
    /// `None`, nothing may be written: the request has ended or its memory is no longer registered.
    pub fn local_memory(&self, token: Token) -> Option<&[HostSegment]> {
        let flight = &self.initiator.flight;
        let request = flight.get(flight.find(token)?)?;
        let qp = self.qps.get(request.qpn)?;
        if !local_still_valid(request, qp, &self.regions) {
            return None;
        }
        match request.local() {
            LocalData::Inline(_) | LocalData::Packet { .. } => Some(&[]),
            LocalData::Segments(segments) => Some(segments),
        }
    }

    /// Returns whether a request that the link has uses the region with this key as its local
    /// memory.
    pub fn uses_region(&self, token: Token, lkey: Lkey) -> bool {
        let flight = &self.initiator.flight;
        let request = flight.find(token).and_then(|index| flight.get(index));
        request.is_some_and(|request| {
            let wqe = &request.wqe;
            (0..wqe.buffer_count()).any(|index| wqe.buffer(index).lkey == lkey.0)
        })
    }

    /// The destination, the header and the local data of a request that the link has. The data may
    /// be read as long as [`Device::local_memory`] returns `Some`.
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
            .filter(move |(_, request)| request.qpn == qpn && request.place == RequestPlace::Link)
            .map(|(index, _)| flight.token(index))
    }
}

#[cold]
fn trace_rnr_retry(request: &InFlightRequest, again_in: Duration) {
    tracing::debug!(
        qpn = %request.qpn,
        ahn = request.ahn().0,
        peer = %request.to,
        attempt = request.rnr_retries,
        ?again_in,
        "RNR: the request is sent again"
    );
}

/// The status of the initiator's completion for the link's answer.
#[inline(always)]
fn answered(operation: Operation, status: Status) -> Status {
    match status {
        Status::Ok | Status::LocalInvalidLkey => status,
        _ if operation.is_unanswered() => Status::Ok,
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
