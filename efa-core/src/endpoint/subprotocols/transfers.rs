//! Data on its way in: taking it out of packets, asking the peer for more, and the end.

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{CompletionEntry, CompletionFlags, ErrorEntry, Event};
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::memory::iov::copy_out;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::posting::{Owner, Work};
use crate::endpoint::receiving::{Ask, Audience, Ending, Step, Supply};
use crate::nic::Nic;
use crate::wire::{ExtraFeatures, Payload, ReadNack, RecvId};

impl<N: Nic> Endpoint<N> {
    /// Takes a piece of a transfer's data out of a packet. Returns whether the piece fits what is
    /// known of the transfer; if not, nothing happened.
    pub(crate) fn take_data(
        &mut self,
        id: ReceiveId,
        packet: &ReceivedPacket,
        payload: Payload,
        offset: u64,
        protocol: Protocol,
    ) -> bool {
        let Some(transfer) = self.receiving.transfer_mut(id) else {
            return false;
        };
        let length = payload.length as u64;
        if !transfer.accept(offset, length) {
            return false;
        }
        if transfer.failure.is_none() {
            let copied = copy_out(
                self.posting.nic_mut(),
                packet,
                payload.offset,
                payload.length,
                transfer.target.as_slice(),
                offset,
            );
            let taken = length.min(transfer.capacity.saturating_sub(offset));
            self.reports.statistics.note_received(protocol, taken);
            if copied.is_err() {
                transfer.failure = Some(Failure::new(Errno::EFAULT, ProviderError::ReceiveCopy));
            }
        }
        true
    }

    /// Goes on with a transfer after something arrived: ends it, or asks for more if the peer waits
    /// to be asked.
    pub(crate) fn go_on_with(&mut self, id: ReceiveId) {
        match self.receiving.next_step(id) {
            Step::Wait => {}
            Step::Finish => self.finish_inbound(id),
            Step::Grant => self.ask(id, Ask::Cts),
            Step::Refuse => self.refuse_data(id),
        }
    }

    /// Tells the peer that its data cannot be read, as soon as it is known whether it understands
    /// that.
    fn refuse_data(&mut self, id: ReceiveId) {
        let peer = self.receiving.transfer(id).map(|transfer| transfer.peer);
        match peer.and_then(|peer| self.features(peer)) {
            None => {}
            Some(features) if features.extra.contains(ExtraFeatures::READ_NACK) => {
                self.ask(id, Ask::ReadNack);
            }
            Some(_) => {
                // libfabric before 1.20 knows no other way to send the data.
                let failure = Failure::new(Errno::ENOMEM, ProviderError::RdmaReadPost);
                self.fail_inbound(id, failure);
            }
        }
    }

    fn ask(&mut self, id: ReceiveId, ask: Ask) {
        if let Some(transfer) = self.receiving.transfer_mut(id) {
            transfer.ask(ask);
            self.queue_inbound(id);
        }
    }

    /// Queues a transfer for which there is something to send or to post.
    pub(crate) fn queue_inbound(&mut self, id: ReceiveId) {
        if let Some(transfer) = self.receiving.transfer_mut(id)
            && transfer.enqueue()
        {
            self.posting.queue(Work::Inbound(id));
        }
    }

