//! Packets and RDMA requests on their way to the device and back. Only this part owns the device.
//!
//! [`Posting`] posts requests and remembers them until their completion, keeps the receive queue
//! full, and holds received packets that wait, and work that waits for room in the device or for
//! the end of a back-off. Its caller handles completions, and gets back what was posted.

mod backoff;
mod buffers;
mod held;
mod in_flight;
mod work;

use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::ids::{Arena, PacketId, PeerId};
use crate::endpoint::memory::iov::{Attached, attach};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::memory::rdma::RdmaPart;
use crate::nic::{
    BufferId, Completion, Destination, Domain, Doorbell, Nic, NicError, PolledNic, QueuePair,
};
use crate::wire::{MsgId, Packet, PacketType, Repr};

use backoff::{Backoffs, Refused};
use buffers::ReceiveBuffers;
use held::Held;
use in_flight::{InFlight, PostedRequest};
use work::{Priority, WorkQueues};

pub(crate) use backoff::PeerBackoff;
pub(crate) use held::{HeldId, footprint};
pub(crate) use in_flight::{Finished, Headerless, OnePacket, Outgoing, Owner, Rdma, What};
pub(crate) use work::{Abandoned, QUANTUM, Work};

/// How often a packet that the peer's device refuses is posted again.
const MAX_REPEATS: u8 = 3;

/// The device, requests in flight, pending work, and packet buffers.
pub(crate) struct Posting<N> {
    nic: N,
    in_flight: Arena<InFlight, PacketId>,
    work: WorkQueues,
    backoffs: Backoffs,
    /// The number of pieces of work that wait for the end of a back-off, for all peers; the number
    /// of packet buffers that they hold, and its limit.
    parked: usize,
    parked_buffers: usize,
    max_parked_buffers: usize,
    receives: ReceiveBuffers,
    /// Received packets that wait.
    held: Held,
    /// Whether the device is told of each request at once.
    doorbell: Doorbell,
    /// There may be requests that the device was not told of.
    is_deferring: bool,
}

impl<N: Nic> Posting<N> {
    /// Takes over the device, and takes buffers for its receive queue.
    pub(crate) fn new(mut nic: N, config: &EndpointConfig, wanted_receives: usize) -> Self {
        let mut receives = ReceiveBuffers::new(wanted_receives);
        for _ in 0..wanted_receives {
            if let Some(buffer) = nic.acquire_buffer() {
                receives.push(buffer);
            }
        }
        Posting {
            max_parked_buffers: nic.queue_pair().attributes().send_queue_depth / 4,
            nic,
            in_flight: Arena::new(usize::MAX),
            work: WorkQueues::default(),
            backoffs: Backoffs::new(config),
            parked: 0,
            parked_buffers: 0,
            receives,
            // A quarter of the receive queue may wait in buffers, so that new packets still arrive.
            held: Held::new(wanted_receives / 4, config.held_bytes),
            doorbell: Doorbell::Ring,
            is_deferring: false,
        }
    }

    /// Defers requests: the device is not told of them until [`Posting::end_batch`] or
    /// [`Posting::flush`].
    #[cold]
    pub(crate) fn begin_batch(&mut self) {
        self.doorbell = Doorbell::Defer;
        self.is_deferring = true;
    }

    /// Returns whether there may be requests that the device was not told of.
    #[inline]
    pub(crate) fn is_deferring(&self) -> bool {
        self.is_deferring
    }

    /// Ends one operation of a batch. Unless `more` follow, the device is told of all requests,
    /// even if this operation posted nothing. Otherwise it is told with the next request.
    #[cold]
    pub(crate) fn end_batch(&mut self, more: bool) {
        match more {
            true => self.doorbell = Doorbell::Ring,
            false => self.flush(),
        }
    }

    /// Tells the device of all requests.
    #[cold]
    pub(crate) fn flush(&mut self) {
        self.doorbell = Doorbell::Ring;
        self.is_deferring = false;
        self.nic.flush();
    }

    /// Releases the buffers of packets that the device does not have. The others are released with
    /// the queue pair.
    pub(crate) fn release_buffers(&mut self) {
        while let Some(buffer) = self.receives.pop() {
            self.nic.release_buffer(buffer);
        }
        while let Some(work) = self.work.pop() {
            if let Work::Resend(id) = work
                && let Some(buffer) = self.in_flight.remove(id).and_then(|packet| packet.buffer())
            {
                self.nic.release_buffer(buffer);
            }
        }
        for buffer in self.held.buffers() {
            self.nic.release_buffer(buffer);
        }
    }

