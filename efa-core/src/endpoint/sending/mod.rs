//! Operations that send data: the subprotocol of each, its next packet, and its end.
//!
//! [`Sending`] owns the operations in flight and makes the decisions. It neither posts nor copies:
//! its caller posts the results of [`Sending::next`], and reports to peers and the application.

pub(crate) mod choice;
mod ending;
mod outbound;
mod packets;
mod read_based;
mod replies;
mod results;
mod sequence;
mod stream;

use slab::Slab;

use crate::endpoint::api::reports::Report;
use crate::endpoint::base::by_peer::{PeerLinks, PeerLists, PeerNodes};
use crate::endpoint::base::ids::{Arena, OutboundId, PeerId};
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::memory::registration::OwnRegions;

use outbound::BulkKey;

pub(crate) use outbound::{AwaitedPacket, Bulk, Outbound};
pub(crate) use read_based::ReadBased;
pub(crate) use results::{NextRequest, OperationResources, PendingPost};
pub(crate) use sequence::{Loss, Sequence};
pub(crate) use stream::{
    HeaderSettings, MessageHead, RequestHead, Stream, WriteHead, segment_size,
};

/// The operations in flight that send data.
pub(crate) struct Sending {
    operations: Arena<Outbound, OutboundId>,
    /// The operations by peer; each by its slot.
    by_peer: PeerLists,
    /// The state of operations that need more than one packet.
    bulks: Slab<Bulk>,
    headers: HeaderSettings,
}

impl PeerNodes for Arena<Outbound, OutboundId> {
    fn links(&self, slot: u32) -> &PeerLinks {
        &self[slot].links
    }

    fn links_mut(&mut self, slot: u32) -> &mut PeerLinks {
        &mut self[slot].links
    }
}

impl Sending {
    /// Makes room for `max_operations` operations of the application.
    pub(crate) fn new(max_operations: usize, headers: HeaderSettings) -> Self {
        Sending {
            operations: Arena::new(max_operations),
            by_peer: PeerLists::default(),
            bulks: Slab::new(),
            headers,
        }
    }

    /// The number of operations in flight, without those of [`Sending::reserve`].
    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// Returns whether there is no room for another operation of the application.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.operations.is_full()
    }

    /// Reserves room for an operation that is stored elsewhere.
    #[inline]
    pub(crate) fn reserve(&mut self) {
        self.operations.narrow();
    }

    /// Frees the room of [`Sending::reserve`].
    #[inline]
    pub(crate) fn free(&mut self) {
        self.operations.widen();
    }

    /// Adds an operation of one packet. `None` if there are too many.
    pub(crate) fn start(&mut self, operation: Outbound) -> Option<OutboundId> {
        self.insert(operation).ok()
    }

    fn insert(&mut self, operation: Outbound) -> Result<OutboundId, Outbound> {
        let peer = operation.peer;
        let id = self.operations.insert(operation)?;
        self.by_peer.push(&mut self.operations, peer, id.slot());
        Ok(id)
    }

    fn remove(&mut self, id: OutboundId) -> Option<Outbound> {
        let peer = self.peer(id)?;
        self.by_peer.remove(&mut self.operations, peer, id.slot());
        self.operations.remove(id)
    }

    /// Adds an operation of more than one packet. An operation without a report is a peer's, and
    /// always has room.
    ///
    /// # Errors
    /// There are too many operations of the application. Returns the registrations of `bulk`.
    pub(crate) fn start_bulk(
        &mut self,
        peer: PeerId,
        report: Option<Report>,
        length: u64,
        awaited: AwaitedPacket,
        bulk: Bulk,
    ) -> Result<OutboundId, OwnRegions> {
        if report.is_none() {
            self.operations.widen();
        } else if self.operations.is_full() {
            return Err(bulk.own_regions);
        }
        let msg_id = bulk.stream.msg_id();
        let key = BulkKey(self.bulks.insert(bulk) as u32);
        let operation = Outbound {
            msg_id,
            request_posted: false,
            reached: Loss::NotDelivered,
            peer_aborted: false,
            peer,
            report,
            length,
            awaited,
            outstanding: 0,
            failure: None,
            bulk: Some(key),
            links: PeerLinks::NONE,
        };
        self.insert(operation).map_err(|_| None)
    }

    /// Removes an operation that could not be started.
    pub(crate) fn discard(&mut self, id: OutboundId) -> Option<(PeerId, OperationResources)> {
        let operation = self.remove(id)?;
        Some((operation.peer, self.take_resources(operation.bulk)))
    }

    fn take_resources(&mut self, bulk: Option<BulkKey>) -> OperationResources {
        match bulk {
            None => OperationResources::default(),
            Some(BulkKey(key)) => {
                let Bulk {
                    own_regions, runt, ..
                } = self.bulks.remove(key as usize);
                OperationResources { own_regions, runt }
            }
        }
    }

    /// The peer of an operation.
    pub(crate) fn peer(&self, id: OutboundId) -> Option<PeerId> {
        self.operations.get(id).map(|operation| operation.peer)
    }

    /// The operations with a peer, in the order of their start.
    pub(crate) fn with_peer(&self, peer: PeerId) -> Vec<OutboundId> {
        let slots = self.by_peer.of(&self.operations, peer);
        let operations = slots
            .into_iter()
            .map(|slot| self.operations.at(slot as usize));
        operations.flatten().map(|(id, _)| id).collect()
    }

    /// Returns whether there is no operation with a peer.
    pub(crate) fn has_none_with(&self, peer: PeerId) -> bool {
        self.by_peer.is_empty(peer)
    }

    /// The reads of peers from data that `pick` accepts.
    pub(crate) fn peers_reads(&self, pick: impl Fn(&Iov) -> bool) -> Vec<OutboundId> {
        let operations = self.operations.iter();
        operations
            .filter(|(_, operation)| {
                operation.report.is_none()
                    && self
                        .bulk_of(operation)
                        .is_some_and(|bulk| pick(&bulk.source))
            })
            .map(|(id, _)| id)
            .collect()
    }

    fn bulk_of(&self, operation: &Outbound) -> Option<&Bulk> {
        let BulkKey(key) = operation.bulk?;
        self.bulks.get(key as usize)
    }

    fn with_bulk(&mut self, id: OutboundId) -> Option<(&mut Outbound, &mut Bulk)> {
        let operation = self.operations.get_mut(id)?;
        let BulkKey(key) = operation.bulk?;
        Some((operation, self.bulks.get_mut(key as usize)?))
    }
}

#[cfg(test)]
mod tests;
