//! Operations that send data: which subprotocol each uses, what its next packet is, and when it ends.
//!
//! [`Sending`] owns the operations in flight and decides; it posts nothing and copies nothing. Its
//! caller posts what [`Sending::next`] returns, and tells peers and the application.

pub(crate) mod choice;
mod outbound;
mod read_based;
mod sequence;
mod stream;

use slab::Slab;

use crate::endpoint::api::completion::PacketError;
use crate::endpoint::api::error::Failure;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::api::reports::Report;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::by_peer::{ByPeer, OfPeers, PeerLinks};
use crate::endpoint::base::ids::{Arena, OutboundId, PeerId};
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::memory::rdma::{RdmaPart, next_part};
use crate::endpoint::memory::registration::OwnRegions;
use crate::wire::{Connid, Cts, MsgId};

use outbound::BulkKey;
use stream::Progress;

pub(crate) use outbound::{Awaited, Bulk, Outbound};
pub(crate) use read_based::ReadBased;
pub(crate) use sequence::{Loss, Sequence};
pub(crate) use stream::{
    Limits, MessageHead, NextPacket, Request, Stream, WriteHead, segment_size,
};

/// The operations in flight that send data.
pub(crate) struct Sending {
    operations: Arena<Outbound, OutboundId>,
    /// The operations by their slots.
    by_peer: ByPeer,
    /// The rest of those that take more than one packet.
    bulks: Slab<Bulk>,
    limits: Limits,
}

impl OfPeers for Arena<Outbound, OutboundId> {
    fn links(&self, slot: u32) -> &PeerLinks {
        match self.at(slot as usize) {
            Some((_, operation)) => &operation.links,
            None => not_there(slot),
        }
    }

    fn links_mut(&mut self, slot: u32) -> &mut PeerLinks {
        match self.at_mut(slot as usize) {
            Some(operation) => &mut operation.links,
            None => not_there(slot),
        }
    }
}

#[cold]
fn not_there(slot: u32) -> ! {
    unreachable!("a peer has an operation in slot {slot} that does not exist")
}

/// What an operation posts next.
#[expect(
    clippy::large_enum_variant,
    reason = "packets are the usual case, and it lives for one call"
)]
pub(crate) enum Next {
    /// A packet; data of `source` follows its header.
    Packet(NextPacket),
    /// An RDMA write, with immediate data.
    Write(RdmaPart, Option<u32>),
    /// An RDMA write of memory that is not registered, which is an error.
    Unregistered,
}

/// Whether an operation has something to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// Nothing now.
    Nothing,
    /// A packet or RDMA write.
    Post,
    /// CTSDATA to this peer, of which something has to be known first.
    Data(PeerId),
}

/// Why a packet of a peer changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// There is no such operation with the peer, or it does not wait for such a packet.
    NoOperation,
    /// The sizes contradict the operation.
    Sizes,
}

impl Mistake {
    /// How a packet that names the operation `id` is reported.
    pub(crate) fn error(self, id: u32) -> PacketError {
        match self {
            Mistake::NoOperation => PacketError::StaleOperation { id },
            Mistake::Sizes => PacketError::SizeMismatch,
        }
    }
}

/// What is left to do for an operation that ended.
pub(crate) struct Ended {
    pub(crate) peer: PeerId,
    pub(crate) report: Option<Report>,
    /// Length of the data in bytes.
    pub(crate) length: u64,
    pub(crate) failure: Option<Failure>,
    /// The `msg_id` of a message or atomic that failed, and what the peer has of it.
    pub(crate) lost: Option<(MsgId, Loss)>,
    pub(crate) leftovers: Leftovers,
}

/// What an operation used beside its memory.
#[derive(Default)]
pub(crate) struct Leftovers {
    /// To be deregistered.
    pub(crate) own_regions: OwnRegions,
    /// To be ended in [`ReadBased`].
    pub(crate) runt: Option<u64>,
}

impl Sending {
    /// At most `max_operations` of the application.
    pub(crate) fn new(max_operations: usize, limits: Limits) -> Self {
        Sending {
            operations: Arena::new(max_operations),
            by_peer: ByPeer::default(),
            bulks: Slab::new(),
            limits,
        }
    }

