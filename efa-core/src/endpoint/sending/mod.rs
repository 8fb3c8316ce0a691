//! Operations that send data: the subprotocol of each, its next packet, and its end.
//!
//! [`Sending`] owns the operations in flight and decides. It posts nothing and copies nothing: its
//! caller posts what [`Sending::next`] returns, and reports to peers and the application.

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
use crate::endpoint::posting::Abandoned;
use crate::wire::{Connid, Cts, MsgId, PeerError};

use outbound::BulkKey;
use stream::Progress;

pub(crate) use outbound::{Awaited, Bulk, Outbound};
pub(crate) use read_based::ReadBased;
pub(crate) use sequence::{Loss, Sequence};
pub(crate) use stream::{
    HeaderSettings, MessageHead, NextPacket, Request, Stream, WriteHead, segment_size,
};

/// The operations in flight that send data.
pub(crate) struct Sending {
    operations: Arena<Outbound, OutboundId>,
    /// The operations by peer; each by its slot.
    by_peer: ByPeer,
    /// The state of operations that take more than one packet.
    bulks: Slab<Bulk>,
    headers: HeaderSettings,
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

/// The next packet or RDMA write of an operation.
#[expect(
    clippy::large_enum_variant,
    reason = "packets are the usual case, and it lives for one call"
)]
pub(crate) enum Next {
    /// A packet. Data of the operation's source follows its header.
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
    /// CTSDATA to this peer, whose handshake may have to arrive first.
    Data(PeerId),
}

/// Why a peer's packet has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// There is no such operation with the peer, or it does not wait for such a packet.
    NoOperation,
    /// The sizes contradict the operation.
    Sizes,
    /// The operation takes no window now, or none of this operation of the peer.
    Window,
}

impl Mistake {
    /// The error to report for a packet that names the operation `id`.
    pub(crate) fn error(self, id: u32) -> PacketError {
        match self {
            Mistake::NoOperation => PacketError::StaleOperation { id },
            Mistake::Sizes => PacketError::SizeMismatch,
            Mistake::Window => PacketError::UnexpectedWindow { id },
        }
    }
}

/// What has to be done for an operation that ended.
pub(crate) struct Ended {
    pub(crate) peer: PeerId,
    pub(crate) report: Option<Report>,
    /// Length of the data in bytes.
    pub(crate) length: u64,
    pub(crate) failure: Option<Failure>,
    /// The `msg_id` of a message or atomic that failed, and whether the peer may have some of it.
    pub(crate) lost: Option<(MsgId, Loss)>,
    /// What the peer waits for in vain, if that can be said.
    pub(crate) abandoned: Option<Abandoned>,
    pub(crate) leftovers: Leftovers,
}

/// Resources of an operation that have to be released.
#[derive(Default)]
pub(crate) struct Leftovers {
    /// Registrations that have to be ended.
    pub(crate) own_regions: OwnRegions,
    /// The runt in bytes that has to be ended in [`ReadBased`].
    pub(crate) runt: Option<u64>,
}

impl Sending {
    /// Makes room for `max_operations` operations of the application.
    pub(crate) fn new(max_operations: usize, headers: HeaderSettings) -> Self {
        Sending {
            operations: Arena::new(max_operations),
            by_peer: ByPeer::default(),
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

// Posting.
impl Sending {
    /// Notes that an operation may have something to post. Returns whether it has to be queued.
    #[must_use]
    pub(crate) fn enqueue(&mut self, id: OutboundId) -> bool {
        let Some((operation, bulk)) = self.with_bulk(id) else {
            return false;
        };
        let due = operation.failure.is_none() && !bulk.queued && bulk.has_work();
        bulk.queued |= due;
        due
    }

    /// Notes that an operation is no longer queued.
    pub(crate) fn dequeue(&mut self, id: OutboundId) {
        if let Some((_, bulk)) = self.with_bulk(id) {
            bulk.queued = false;
        }
    }

    /// Whether a queued operation has something to post. If not, it is no longer queued.
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

    /// The next packet or RDMA write of an operation. RDMA writes have at most `rdma_limit` bytes.
    /// `connid` is our connection id; `data_connid` is that for CTSDATA, `None` if the peer does
    /// not want one.
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
            .next_packet(id, progress, self.headers, connid, data_connid)?;
        next.sequenced = operation.msg_id.filter(|_| !operation.request_posted);
        Some(Next::Packet(next))
    }

    /// The source of an operation, the offset of the next packet's data in it, and the protocol to
    /// count it under.
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

    /// Notes that a packet or RDMA write of an operation was lost. The operation fails.
    pub(crate) fn lost(&mut self, id: OutboundId, failure: Failure, loss: Loss) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.outstanding -= 1;
            if loss == Loss::Unknown {
                operation.reached = loss;
            }
        }
        self.fail(id, failure);
    }