    /// The device.
    #[inline]
    pub(crate) fn nic(&self) -> &N {
        &self.nic
    }

    /// The device, for everything but posting, polling and packet buffers.
    #[inline]
    pub(crate) fn nic_mut(&mut self) -> &mut N {
        &mut self.nic
    }

    /// Returns the device.
    pub(crate) fn into_nic(self) -> N {
        self.nic
    }
}

impl<N: PolledNic> Posting<N> {
    /// Takes completions from the device.
    #[inline]
    pub(crate) fn poll(&mut self, completions: &mut Vec<Completion>, limit: usize) -> usize {
        self.nic.poll(completions, limit)
    }
}

// Packets and requests.
impl<N: Nic> Posting<N> {
    /// Takes a packet buffer and writes a header into it.
    ///
    /// # Errors
    /// [`EndpointError::TryAgain`] if there is no buffer; [`EndpointError::OutOfRange`] if the
    /// header does not fit.
    #[inline(always)]
    pub(crate) fn start_packet(&mut self, header: &impl Repr) -> Result<Outgoing, EndpointError> {
        let buffer = self.nic.acquire_buffer().ok_or(EndpointError::TryAgain)?;
        match header.emit(self.nic.buffer_mut(buffer)) {
            Ok(length) => Ok(Outgoing {
                packet_type: header.packet_type(),
                buffer,
                in_buffer: length,
                gathered: None,
                headerless: None,
                sequenced: None,
            }),
            Err(error) => {
                self.nic.release_buffer(buffer);
                Err(EndpointError::OutOfRange {
                    what: "header length",
                    value: error.needed as u64,
                    limit: error.available as u64,
                })
            }
        }
    }

    /// Takes a packet buffer for a packet without a header.
    ///
    /// # Errors
    /// [`EndpointError::TryAgain`] if there is no buffer.
    pub(crate) fn start_headerless(
        &mut self,
        headerless: Headerless,
    ) -> Result<Outgoing, EndpointError> {
        let buffer = self.nic.acquire_buffer().ok_or(EndpointError::TryAgain)?;
        Ok(Outgoing {
            // The packet has no type on the wire. This is the type that it stands for.
            packet_type: PacketType::EagerMsgRtm,
            buffer,
            in_buffer: 0,
            gathered: None,
            headerless: Some(headerless),
            sequenced: None,
        })
    }

    /// Appends `length` bytes of the pieces from `offset` on to a packet. Returns how many bytes
    /// were copied; the device gathers the others. On an error the packet's buffer is released.
    #[inline(always)]
    pub(crate) fn attach(
        &mut self,
        packet: &mut Outgoing,
        pieces: &[IoVec],
        offset: u64,
        length: usize,
        may_gather: bool,
    ) -> Result<usize, EndpointError> {
        let Outgoing {
            buffer, in_buffer, ..
        } = *packet;
        match attach(
            &mut self.nic,
            buffer,
            in_buffer,
            pieces,
            offset,
            length,
            may_gather,
        ) {
            Ok(Attached {
                in_buffer: end,
                gathered,
            }) => {
                packet.in_buffer = end;
                packet.gathered = gathered;
                Ok(end - in_buffer)
            }
            Err(error) => {
                self.nic.release_buffer(buffer);
                Err(error.into())
            }
        }
    }

    /// Appends bytes of the engine to a packet.
    pub(crate) fn attach_bytes(&mut self, packet: &mut Outgoing, bytes: &[u8]) {
        let start = packet.in_buffer;
        packet.in_buffer += bytes.len();
        self.nic.buffer_mut(packet.buffer)[start..packet.in_buffer].copy_from_slice(bytes);
    }

    /// Posts a packet. On an error its buffer is released.
    #[inline(always)]
    pub(crate) fn post_packet(
        &mut self,
        peer: PeerId,
        destination: Destination,
        owner: Owner,
        packet: Outgoing,
    ) -> Result<(), EndpointError> {
        self.post(peer, destination, owner, PostedRequest::Packet(packet))
            .inspect_err(|_| self.nic.release_buffer(packet.buffer))
    }