    /// Operations in flight, without those of [`Sending::reserve`].
    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// Returns whether there is no room for another operation of the application.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.operations.is_full()
    }

    /// Takes the room of an operation that is kept elsewhere.
    #[inline]
    pub(crate) fn reserve(&mut self) {
        self.operations.narrow();
    }

    /// Gives back the room of [`Sending::reserve`].
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

    /// Adds an operation of more than one packet. One without a report is a peer's, and has room of
    /// its own.
    ///
    /// # Errors
    /// There are too many operations of the application; what it used comes back.
    pub(crate) fn start_bulk(
        &mut self,
        peer: PeerId,
        report: Option<Report>,
        length: u64,
        awaited: Awaited,
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

    /// Takes out an operation that could not be started.
    pub(crate) fn discard(&mut self, id: OutboundId) -> Option<(PeerId, Leftovers)> {
        let operation = self.remove(id)?;
        Some((operation.peer, self.take_leftovers(operation.bulk)))
    }

    fn take_leftovers(&mut self, bulk: Option<BulkKey>) -> Leftovers {
        match bulk {
            None => Leftovers::default(),
            Some(BulkKey(key)) => {
                let Bulk {
                    own_regions, runt, ..
                } = self.bulks.remove(key as usize);
                Leftovers { own_regions, runt }
            }
        }
    }

    /// The peer of an operation.
    pub(crate) fn peer(&self, id: OutboundId) -> Option<PeerId> {
        self.operations.get(id).map(|operation| operation.peer)
    }

    /// The operations with a peer, in the order in which they were started.
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

    /// The operations of peers whose data `pick` accepts.
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

// Posting.
impl Sending {
    /// Notes that an operation has something to post, if it has. Returns whether it has to be queued
    /// for that.
    #[must_use]
    pub(crate) fn enqueue(&mut self, id: OutboundId) -> bool {
        let Some((operation, bulk)) = self.with_bulk(id) else {
            return false;
        };
        let due = operation.failure.is_none() && !bulk.queued && bulk.has_work();
        bulk.queued |= due;
        due
    }

    /// Notes that an operation is not queued any more.
    pub(crate) fn dequeue(&mut self, id: OutboundId) {
        if let Some((_, bulk)) = self.with_bulk(id) {
            bulk.queued = false;
        }
    }

    /// Whether a queued operation has something to post. One that has nothing is not queued any more.
    pub(crate) fn due(&mut self, id: OutboundId) -> Due {
        let Some((operation, bulk)) = self.with_bulk(id) else {
            return Due::Nothing;
        };
        if operation.failure.is_some() || !bulk.has_work() {
            bulk.queued = false;
            return Due::Nothing;
        }
        match bulk.stream {
            Stream::CtsData(_) => Due::Data(operation.peer),
            _ => Due::Post,
        }
    }

    /// What an operation posts next, with RDMA writes of at most `rdma_limit` bytes. `connid` is ours;
    /// `data_connid` too, if the peer wants it in data.
    pub(crate) fn next(
        &self,
        id: OutboundId,
        rdma_limit: usize,
        connid: Connid,
        data_connid: Option<Connid>,
    ) -> Option<Next> {
        let operation = self.operations.get(id)?;
        let bulk = self.bulk_of(operation)?;
        if let Stream::RdmaWrite(target, immediate) = &bulk.stream {
            let (source, end) = (bulk.source.as_slice(), bulk.to_move);
            return Some(
                match next_part(source, target, bulk.moved, end, rdma_limit) {
                    Some(part) => Next::Write(part, *immediate),
                    None => Next::Unregistered,
                },
            );
        }
        let progress = Progress {
            length: operation.length,
            moved: bulk.moved,
            allowed: bulk.allowed - bulk.moved,
            to_move: bulk.to_move,
        };
        let mut next = bulk
            .stream
            .next_packet(id, progress, self.limits, connid, data_connid)?;
        next.sequenced = operation.msg_id.filter(|_| !operation.request_posted);
        Some(Next::Packet(next))
    }

    /// The data of an operation, where the next packet's begins, and what its packets belong to.
    pub(crate) fn data(&self, id: OutboundId) -> Option<(&[IoVec], u64, Protocol)> {
        let bulk = self.bulk_of(self.operations.get(id)?)?;
        Some((bulk.source.as_slice(), bulk.moved, bulk.protocol))
    }

    /// Notes that the packet of [`Sending::next`] was posted.
    pub(crate) fn packet_posted(&mut self, id: OutboundId, packet: &NextPacket) {
        if let Some((operation, bulk)) = self.with_bulk(id) {
            operation.outstanding += 1;
            operation.request_posted = true;
            bulk.moved += packet.size as u64;
            bulk.allowed = bulk.allowed.max(bulk.moved);
            bulk.stream = packet.then;
        }
    }

    /// Notes that the RDMA write of [`Sending::next`], of this many bytes, was posted.
    pub(crate) fn write_posted(&mut self, id: OutboundId, length: u64) {
        if let Some((operation, bulk)) = self.with_bulk(id) {
            operation.outstanding += 1;
            bulk.moved += length;
        }
    }
}

// What follows.
impl Sending {
    /// Notes that a packet or RDMA write of an operation arrived.
    #[inline]
    pub(crate) fn done(&mut self, id: OutboundId) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.outstanding -= 1;
            operation.reached = Loss::Unknown;
        }
    }

    /// Notes that a packet or RDMA write of an operation was lost, which fails.
    pub(crate) fn lost(&mut self, id: OutboundId, failure: Failure, loss: Loss) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.outstanding -= 1;
            if loss == Loss::Unknown {
                operation.reached = loss;
            }
        }
        self.fail(id, failure);
    }

    /// Returns whether an operation is a peer's: it reads memory of ours.
    pub(crate) fn is_peers_read(&self, id: OutboundId) -> bool {
        let operation = self.operations.get(id);
        operation.is_some_and(|operation| operation.report.is_none())
    }

    /// Returns whether an operation waits for a packet of its peer.
    pub(crate) fn waits(&self, id: OutboundId) -> bool {
        self.operations.get(id).is_some_and(|operation| {
            let bulk = self.bulk_of(operation);
            operation.awaited != Awaited::Nothing
                || bulk.is_some_and(|bulk| !bulk.is_moved() && !bulk.has_work())
        })
    }

    /// Notes that an operation failed; it ends when the device is done with its memory.
    pub(crate) fn fail(&mut self, id: OutboundId, failure: Failure) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.failure.get_or_insert(failure);
        }
    }

    /// Takes out an operation if everything about it has happened.
    #[inline]
    pub(crate) fn take_ended(&mut self, id: OutboundId) -> Option<Ended> {
        let operation = self.operations.get(id)?;
        // User memory belongs to the application again only when the device is done with it.
        if operation.outstanding > 0 {
            return None;
        }
        if operation.failure.is_none() {
            let moved = self.bulk_of(operation).is_none_or(Bulk::is_moved);
            if !moved || operation.awaited != Awaited::Nothing {
                return None;
            }
        }
        let Outbound {
            peer,
            report,
            length,
            failure,
            bulk,
            msg_id,
            reached,
            ..
        } = self.remove(id)?;
        if report.is_none() {
            self.operations.narrow();
        }
        Some(Ended {
            peer,
            report,
            length,
            failure,
            lost: msg_id.filter(|_| failure.is_some()).map(|id| (id, reached)),
            leftovers: self.take_leftovers(bulk),
        })
    }

    /// Takes a CTS: the peer opened a window.
    ///
    /// # Errors
    /// It changes nothing.
    pub(crate) fn granted(
        &mut self,
        peer: PeerId,
        id: OutboundId,
        cts: &Cts,
    ) -> Result<(), Mistake> {
        let bulk = match self.with_bulk(id) {
            Some((operation, bulk))
                if operation.peer == peer
                    && operation.failure.is_none()
                    && matches!(bulk.stream, Stream::CtsData(_)) =>
            {
                bulk
            }
            _ => return Err(Mistake::NoOperation),
        };
        if cts.recv_length == 0 || cts.recv_length > bulk.to_move - bulk.allowed {
            return Err(Mistake::Sizes);
        }
        bulk.stream = Stream::CtsData(Some(cts.recv_id));
        bulk.allowed += cts.recv_length;
        Ok(())
    }

    /// Takes the packet that an operation waits for.
    ///
    /// # Errors
    /// It changes nothing.
    pub(crate) fn acknowledged(
        &mut self,
        peer: PeerId,
        id: OutboundId,
        awaited: Awaited,
    ) -> Result<(), Mistake> {
        match self.operations.get_mut(id) {
            Some(operation) if operation.peer == peer && operation.awaited == awaited => {
                operation.awaited = Awaited::Nothing;
                Ok(())
            }
            _ => Err(Mistake::NoOperation),
        }
    }

    /// Takes a READ_NACK: the peer cannot read the data of an operation, and is sent what it lacks in
    /// packets. A message goes on behind its runt, under the same `msg_id`; a write starts afresh.
    /// Returns the runt, which is to be ended in [`ReadBased`].
    ///
    /// # Errors
    /// It changes nothing.
    pub(crate) fn nacked(&mut self, peer: PeerId, id: OutboundId) -> Result<Option<u64>, Mistake> {
        let (operation, bulk) = match self.with_bulk(id) {
            Some((operation, bulk))
                if operation.peer == peer && operation.awaited == Awaited::Eor =>
            {
                (operation, bulk)
            }
            _ => return Err(Mistake::NoOperation),
        };
        let Stream::Silent(Some(request)) = bulk.stream else {
            // It came before all of the runt was sent: the peer cannot know that it lacks the rest.
            return Err(Mistake::Sizes);
        };
        bulk.to_move = operation.length;
        let delivery_complete = match request {
            Request::Message(head) => {
                bulk.stream = Stream::NackAnswer(head);
                head.delivery_complete
            }
            Request::Write(head) => {
                bulk.moved = 0;
                bulk.stream = Stream::LongCts(request);
                head.delivery_complete
            }
        };
        bulk.allowed = bulk.moved;
        bulk.protocol = bulk.stream.protocol();
        operation.awaited = Awaited::for_packets(delivery_complete);
        Ok(bulk.runt.take())
    }

    /// Takes out the registrations of all operations, when the endpoint is closed.
    pub(crate) fn take_registrations(&mut self) -> Vec<OwnRegions> {
        self.bulks.drain().map(|bulk| bulk.own_regions).collect()
    }
}

#[cfg(test)]
mod tests;
