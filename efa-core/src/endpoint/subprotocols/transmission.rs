//! Sending data: starting operations, posting their packets as the device has room, and their end.

use crate::endpoint::api::completion::CompletionFlags;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::reports::Report;
use crate::endpoint::base::ids::{OutboundId, PeerId};
use crate::endpoint::posting::{PacketOwner, QUANTUM, Rdma, Work};
use crate::endpoint::sending::{AwaitedPacket, Bulk, NextRequest, OperationResources, PendingPost};
use crate::endpoint::subprotocols::SendSide;
use crate::nic::{Domain, Nic};
use crate::wire::{Connid, ExtraFeatures, PacketType};

impl<N: Nic> SendSide<'_, N> {
    /// Makes an operation of more than one packet.
    ///
    /// # Errors
    /// [`EndpointError::TryAgain`] if there are too many operations of the application.
    pub(crate) fn new_bulk(
        &mut self,
        peer: PeerId,
        report: Option<Report>,
        length: u64,
        awaited: AwaitedPacket,
        bulk: Bulk,
    ) -> Result<OutboundId, EndpointError> {
        self.sending
            .start_bulk(peer, report, length, awaited, bulk)
            .map_err(|own_regions| {
                self.channel.deregister_own(own_regions);
                EndpointError::TryAgain
            })
    }

    /// Starts an operation. Its first packet is posted now, so that the call can still fail; the
    /// others follow as the device has room.
    pub(crate) fn start_stream(&mut self, id: OutboundId) -> Result<(), EndpointError> {
        if let Err(error) = self.send_next(id) {
            self.discard_outbound(id);
            return Err(error);
        }
        self.queue_outbound(id);
        Ok(())
    }

    /// Removes an operation that could not be started.
    pub(crate) fn discard_outbound(&mut self, id: OutboundId) {
        if let Some((peer, resources)) = self.sending.discard(id) {
            self.drop_resources(peer, resources);
        }
    }

    #[inline]
    fn drop_resources(&mut self, peer: PeerId, resources: OperationResources) {
        if resources.own_regions.is_some() {
            self.channel.deregister_own(resources.own_regions);
        }
        if let Some(runt) = resources.runt {
            self.channel.peers.end_read_based(peer, runt);
        }
    }

    /// Queues an operation that has something to post.
    pub(crate) fn queue_outbound(&mut self, id: OutboundId) {
        if self.sending.enqueue(id) {
            self.channel.posting.queue(Work::Outbound(id));
        }
    }

    /// Posts packets of an operation, up to [`QUANTUM`]. Returns whether there are more to post.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end the operation.
    pub(crate) fn send_stream(&mut self, id: OutboundId) -> Result<bool, EndpointError> {
        for _ in 0..QUANTUM {
            match self.sending.due(id) {
                PendingPost::Nothing => return Ok(false),
                PendingPost::Data(peer) if self.channel.peers.waits_for_handshake(peer, id) => {
                    return Ok(false);
                }
                PendingPost::Data(_) | PendingPost::Post => {}
            }
            match self.send_next(id) {
                Ok(()) => {}
                Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
                Err(error) => {
                    self.sending.dequeue(id);
                    self.fail_outbound(id, Failure::of_post(&error));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Posts the next packet or RDMA write of an operation.
    fn send_next(&mut self, id: OutboundId) -> Result<(), EndpointError> {
        let Some(peer) = self.sending.peer(id) else {
            return Ok(());
        };
        let connid = Connid::from(self.channel.address.qkey);
        // libfabric before 1.14, which does not announce the feature, would parse a connection id
        // as data.
        let features = self.channel.peers.features(peer);
        let in_data = features
            .is_some_and(|features| features.extra.contains(ExtraFeatures::CONNID_HEADER))
            .then_some(connid);
        let limit = self.channel.posting.nic().attributes().max_rdma_size.max(1);
        match self.sending.next(id, limit, connid, in_data) {
            None => {}
            Some(NextRequest::Unregistered) => {
                return Err(EndpointError::Unsupported(
                    "an RDMA write of unregistered memory",
                ));
            }
            Some(NextRequest::Write(part, immediate)) => {
                let length = part.local.length as u64;
                self.channel.post_rdma(
                    peer,
                    PacketOwner::Outbound(id),
                    part,
                    Rdma::Write(immediate),
                )?;
                self.sending.write_posted(id, length);
            }
            Some(NextRequest::Packet(next)) => {
                let mut packet = self.channel.posting.start_packet(&next.header)?;
                if let Some((source, from, protocol)) = self.sending.data(id) {
                    let part = (from, next.size);
                    self.channel
                        .attach(&mut packet, protocol, source, part, true)?;
                }
                packet.sequenced = next.sequenced;
                self.channel
                    .post_packet(peer, PacketOwner::Outbound(id), packet)?;
                self.sending.packet_posted(id, &next);
            }
        }
        Ok(())
    }

    /// Ends an operation if it is complete.
    #[inline]
    pub(crate) fn finish_outbound(&mut self, id: OutboundId) {
        let Some(ended) = self.sending.take_ended(id) else {
            return;
        };
        let peer = ended.peer;
        if let Some(failure) = ended.failure {
            match (ended.abandoned, ended.lost) {
                (Some(what), lost) => {
                    let loss = lost.map(|(_, loss)| loss);
                    self.channel.abandon(peer, what, failure, loss);
                }
                (None, Some((msg_id, loss))) => {
                    self.channel.request_lost(peer, msg_id, failure, loss);
                }
                (None, None) => {}
            }
        }
        self.drop_resources(peer, ended.resources);
        match ended.report {
            Some(report) => self
                .channel
                .reports
                .sent(peer, &report, ended.length, ended.failure),
            // A peer's read.
            None => {
                if ended.failure.is_none() {
                    let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_READ;
                    self.channel.reports.succeeded_silently(flags);
                }
                self.channel.end_operation(peer);
                self.channel.quota.end_request(peer);
            }
        }
    }

    /// Fails an operation. It ends when the device no longer uses its memory.
    pub(crate) fn fail_outbound(&mut self, id: OutboundId, failure: Failure) {
        self.sending.fail(id, failure);
        self.finish_outbound(id);
    }

    /// Handles the packet that ends an operation.
    pub(crate) fn on_acknowledged(
        &mut self,
        peer: PeerId,
        id: u32,
        awaited: AwaitedPacket,
        packet_type: PacketType,
    ) {
        let operation = OutboundId::from_wire(id);
        match self.sending.acknowledged(peer, operation, awaited) {
            Ok(()) => self.finish_outbound(operation),
            Err(reason) => {
                self.channel
                    .reports
                    .refuse(Some(peer), packet_type.code(), reason.error(id))
            }
        }
    }
}