    /// Posts an RDMA request.
    pub(crate) fn post_rdma(
        &mut self,
        peer: PeerId,
        destination: Destination,
        owner: Owner,
        part: RdmaPart,
        rdma: Rdma,
    ) -> Result<(), EndpointError> {
        self.post(peer, destination, owner, PostedRequest::Rdma(part, rdma))
    }

    #[inline(always)]
    fn post(
        &mut self,
        peer: PeerId,
        destination: Destination,
        owner: Owner,
        request: PostedRequest,
    ) -> Result<(), EndpointError> {
        let id = self.in_flight.next_id().ok_or(EndpointError::TryAgain)?;
        in_flight::hand_over(&mut self.nic, destination, &request, id, self.doorbell)?;
        let stored = self.in_flight.insert(InFlight {
            peer,
            owner,
            request,
            refusals: 0,
            repeats: 0,
        });
        debug_assert!(stored.is_ok_and(|stored| stored == id));
        Ok(())
    }

    /// Posts the request `id` again.
    ///
    /// # Errors
    /// As for the first time. The request is still remembered then.
    pub(crate) fn post_again(
        &mut self,
        id: PacketId,
        destination: Destination,
    ) -> Result<(), EndpointError> {
        self.restore(id)?;
        match self.in_flight.get(id) {
            Some(known) => in_flight::hand_over(
                &mut self.nic,
                destination,
                &known.request,
                id,
                self.doorbell,
            ),
            None => Ok(()),
        }
    }

    /// Releases the buffer of a packet that was not posted.
    pub(crate) fn give_up(&mut self, packet: &Outgoing) {
        self.nic.release_buffer(packet.buffer);
    }

    /// To whom a packet or RDMA request goes.
    pub(crate) fn peer(&self, id: PacketId) -> Option<PeerId> {
        self.in_flight.get(id).map(|in_flight| in_flight.peer)
    }

    /// Forgets a request that is complete or given up. The caller passes its buffer, if it has one,
    /// to [`Posting::recycle`].
    #[inline(never)]
    pub(crate) fn take(&mut self, id: PacketId) -> Option<Finished> {
        self.in_flight.end(id, |packet| Some(packet.finished()))
    }

    /// As [`Posting::take`], for an operation of one packet that is in a buffer. Most requests are.
    #[inline(always)]
    pub(crate) fn take_whole(
        &mut self,
        id: PacketId,
    ) -> Option<(PeerId, OnePacket, BufferId, Option<MsgId>)> {
        self.in_flight.end(id, |in_flight| {
            match (&in_flight.owner, &in_flight.request) {
                (Owner::Whole(operation), PostedRequest::Packet(packet)) => {
                    Some((in_flight.peer, *operation, packet.buffer, packet.sequenced))
                }
                _ => None,
            }
        })
    }

    /// The number of requests that the device has, or that wait to be posted again.
    pub(crate) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// The number of operations of one packet.
    pub(crate) fn one_packet_operations(&self) -> usize {
        let is_whole = |in_flight: &InFlight| matches!(in_flight.owner, Owner::Whole(_));
        let in_flight = self.in_flight.iter();
        in_flight.filter(|(_, packet)| is_whole(packet)).count()
    }

    /// Moves a packet that waits for its peer out of its buffer, so that a peer that is not ready
    /// does not hold the buffers of all others. Returns the buffer.
    fn store(&mut self, id: PacketId) -> Option<BufferId> {
        let InFlight { request, .. } = self.in_flight.get_mut(id)?;
        let PostedRequest::Packet(packet) = *request else {
            return None;
        };
        let bytes = self.nic.buffer(packet.buffer)[..packet.in_buffer].into();
        *request = PostedRequest::Stored(Box::new(in_flight::Stored { packet, bytes }));
        Some(packet.buffer)
    }

    /// Moves a packet back into a buffer, if it is not in one.
    fn restore(&mut self, id: PacketId) -> Result<(), EndpointError> {
        if let Some(InFlight { request, .. }) = self.in_flight.get_mut(id)
            && let PostedRequest::Stored(stored) = request
        {
            let buffer = self.nic.acquire_buffer().ok_or(EndpointError::TryAgain)?;
            self.nic.buffer_mut(buffer)[..stored.bytes.len()].copy_from_slice(&stored.bytes);
            *request = PostedRequest::Packet(Outgoing {
                buffer,
                ..stored.packet
            });
        }
        Ok(())
    }
}

