//! Posting packets and RDMA requests, and their state until they end.

use crate::endpoint::api::error::EndpointError;
use crate::endpoint::base::ids::{PacketId, PeerId};
use crate::nic::{Destination, Domain, Nic};
use crate::wire::{MsgId, PacketType, Repr};

use super::Posting;
use super::in_flight::{
    CompletedRequest, Headerless, InFlight, OnePacket, Outgoing, PacketOwner, PostedRequest,
    hand_over,
};

impl<N: Nic> Posting<N> {
    /// Acquires a packet buffer and writes a header into it.
    ///
    /// # Errors
    /// [`EndpointError::TryAgain`] if no buffer is free; [`EndpointError::OutOfRange`] if the
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

    /// Acquires a packet buffer for a packet without a header.
    ///
    /// # Errors
    /// [`EndpointError::TryAgain`] if no buffer is free.
    pub(crate) fn start_headerless(
        &mut self,
        headerless: Headerless,
    ) -> Result<Outgoing, EndpointError> {
        let buffer = self.nic.acquire_buffer().ok_or(EndpointError::TryAgain)?;
        Ok(Outgoing {
            // The packet has no type on the wire. This type represents it.
            packet_type: PacketType::EagerMsgRtm,
            buffer,
            in_buffer: 0,
            gathered: None,
            headerless: Some(headerless),
            sequenced: None,
        })
    }

    /// Appends bytes of the engine to a packet.
    pub(crate) fn attach_bytes(&mut self, packet: &mut Outgoing, bytes: &[u8]) {
        let start = packet.in_buffer;
        packet.in_buffer += bytes.len();
        self.nic.buffer_mut(packet.buffer)[start..packet.in_buffer].copy_from_slice(bytes);
    }

    /// Posts a packet or an RDMA request. On an error a packet's buffer is released.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        peer: PeerId,
        destination: Destination,
        owner: PacketOwner,
        request: PostedRequest,
    ) -> Result<(), EndpointError> {
        let error = match self.in_flight.vacant() {
            None => EndpointError::TryAgain,
            Some(place) => {
                let id = place.id;
                match hand_over(&mut self.nic, destination, &request, id, self.doorbell) {
                    Err(error) => error,
                    Ok(()) => {
                        place.fill(InFlight {
                            peer,
                            owner,
                            request,
                            rnr_count: 0,
                            retries: 0,
                        });
                        return Ok(());
                    }
                }
            }
        };
        if let PostedRequest::Packet(packet) = &request {
            self.give_up(packet);
        }
        Err(error)
    }

    /// Releases the buffer of a packet that was not posted.
    pub(crate) fn give_up(&mut self, packet: &Outgoing) {
        self.nic.release_buffer(packet.buffer);
    }

    /// The destination of a packet or RDMA request.
    pub(crate) fn peer(&self, id: PacketId) -> Option<PeerId> {
        self.in_flight.get(id).map(|in_flight| in_flight.peer)
    }

    /// Removes a request that is complete or given up. The caller passes its buffer, if it has one,
    /// to [`Posting::recycle`].
    #[inline(never)]
    pub(crate) fn take(&mut self, id: PacketId) -> Option<CompletedRequest> {
        self.in_flight.end(id, |packet| Some(packet.finished()))
    }

    /// Ends a packet that is the whole operation and is still in its buffer, which is recycled.
    /// `end` gets references to the peer, the operation and the id of the message. Returns the
    /// peer, or `None` for any other id.
    #[inline(always)]
    pub(crate) fn end_one_packet(
        &mut self,
        id: PacketId,
        end: impl FnOnce(PeerId, &OnePacket, Option<MsgId>),
    ) -> Option<PeerId> {
        let (peer, buffer) = self.in_flight.end(id, |in_flight| {
            match (&in_flight.owner, &in_flight.request) {
                (PacketOwner::OnePacket(operation), PostedRequest::Packet(packet)) => {
                    end(in_flight.peer, operation, packet.sequenced);
                    Some((in_flight.peer, packet.buffer))
                }
                _ => None,
            }
        })?;
        self.recycle(buffer);
        Some(peer)
    }

    /// The number of requests that the device has, or that wait to be posted again.
    pub(crate) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// The number of operations of one packet.
    pub(crate) fn one_packet_operations(&self) -> usize {
        let is_whole = |in_flight: &InFlight| matches!(in_flight.owner, PacketOwner::OnePacket(_));
        let in_flight = self.in_flight.iter();
        in_flight.filter(|(_, packet)| is_whole(packet)).count()
    }
}
