//! Retries of packets: after RNR (the peer had no receive buffer), immediately or after the peer's
//! back-off, and after other errors of the peer's device.

use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::ids::{PacketId, PeerId};
use crate::nic::{BufferId, Destination, Domain, Nic};

use super::Posting;
use super::backoff::{AfterRnr, PeerBackoff};
use super::in_flight::{
    CompletedRequest, CopiedPacket, InFlight, Outgoing, PostedRequest, hand_over,
};
use super::work::{Priority, Work};

/// The number of retries of a packet that the peer's device refuses.
pub(super) const MAX_RETRIES: u8 = 3;

impl<N: Nic> Posting<N> {
    /// Handles a packet for which the peer had no receive buffer: queues it, or makes it wait for
    /// the end of the peer's back-off.
    pub(crate) fn rnr(&mut self, id: PacketId, backoff: &mut PeerBackoff, now: Instant) {
        let Some(packet) = self.in_flight.get_mut(id) else {
            return;
        };
        packet.rnr_count += 1;
        let CompletedRequest {
            peer,
            what,
            sequenced,
            ..
        } = packet.finished();
        let rnr_count = packet.rnr_count;
        let next = self.backoffs.rnr(peer, backoff, rnr_count, now);
        tracing::debug!(
            %peer,
            packet_type = %what,
            msg_id = sequenced.map(|id| id.0),
            attempt = rnr_count,
            again_in = ?backoff.remaining(now),
            "RNR: the packet is posted again"
        );
        match next {
            AfterRnr::RetryNow => self.work.push(Priority::Retry, Work::Retry(id)),
            AfterRnr::RetryAfterBackoff => self.defer_work(backoff, Work::Retry(id)),
        }
    }

    /// Queues a packet that was not delivered to be posted again, at most [`MAX_RETRIES`] times.
    /// Returns whether it was queued.
    pub(crate) fn retry(&mut self, id: PacketId) -> bool {
        let Some(in_flight) = self.in_flight.get_mut(id) else {
            return false;
        };
        let is_packet = !matches!(in_flight.request, PostedRequest::Rdma(..));
        if !is_packet || in_flight.retries >= MAX_RETRIES {
            return false;
        }
        in_flight.retries += 1;
        tracing::debug!(
            peer = %in_flight.peer,
            packet_type = %in_flight.finished().what,
            attempt = in_flight.retries,
            limit = MAX_RETRIES,
            "refused by the peer's device: the packet is posted again"
        );
        self.queue(Work::Retry(id));
        true
    }

    /// Posts the request `id` again.
    ///
    /// # Errors
    /// As for the first time. The request is still remembered then.
    pub(crate) fn retry_post(
        &mut self,
        id: PacketId,
        destination: Destination,
    ) -> Result<(), EndpointError> {
        self.move_into_buffer(id)?;
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
    pub(crate) fn defer_work(&mut self, backoff: &mut PeerBackoff, work: Work) {
        backoff.deferred_work.push_back(work);
        self.deferred_work += 1;
        if let Work::Retry(id) = work
            && self.is_in_buffer(id)
        {
            if self.deferred_work_buffers < self.max_deferred_work_buffers {
                self.deferred_work_buffers += 1;
            } else if let Some(buffer) = self.move_out_of_buffer(id) {
                self.recycle(buffer);
            }
        }
    }

    /// Queues all work that waits for the end of a peer's back-off.
    fn release_deferred_work(&mut self, backoff: &mut PeerBackoff) {
        self.deferred_work -= backoff.deferred_work.len();
        while let Some(work) = backoff.deferred_work.pop_front() {
            if let Work::Retry(id) = work {
                self.deferred_work_buffers -= usize::from(self.is_in_buffer(id));
            }
            self.queue(work);
        }
    }

    fn is_in_buffer(&self, id: PacketId) -> bool {
        let in_flight = self.in_flight.get(id);
        in_flight.is_some_and(|in_flight| in_flight.buffer().is_some())
    }

    /// Moves a packet that waits for its peer out of its buffer, so that a peer that is not ready
    /// does not use up the buffers of all others. Returns the buffer.
    fn move_out_of_buffer(&mut self, id: PacketId) -> Option<BufferId> {
        let InFlight { request, .. } = self.in_flight.get_mut(id)?;
        let PostedRequest::Packet(packet) = *request else {
            return None;
        };
        let bytes = self.nic.buffer(packet.buffer)[..packet.in_buffer].into();
        *request = PostedRequest::Copied(Box::new(CopiedPacket { packet, bytes }));
        Some(packet.buffer)
    }

    /// Moves a packet back into a buffer, if it is not in one.
    fn move_into_buffer(&mut self, id: PacketId) -> Result<(), EndpointError> {
        if let Some(InFlight { request, .. }) = self.in_flight.get_mut(id)
            && let PostedRequest::Copied(stored) = request
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

    /// Returns whether any peer has answered RNR since it last accepted a packet. Otherwise
    /// [`Posting::got_through`] has no effect.
    #[inline]
    pub(crate) fn any_rnr(&self) -> bool {
        self.backoffs.any()
    }

    /// Records that a peer accepted a packet.
    pub(crate) fn got_through(&mut self, backoff: &mut PeerBackoff) {
        self.backoffs.got_through(backoff);
    }

    /// The time when the next back-off ends.
    pub(crate) fn next_backoff_end(&self) -> Option<Instant> {
        self.backoffs.next_end()
    }

    /// Removes and returns a peer whose back-off may be over, for [`Posting::end_backoff`], with
    /// the end of that back-off.
    #[inline]
    pub(crate) fn next_over(&mut self, now: Instant) -> Option<(Instant, PeerId)> {
        self.backoffs.next_over(now)
    }

    /// Ends a peer's back-off if it ends at `until`.
    pub(crate) fn end_backoff(&mut self, until: Instant, backoff: &mut PeerBackoff) {
        if backoff.end(until) {
            self.release_deferred_work(backoff);
        }
    }

    /// Forgets the back-off of a peer that is removed. Packets that wait for its end are queued,
    /// and will fail.
    pub(crate) fn forget_backoff(&mut self, backoff: &mut PeerBackoff) {
        self.backoffs.forget(backoff);
        self.release_deferred_work(backoff);
    }
}
