//! Rings to peers, and the requests of their unanswered records.

use std::sync::Arc;

use efa_core::nic::Status;
use efa_device_model::link::{RequestHeader, Token};

use super::bulk::BulkName;
use super::routes::OutgoingRing;
use crate::link::egress::Arrival;
use crate::link::peer::Peer;
use crate::transport::ring::Producer;
use efa_lock_free::record::{Answer, Record, RecordKind};

/// The request of a record without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    Request(Token),
    /// A datagram: it completed when it left.
    Datagram,
    /// A bulk request, or a part of one.
    Bulk(BulkName),
    /// Data for a read by the peer.
    ReadData(PullName),
    /// The outcome of a request of the peer.
    Outcome,
}

/// Names an RDMA read that this device serves through the rings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PullName(pub(crate) u64);

/// A ring to a peer.
pub(super) struct OutRing {
    pub(super) producer: Producer<Pending>,
    pub(super) peer: Arc<Peer>,
    /// The target has reported that it cannot copy itself.
    pub(super) rings_only: bool,
    /// The ring is in the list of those that wait for answers.
    pub(super) listed: bool,
    /// Whether an answer arrived since the last check whether the peer is alive.
    pub(super) progressed: bool,
    /// Requests whose outcomes arrive in separate records.
    pub(super) deferred: usize,
}

impl OutgoingRing for OutRing {
    type Token = Pending;

    fn new(producer: Producer<Pending>, peer: Arc<Peer>) -> OutRing {
        OutRing {
            producer,
            peer,
            rings_only: false,
            listed: false,
            progressed: false,
            deferred: 0,
        }
    }
}

/// The reason why data for a peer's read could not be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PushError {
    /// Later.
    Full,
    /// Never.
    Gone,
}

/// A record that brings a request of this device, as the network model lets it pass.
pub(super) fn request_record(
    kind: RecordKind,
    header: &RequestHeader,
    payload: u32,
    arrival: Arrival,
) -> Record {
    let record = Record::whole(kind, header, payload)
        .on_path(arrival.path)
        .due_at(arrival.due);
    match arrival.is_rnr {
        true => record.with_rnr(),
        false => record,
    }
}

#[inline]
pub(super) fn list(waiting: &mut Vec<usize>, ring: &mut OutRing, index: usize) {
    if !ring.listed {
        ring.listed = true;
        ring.progressed = true;
        waiting.push(index);
    }
}

/// The device's status for an answer to a record that carries a whole request, or data for a read.
pub(super) fn status_of(answer: Answer) -> Status {
    match answer {
        Answer::Status(status) => status,
        // These answers are not valid here.
        Answer::UseRings | Answer::Withdrawn | Answer::Deferred | Answer::Acknowledged => {
            Status::RemoteBadStatus
        }
    }
}
