//! Posting packets to peers, and back-off.

use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::iov::attach;
use crate::endpoint::memory::rdma::RdmaPart;
use crate::endpoint::peers::handshake::{PeerFeatures, identity};
use crate::endpoint::posting::{Outgoing, PacketOwner, PostedRequest, Rdma, Work};
use crate::nic::{BufferId, Destination, Nic, Status};
use crate::wire::{PacketType, Repr, ReqOptions};

use super::Channel;

// Posting.
impl<N: Nic> Channel<N> {
    /// The destination of packets to a peer.
    #[inline]
    pub(crate) fn destination(&self, peer: PeerId) -> Result<Destination, EndpointError> {
        let destination = self.peers.addresses().destination(peer);
        destination.ok_or(EndpointError::UnknownPeer(peer))
    }

    /// Adds the bytes `from..from + length` of some memory to a packet, and counts those that are
    /// copied. On an error the packet's buffer is released.
    #[inline(always)]
    pub(crate) fn attach(
        &mut self,
        packet: &mut Outgoing,
        protocol: Protocol,
        memory: &[IoVec],
        (from, length): (u64, usize),
        may_gather: bool,
    ) -> Result<(), EndpointError> {
        let Outgoing {
            buffer, in_buffer, ..
        } = *packet;
        let nic = self.posting.nic_mut();
        match attach(nic, buffer, in_buffer, memory, from, length, may_gather) {
            Ok(payload) => {
                packet.in_buffer = payload.in_buffer;
                packet.gathered = payload.gathered;
                let copied = payload.in_buffer - in_buffer;
                self.reports.statistics.note_sent(protocol, copied);
                Ok(())
            }
            Err(error) => {
                self.posting.give_up(packet);
                Err(error.into())
            }
        }
    }

    /// Posts a packet. On an error its buffer is released.
    #[inline(always)]
    pub(crate) fn post_packet(
        &mut self,
        peer: PeerId,
        owner: PacketOwner,
        packet: Outgoing,
    ) -> Result<(), EndpointError> {
        let destination = self
            .destination(peer)
            .inspect_err(|_| self.posting.give_up(&packet))?;
        self.post_packet_to(peer, destination, owner, packet)
    }

    /// As [`Channel::post_packet`], with the destination of the peer's packets.
    #[inline(always)]
    pub(crate) fn post_packet_to(
        &mut self,
        peer: PeerId,
        destination: Destination,
        owner: PacketOwner,
        packet: Outgoing,
    ) -> Result<(), EndpointError> {
        let request = PostedRequest::Packet(packet);
        self.posting.post(peer, destination, owner, request)?;
        self.reports.statistics.packets_sent += 1;
        Ok(())
    }

    /// Posts an RDMA request.
    pub(crate) fn post_rdma(
        &mut self,
        peer: PeerId,
        owner: PacketOwner,
        part: RdmaPart,
        rdma: Rdma,
    ) -> Result<(), EndpointError> {
        let destination = self.destination(peer)?;
        let request = PostedRequest::Rdma(part, rdma);
        self.posting.post(peer, destination, owner, request)?;
        self.reports.statistics.packets_sent += 1;
        Ok(())
    }

    /// Sends a packet that belongs to no operation of the application.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]. Other errors are reported as events.
    pub(crate) fn send_control(
        &mut self,
        peer: PeerId,
        header: &impl Repr,
    ) -> Result<(), EndpointError> {
        let posted = self
            .posting
            .start_packet(header)
            .and_then(|packet| self.post_packet(peer, PacketOwner::Control, packet));
        self.control_posted(peer, header.packet_type(), posted)
    }

    /// Handles the result of posting a packet that belongs to no operation of the application.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]. Other errors are reported as events.
    pub(crate) fn control_posted(
        &mut self,
        peer: PeerId,
        packet_type: PacketType,
        posted: Result<(), EndpointError>,
    ) -> Result<(), EndpointError> {
        match posted {
            Err(EndpointError::TryAgain) => Err(EndpointError::TryAgain),
            // If the peer was removed, the packet is not needed.
            Ok(()) | Err(EndpointError::UnknownPeer(_)) => Ok(()),
            Err(error) => {
                self.reports.event(Event::ControlSendFailed {
                    peer,
                    packet_type: packet_type.code(),
                    failure: Failure::of_post(&error),
                });
                Ok(())
            }
        }
    }

    /// The optional headers of a request to a peer, which identify this endpoint in the form that
    /// the peer needs (spec section 2.2; stock libfabric since 1.17).
    #[inline]
    pub(crate) fn request_options(
        &self,
        features: Option<&PeerFeatures>,
        cq_data: Option<u64>,
    ) -> ReqOptions {
        identity(features).options(self.address, cq_data)
    }

    /// Records that a request to a peer was posted, with the next `msg_id`.
    #[inline]
    pub(crate) fn request_posted(&mut self, peer: PeerId) {
        if self.peers.request_posted(peer) {
            self.posting.queue(Work::Fill(peer));
        }
    }
}

// Completions and back-off.
impl<N: Nic> Channel<N> {
    /// Records that a peer accepted a packet.
    #[inline]
    pub(crate) fn got_through(&mut self, peer: PeerId) {
        if self.posting.any_rnr()
            && let Some(state) = self.peers.state_mut(peer)
        {
            self.posting.got_through(&mut state.backoff);
        }
    }

    /// Ends the back-offs that have expired.
    pub(crate) fn end_backoffs(&mut self) {
        while let Some((until, peer)) = self.posting.next_over(self.now) {
            if let Some(state) = self.peers.state_mut(peer) {
                self.posting.end_backoff(until, &mut state.backoff);
            }
        }
    }

    /// Handles a receive buffer that the device returned without a packet: the queue pair is
    /// closing, or the device refused the buffer.
    pub(crate) fn receive_failed(&mut self, buffer: BufferId, status: Status) {
        self.posting.retire(buffer);
        if status != Status::Flushed {
            self.reports.event(Event::ReceiveFailed(status));
        }
    }

    /// Posts receive buffers as far as there is room.
    pub(crate) fn post_receives(&mut self) {
        while let Err(error) = self.posting.post_receives() {
            self.reports.event(Event::ReceivePostFailed(error));
        }
    }
}
