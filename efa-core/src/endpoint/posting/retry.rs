//! Packets that are posted again: after RNR (the peer had no receive buffer), at once or after the
//! back-off of the peer, and after another refusal of the peer's device.

use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::ids::{PacketId, PeerId};
use crate::nic::{BufferId, Destination, Domain, Nic};

use super::Posting;
use super::backoff::{PeerBackoff, Refused};
use super::in_flight::{Finished, InFlight, Outgoing, PostedRequest, Stored, hand_over};
use super::work::{Priority, Work};

/// How often a packet that the peer's device refuses is posted again.
pub(super) const MAX_REPEATS: u8 = 3;

impl<N: Nic> Posting<N> {
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
            Some(known) => hand_over(
                &mut self.nic,
                destination,
                &known.request,
                id,
                self.doorbell,
            ),
            None => Ok(()),
        }
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

    /// Moves a packet that waits for its peer out of its buffer, so that a peer that is not ready
    /// does not hold the buffers of all others. Returns the buffer.
    fn store(&mut self, id: PacketId) -> Option<BufferId> {
        let InFlight { request, .. } = self.in_flight.get_mut(id)?;
        let PostedRequest::Packet(packet) = *request else {
            return None;
        };
        let bytes = self.nic.buffer(packet.buffer)[..packet.in_buffer].into();
        *request = PostedRequest::Stored(Box::new(Stored { packet, bytes }));
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