// Work that waits.
impl<N: Nic> Posting<N> {
    /// Queues work, to be done as soon as there is room.
    pub(crate) fn queue(&mut self, work: Work) {
        self.work.push(self.priority(work), work);
    }

    /// Puts work back for which the device had no room.
    pub(crate) fn put_back(&mut self, work: Work) {
        self.work.put_back(self.priority(work), work);
    }

    /// Takes the work to do next.
    #[inline]
    pub(crate) fn next_work(&mut self) -> Option<Work> {
        self.work.pop()
    }

    fn priority(&self, work: Work) -> Priority {
        match work {
            Work::Resend(id) => match self.in_flight.get(id) {
                Some(InFlight {
                    request: PostedRequest::Stored(_),
                    ..
                }) => Priority::Restock,
                _ => Priority::Resend,
            },
            Work::GiveUp => Priority::GiveUp,
            _ => Priority::Other,
        }
    }

    /// Returns whether there are requests in flight, or work that waits.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.len() > 0 || self.work.has_other() || self.parked > 0
    }

    /// Handles a packet for which the peer had no receive buffer: queues it, or makes it wait for
    /// the end of the peer's back-off.
    pub(crate) fn refused(&mut self, id: PacketId, backoff: &mut PeerBackoff, now: Instant) {
        let Some(packet) = self.in_flight.get_mut(id) else {
            return;
        };
        packet.refusals += 1;
        let Finished {
            peer,
            what,
            sequenced,
            ..
        } = packet.finished();
        let refusals = packet.refusals;
        let next = self.backoffs.refused(peer, backoff, refusals, now);
        tracing::debug!(
            %peer,
            packet_type = %what,
            msg_id = sequenced.map(|id| id.0),
            attempt = refusals,
            again_in = ?backoff.remaining(now),
            "RNR: the packet is posted again"
        );
        match next {
            Refused::Resend => self.work.push(Priority::Resend, Work::Resend(id)),
            Refused::Park => self.park(backoff, Work::Resend(id)),
        }
    }

    /// Queues a packet that was not delivered to be posted again, at most [`MAX_REPEATS`] times.
    /// Returns whether it was queued.
    pub(crate) fn repeat(&mut self, id: PacketId) -> bool {
        let Some(in_flight) = self.in_flight.get_mut(id) else {
            return false;
        };
        let is_packet = !matches!(in_flight.request, PostedRequest::Rdma(..));
        if !is_packet || in_flight.repeats >= MAX_REPEATS {
            return false;
        }
        in_flight.repeats += 1;
        tracing::debug!(
            peer = %in_flight.peer,
            packet_type = %in_flight.finished().what,
            attempt = in_flight.repeats,
            limit = MAX_REPEATS,
            "refused by the peer's device: the packet is posted again"
        );
        self.queue(Work::Resend(id));
        true
    }

    /// Makes work wait for the end of a peer's back-off.
    pub(crate) fn park(&mut self, backoff: &mut PeerBackoff, work: Work) {
        backoff.parked.push_back(work);
        self.parked += 1;
        if let Work::Resend(id) = work
            && self.is_in_buffer(id)
        {
            if self.parked_buffers < self.max_parked_buffers {
                self.parked_buffers += 1;
            } else if let Some(buffer) = self.store(id) {
                self.recycle(buffer);
            }
        }
    }

    /// Queues all work that waits for the end of a peer's back-off.
    fn unpark(&mut self, backoff: &mut PeerBackoff) {
        self.parked -= backoff.parked.len();
        while let Some(work) = backoff.parked.pop_front() {
            if let Work::Resend(id) = work {
                self.parked_buffers -= usize::from(self.is_in_buffer(id));
            }
            self.queue(work);
        }
    }

    fn is_in_buffer(&self, id: PacketId) -> bool {
        let in_flight = self.in_flight.get(id);
        in_flight.is_some_and(|in_flight| in_flight.buffer().is_some())
    }

    /// Returns whether any peer has refused packets since it last accepted one. Otherwise
    /// [`Posting::got_through`] has no effect.
    #[inline]
    pub(crate) fn any_refused(&self) -> bool {
        self.backoffs.any()
    }

    /// Notes that a peer accepted a packet.
    pub(crate) fn got_through(&mut self, backoff: &mut PeerBackoff) {
        self.backoffs.got_through(backoff);
    }

    /// Returns whether there is something to do before the next completion of the device.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.receives.has_some()
            || self.work.has_any()
            || self.backoffs.next_end().is_some_and(|end| end <= now)
    }

    /// When the next back-off ends.
    pub(crate) fn next_backoff_end(&self) -> Option<Instant> {
        self.backoffs.next_end()
    }

    /// Takes a peer whose back-off may be over, for [`Posting::end_backoff`], with the end of that
    /// back-off.
    #[inline]
    pub(crate) fn next_over(&mut self, now: Instant) -> Option<(Instant, PeerId)> {
        self.backoffs.next_over(now)
    }

    /// Ends a peer's back-off if it ends at `until`.
    pub(crate) fn end_backoff(&mut self, until: Instant, backoff: &mut PeerBackoff) {
        if backoff.end(until) {
            self.unpark(backoff);
        }
    }

    /// Forgets the back-off of a peer that is removed. Packets that wait for its end are queued,
    /// and will fail.
    pub(crate) fn forget_backoff(&mut self, backoff: &mut PeerBackoff) {
        self.backoffs.forget(backoff);
        self.unpark(backoff);
    }
}

