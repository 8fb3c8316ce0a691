//! Operations in which this endpoint is the source of the data: sends, and writes; also the
//! responder's side of emulated reads.

use crate::nic::{Nic, Region};
use crate::wire::RecvId;

use super::Endpoint;
use super::completion::{CompletionEntry, CompletionFlags, ErrorEntry};
use super::error::Failure;
use super::ids::{OutboundId, PeerId};
use super::iov::Iov;
use super::transmit::Work;

/// One operation.
pub(super) struct Outbound {
    pub(super) peer: PeerId,
    /// What to tell the application in the end; `None` for what it does not see.
    pub(super) report: Option<Report>,
    /// The data.
    pub(super) source: Iov,
    /// Length of all of it in bytes.
    pub(super) length: u64,
    /// Bytes that packets carry; the rest is read or written by RDMA.
    pub(super) by_packets: u64,
    /// Bytes that are in packets already; they are the first ones.
    pub(super) sent: u64,
    /// Bytes that may be in packets by now.
    pub(super) allowed: u64,
    /// What the packets behind the first look like.
    pub(super) stream: Stream,
    /// What the peer still has to say before the operation is done.
    pub(super) awaited: Awaited,
    /// Packets and RDMA requests that the device has.
    pub(super) outstanding: u32,
    /// In the queue of work.
    pub(super) queued: bool,
    pub(super) failure: Option<Failure>,
    /// A registration made for the operation.
    pub(super) own_region: Option<Region>,
}

/// How the application wants to hear of the end of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Report {
    pub(super) context: u64,
    pub(super) flags: CompletionFlags,
    /// Success is reported, not only failure.
    pub(super) success: bool,
}

/// What the packets behind the first of an operation look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    /// There are none.
    None,
    /// MEDIUM segments.
    Medium(super::medium::Segments),
    /// CTSDATA for the peer's operation; `None` before the first CTS.
    CtsData(Option<RecvId>),
}

/// A packet of the peer that ends an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Awaited {
    Nothing,
    /// RECEIPT: the data is where the application wants it.
    Receipt,
}

impl Outbound {
    /// An operation of one packet that carries all the data.
    pub(super) fn single_packet(peer: PeerId, report: Report, source: Iov, length: u64) -> Self {
        Outbound {
            peer,
            report: Some(report),
            source,
            length,
            by_packets: length,
            sent: length,
            allowed: length,
            stream: Stream::None,
            awaited: Awaited::Nothing,
            outstanding: 0,
            queued: false,
            failure: None,
            own_region: None,
        }
    }

    /// Whether there are packets to send now.
    pub(super) fn has_packets_to_send(&self) -> bool {
        self.failure.is_none() && self.sent < self.allowed
    }

    fn is_finished(&self) -> bool {
        // User memory belongs to the application again only when the device is done with it.
        self.outstanding == 0
            && (self.failure.is_some()
                || self.sent == self.by_packets && self.awaited == Awaited::Nothing)
    }
}

impl<N: Nic> Endpoint<N> {
    /// Ends an operation if everything about it has happened.
    #[inline]
    pub(super) fn finish_outbound(&mut self, id: OutboundId) {
        if !self.outbound.get(id).is_some_and(Outbound::is_finished) {
            return;
        }
        let Some(outbound) = self.outbound.remove(id) else {
            return;
        };
        if let Some(region) = outbound.own_region {
            self.deregister_own(region);
        }
        let Some(report) = outbound.report else {
            return;
        };
        match outbound.failure {
            Some(failure) => self.report_error(ErrorEntry {
                context: report.context,
                flags: report.flags,
                length: 0,
                overflow_length: 0,
                data: 0,
                tag: 0,
                source: Some(outbound.peer),
                failure,
            }),
            None if report.success => self.report(CompletionEntry {
                context: report.context,
                flags: report.flags,
                length: outbound.length,
                data: 0,
                tag: 0,
                source: None,
            }),
            None => {}
        }
    }

    /// Notes that an operation failed; it ends when the device is done with its memory.
    pub(super) fn fail_outbound(&mut self, id: OutboundId, failure: Failure) {
        if let Some(outbound) = self.outbound.get_mut(id) {
            outbound.failure.get_or_insert(failure);
            self.finish_outbound(id);
        }
    }

    /// Queues an operation that has packets to send.
    pub(super) fn queue_outbound(&mut self, id: OutboundId) {
        if let Some(outbound) = self.outbound.get_mut(id)
            && !outbound.queued
            && outbound.has_packets_to_send()
        {
            outbound.queued = true;
            self.ready.push_back(Work::Outbound(id));
        }
    }
}
