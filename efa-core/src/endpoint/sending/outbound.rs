//! Operations in which this endpoint is the source of the data: sends, and writes; also the
//! responder's side of emulated reads.

use crate::nic::{Nic, Region};

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::reports::Report;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{OutboundId, PeerId};
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::posting::Work;
use crate::endpoint::sending::stream::Stream;

/// One operation.
pub(crate) struct Outbound {
    pub(crate) peer: PeerId,
    /// What to tell the application in the end; `None` for what it does not see.
    pub(crate) report: Option<Report>,
    /// Length of the data in bytes.
    pub(crate) length: u64,
    /// What the peer still has to say before the operation is done.
    pub(crate) awaited: Awaited,
    /// Packets and RDMA requests that the device has.
    pub(crate) outstanding: u32,
    pub(crate) failure: Option<Failure>,
    /// The part of an operation that does not end with its first packet, in [`Endpoint::bulks`].
    pub(crate) bulk: Option<BulkKey>,
}

/// Names a [`Bulk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BulkKey(pub(crate) u32);

/// The data of an operation that takes more than one packet.
pub(crate) struct Bulk {
    pub(crate) source: Iov,
    /// Bytes that this side moves, in packets or by RDMA writes; the rest is read by the peer.
    pub(crate) to_move: u64,
    /// Bytes moved so far; they are the first ones.
    pub(crate) moved: u64,
    /// Bytes that may be moved by now.
    pub(crate) allowed: u64,
    /// What the next packet looks like.
    pub(crate) stream: Stream,
    /// What its packets belong to.
    pub(crate) protocol: Protocol,
    /// In the queue of work.
    pub(crate) queued: bool,
    /// Registrations made for the operation.
    pub(crate) own_regions: Option<Box<[Region]>>,
    /// It counts as a read-based message to the peer, with this many bytes in packets.
    pub(crate) runt: Option<u64>,
}

/// A packet of the peer that ends an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    Nothing,
    /// RECEIPT: the data is where the application wants it.
    Receipt,
    /// EOR: the peer has read the data.
    Eor,
}

impl Awaited {
    /// What ends an operation whose data travels in packets.
    pub(crate) fn for_packets(delivery_complete: bool) -> Self {
        if delivery_complete {
            Awaited::Receipt
        } else {
            Awaited::Nothing
        }
    }
}

impl Bulk {
    /// Data that all moves in one go, without being granted.
    pub(crate) fn new(source: Iov, length: u64, stream: Stream) -> Self {
        Bulk {
            source,
            to_move: length,
            moved: 0,
            allowed: length,
            protocol: stream.protocol(),
            stream,
            queued: false,
            own_regions: None,
            runt: None,
        }
    }

    /// Whether there is something to post now.
    pub(crate) fn has_work(&self) -> bool {
        self.moved < self.allowed || self.stream.is_request()
    }

    fn is_moved(&self) -> bool {
        self.moved == self.to_move && !self.stream.is_request()
    }
}

impl<N: Nic> Endpoint<N> {
    /// Makes an operation with the rest of its data.
    ///
    /// # Errors
    /// [`EndpointError::TryAgain`] if there are too many operations of the application.
    pub(crate) fn new_bulk(
        &mut self,
        peer: PeerId,
        report: Option<Report>,
        length: u64,
        awaited: Awaited,
        bulk: Bulk,
    ) -> Result<OutboundId, EndpointError> {
        // Reads of peers have room of their own.
        if report.is_none() {
            self.outbound.widen();
        } else if self.outbound.is_full() {
            self.deregister_own(bulk.own_regions);
            return Err(EndpointError::TryAgain);
        }
        let key = BulkKey(self.bulks.insert(bulk) as u32);
        let outbound = Outbound {
            peer,
            report,
            length,
            awaited,
            outstanding: 0,
            failure: None,
            bulk: Some(key),
        };
        self.outbound
            .insert(outbound)
            .map_err(|_| EndpointError::TryAgain)
    }

    /// Undoes [`Endpoint::new_bulk`] for an operation that could not be started.
    pub(crate) fn discard_outbound(&mut self, id: OutboundId) {
        if let Some(outbound) = self.outbound.remove(id) {
            self.drop_bulk(outbound.peer, outbound.bulk);
        }
    }

    /// The data of an operation that takes more than one packet.
    pub(crate) fn bulk_mut(&mut self, id: OutboundId) -> Option<&mut Bulk> {
        let BulkKey(key) = self.outbound.get(id)?.bulk?;
        self.bulks.get_mut(key as usize)
    }

    #[inline]
    fn drop_bulk(&mut self, peer: PeerId, bulk: Option<BulkKey>) {
        let Some(BulkKey(key)) = bulk else {
            return;
        };
        let bulk = self.bulks.remove(key as usize);
        self.deregister_own(bulk.own_regions);
        if let Some(runt) = bulk.runt
            && let Some(state) = self.peers.state_mut(peer)
        {
            state.read_based.end(runt);
        }
    }

    /// Ends an operation if everything about it has happened.
    #[inline]
    pub(crate) fn finish_outbound(&mut self, id: OutboundId) {
        let Some(outbound) = self.outbound.get(id) else {
            return;
        };
        // User memory belongs to the application again only when the device is done with it.
        if outbound.outstanding > 0 {
            return;
        }
        if outbound.failure.is_none() {
            let moved = match outbound.bulk {
                None => true,
                Some(BulkKey(key)) => self.bulks[key as usize].is_moved(),
            };
            if !moved || outbound.awaited != Awaited::Nothing {
                return;
            }
        }
        let Outbound {
            peer,
            report,
            length,
            failure,
            bulk,
            ..
        } = *outbound;
        self.outbound.remove(id);
        self.drop_bulk(peer, bulk);
        let Some(report) = report else {
            self.outbound.narrow();
            self.end_operation(peer);
            return self.end_request(peer);
        };
        self.reports.sent(peer, &report, length, failure);
    }

    /// Notes that an operation failed; it ends when the device is done with its memory.
    pub(crate) fn fail_outbound(&mut self, id: OutboundId, failure: Failure) {
        if let Some(outbound) = self.outbound.get_mut(id) {
            outbound.failure.get_or_insert(failure);
            self.finish_outbound(id);
        }
    }

    /// Queues an operation that has something to post.
    pub(crate) fn queue_outbound(&mut self, id: OutboundId) {
        let failed = self
            .outbound
            .get(id)
            .is_none_or(|outbound| outbound.failure.is_some());
        if let Some(bulk) = self.bulk_mut(id)
            && !failed
            && !bulk.queued
            && bulk.has_work()
        {
            bulk.queued = true;
            self.posting.queue(Work::Outbound(id));
        }
    }
}