// Packet buffers.
impl<N: Nic> Posting<N> {
    /// Returns a buffer to the receive queue if that lacks one, otherwise to the pool.
    #[inline(always)]
    pub(crate) fn recycle(&mut self, buffer: BufferId) {
        if self.receives.lacks(self.held.in_buffers()) {
            self.receives.push(buffer);
        } else {
            self.nic.release_buffer(buffer);
        }
    }

    /// Notes that the device returned a receive buffer.
    #[inline]
    pub(crate) fn receive_returned(&mut self) {
        self.receives.returned();
    }

    /// Releases a buffer that the device refused to receive into.
    pub(crate) fn retire(&mut self, buffer: BufferId) {
        self.receives.give_one_up();
        self.nic.release_buffer(buffer);
    }

    /// Posts receive buffers as far as there is room.
    ///
    /// # Errors
    /// The device refused a buffer, which is not used any more. Others may remain to be posted.
    pub(crate) fn post_receives(&mut self) -> Result<(), NicError> {
        let nic = &mut self.nic;
        match self.receives.post(|buffers| nic.post_recvs(buffers)) {
            Ok(()) | Err(NicError::QueueFull) => Ok(()),
            Err(error) => {
                if let Some(refused) = self.receives.pop() {
                    self.retire(refused);
                }
                Err(error)
            }
        }
    }
}

// Received packets.
impl<N: Nic> Posting<N> {
    /// Releases a packet that does not wait.
    #[inline(always)]
    pub(crate) fn release(&mut self, packet: ReceivedPacket) {
        if let Some(buffer) = self.held.release(packet) {
            self.recycle(buffer);
        }
    }

    /// Makes a packet wait in front of the chain `next`.
    ///
    /// # Errors
    /// Returns the packet if too many wait.
    pub(crate) fn hold(
        &mut self,
        packet: ReceivedPacket,
        next: Option<HeldId>,
    ) -> Result<HeldId, ReceivedPacket> {
        let contents = match packet.buffer() {
            Some(buffer) => self.nic.buffer(buffer),
            None => &[],
        };
        let (id, freed) = self.held.hold(packet, contents, next)?;
        if let Some(buffer) = freed {
            self.recycle(buffer);
        }
        Ok(id)
    }

    /// Links a packet that waits to the chain behind it.
    pub(crate) fn link_held(&mut self, id: HeldId, next: Option<HeldId>) {
        self.held.set_next(id, next);
    }

    /// Ends a packet's wait. Returns it, and the next one of its chain.
    pub(crate) fn take_held(&mut self, id: HeldId) -> Option<(ReceivedPacket, Option<HeldId>)> {
        self.held.take(id)
    }

    /// Returns whether a packet can wait without a device buffer that the receive queue needs.
    pub(crate) fn has_memory_for(&self, packet: &ReceivedPacket) -> bool {
        self.held.has_memory_for(packet)
    }

    /// The number of packets that wait.
    pub(crate) fn held_len(&self) -> usize {
        self.held.len()
    }

    /// Parses a packet that waited. It was parsed before.
    pub(crate) fn parse_again(&self, packet: &ReceivedPacket) -> Option<Packet> {
        Packet::parse(packet.bytes(&self.nic)).ok()
    }
}

#[cfg(test)]
mod tests;