    /// Sends and posts what a transfer needs. Returns whether there is more.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn serve_inbound(&mut self, id: ReceiveId) -> Result<bool, EndpointError> {
        let Some(transfer) = self.receiving.transfer_mut(id) else {
            return Ok(false);
        };
        match transfer.asks() {
            Ask::Nothing => {}
            Ask::Cts => self.send_cts(id)?,
            Ask::ReadNack => self.send_read_nack(id)?,
        }
        let more = self.post_reads(id)?;
        if let Some(transfer) = self.receiving.transfer_mut(id) {
            transfer.served(more);
        }
        Ok(more)
    }

    fn send_read_nack(&mut self, id: ReceiveId) -> Result<(), EndpointError> {
        let Some(transfer) = self.receiving.transfer_mut(id) else {
            return Ok(());
        };
        let (peer, send_id) = (transfer.peer, transfer.send_id);
        let is_write = transfer.ending.is_peers();
        let nack = ReadNack {
            send_id,
            recv_id: RecvId(id.to_wire()),
            connid: Some(self.address.qkey.into()),
            ..ReadNack::default()
        };
        let owner = if is_write {
            Owner::Nobody
        } else {
            Owner::Inbound(id)
        };
        self.send_for(id, peer, owner, &nack)?;
        if let Some(transfer) = self.receiving.transfer_mut(id) {
            transfer.supply = Supply::Nacked;
        }
        if is_write {
            // The peer starts the write afresh, with a request of another kind.
            self.receiving.finish(id);
            self.end_operation(peer);
            self.end_request(peer);
        }
        Ok(())
    }

    /// Sends a packet for a transfer; an error other than want of room ends the transfer.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn send_for(
        &mut self,
        id: ReceiveId,
        peer: PeerId,
        owner: Owner,
        header: &impl crate::wire::Repr,
    ) -> Result<(), EndpointError> {
        let posted = self
            .posting
            .start_packet(header)
            .and_then(|packet| self.post_packet(peer, owner, packet));
        match posted {
            Ok(()) => Ok(()),
            Err(EndpointError::TryAgain) => Err(EndpointError::TryAgain),
            Err(error) => {
                self.fail_inbound(id, Failure::of_post(&error));
                Ok(())
            }
        }
    }

    /// Ends a transfer that is complete or was aborted, and of which the device has nothing.
    fn finish_inbound(&mut self, id: ReceiveId) {
        let Some((transfer, plan)) = self.receiving.finish(id) else {
            return;
        };
        if transfer.ending.is_remote() {
            self.end_operation(transfer.peer);
        }
        if transfer.ending.is_peers() {
            self.end_request(transfer.peer);
        }
        let delivered = transfer.is_complete() && transfer.failure.is_none();
        if let Some(plan) = plan {
            self.deregister_own(plan.own_regions);
            if plan.tells_peer && delivered {
                self.queue_eor(transfer.peer, transfer.send_id, id);
            }
        }
        if transfer.wants_receipt && delivered {
            self.queue_receipt(transfer.peer, transfer.send_id, transfer.msg_id);
        }
        self.end_inbound(
            &transfer.ending,
            transfer.peer,
            transfer.length,
            transfer.capacity,
            transfer.failure,
        );
    }

    /// Tells how a message of `length` bytes for a buffer of `capacity` bytes ended.
    #[inline(always)]
    pub(crate) fn end_inbound(
        &mut self,
        ending: &Ending,
        peer: PeerId,
        length: u64,
        capacity: u64,
        failure: Option<Failure>,
    ) {
        let truncated =
            (length > capacity).then_some(Failure::new(Errno::ETRUNC, ProviderError::None));
        let failure = failure.or(truncated);
        let is_own = ending.flags.contains(CompletionFlags::READ);
        let mut flags = ending.flags;
        if let Some(part) = ending.part {
            flags.set(CompletionFlags::MULTI_RECV, self.receiving.end_part(part));
        }
        match (failure, ending.audience) {
            (_, Audience::Nobody) => {}
            (Some(failure), Audience::Target(request)) => {
                self.reports.event(Event::RemoteOperationFailed {
                    peer,
                    packet_type: request.code(),
                    failure,
                });
            }
            (Some(failure), Audience::Starter) => {
                self.reports.failed(ErrorEntry {
                    context: ending.context,
                    flags,
                    length: length.min(capacity),
                    overflow_length: length.saturating_sub(capacity),
                    data: ending.cq_data.unwrap_or(0),
                    tag: ending.tag,
                    source: Some(peer),
                    failure,
                });
            }
            // Of peers' operations only those with CQ data concern the application.
            (None, Audience::Target(_)) if !ending.report_success => {}
            (None, _) => {
                if ending.report_success {
                    self.reports.succeeded(CompletionEntry {
                        context: ending.context,
                        flags,
                        length,
                        data: ending.cq_data.unwrap_or(0),
                        tag: ending.tag,
                        source: (!is_own).then_some(peer),
                        buffer: ending.part.map_or(0, |part| part.address),
                    });
                } else {
                    self.reports.succeeded_silently(flags);
                }
            }
        }
    }

    /// Ends a transfer with a failure, as soon as the device is done with its memory.
    pub(crate) fn fail_inbound(&mut self, id: ReceiveId, failure: Failure) {
        self.receiving.abort(id, failure);
        self.go_on_with(id);
    }
}