    /// Returns whether an operation is a peer's read of our memory.
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

    /// Notes that an operation failed. It ends when the device no longer uses its memory.
    pub(crate) fn fail(&mut self, id: OutboundId, failure: Failure) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.failure.get_or_insert(failure);
        }
    }

    /// Removes an operation if it has ended.
    #[inline]
    pub(crate) fn take_ended(&mut self, id: OutboundId) -> Option<Ended> {
        let operation = self.operations.get(id)?;
        // The device still uses the memory.
        if operation.outstanding > 0 {
            return None;
        }
        if operation.failure.is_none() {
            let moved = self.bulk_of(operation).is_none_or(Bulk::is_moved);
            if !moved || operation.awaited != Awaited::Nothing {
                return None;
            }
        }
        // A peer that has given up the operation waits for nothing.
        let is_lost = operation.failure.is_some() && !operation.peer_aborted;
        let abandoned = match is_lost {
            true => operation.abandoned(self.bulk_of(operation)),
            false => None,
        };
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
            lost: msg_id.filter(|_| is_lost).map(|id| (id, reached)),
            abandoned,
            leftovers: self.take_leftovers(bulk),
        })
    }

    /// Takes a CTS, which grants a window.
    ///
    /// # Errors
    /// The packet has no effect.
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
        // All windows of an operation are opened by one operation of the peer. Another one has
        // begun with a second copy of the request, and the data must not be divided between the two.
        let is_others =
            matches!(bulk.stream, Stream::CtsData(Some(recv_id)) if recv_id != cts.recv_id);
        // The peer opens a window when all data of the last one has arrived. What comes before is a
        // second copy.
        let is_early = bulk.moved < bulk.allowed;
        if is_others || is_early {
            return Err(Mistake::Window);
        }
        if cts.recv_length == 0 || cts.recv_length > bulk.to_move - bulk.allowed {
            return Err(Mistake::Sizes);
        }
        bulk.stream = Stream::CtsData(Some(cts.recv_id));
        bulk.allowed += cts.recv_length;
        Ok(())
    }

    /// Takes the packet for which an operation waits.
    ///
    /// # Errors
    /// The packet has no effect.
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

    /// Takes a READ_NACK: the peer cannot read the data of an operation, and gets the rest in
    /// packets. A message goes on behind its runt, under the same `msg_id`; a write starts again.
    /// Returns the runt in bytes, which has to be ended in [`ReadBased`].
    ///
    /// # Errors
    /// The packet has no effect.
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
            // Not all of the runt was sent, so the peer cannot know yet that it cannot read the
            // rest.
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

    /// Takes a PEER_ERROR: the receiver of a message has given it up, and the message fails here,
    /// too, if it has not failed already. The operation that the packet names counts only if it is
    /// of that message.
    ///
    /// # Errors
    /// The packet has no effect.
    pub(crate) fn aborted(
        &mut self,
        peer: PeerId,
        error: &PeerError,
    ) -> Result<OutboundId, PacketError> {
        let named = (error.op_id != PeerError::NO_OP).then_some(error.op_id);
        let named = named.map(OutboundId::from_wire);
        let named = named.filter(|id| self.peer(*id) == Some(peer));
        let message = |id: &OutboundId| self.operations.get(*id).and_then(Outbound::message);
        let is_of_message = |id: &OutboundId| message(id) == Some(error.msg_id);
        let id = named.filter(is_of_message);
        let id = id.or_else(|| self.with_peer(peer).into_iter().find(is_of_message));
        let names_no_message = named.is_some_and(|id| message(&id).is_none());
        let Some((id, operation)) = id.and_then(|id| Some((id, self.operations.get_mut(id)?)))
        else {
            let id = error.op_id;
            return Err(match names_no_message {
                true => PacketError::NoMessage { id },
                false => PacketError::StaleOperation { id },
            });
        };
        operation.peer_aborted = true;
        let failure = Failure::of_peer(error.prov_errno);
        operation.failure.get_or_insert(failure);
        Ok(id)
    }

    /// Takes the registrations of all operations, when the endpoint is closed.
    pub(crate) fn take_registrations(&mut self) -> Vec<OwnRegions> {
        self.bulks.drain().map(|bulk| bulk.own_regions).collect()
    }
}

#[cfg(test)]
mod tests;
