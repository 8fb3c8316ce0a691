//! Incoming data: copying it from packets, asking the peer for more, and the end of a transfer.

use crate::endpoint::api::completion::{CompletionEntry, CompletionFlags, ErrorEntry, Event};
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::memory::iov::copy_out;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::posting::{Owner, Work};
use crate::endpoint::receiving::{Arrival, Ask, Audience, Ending, Nack, Step};
use crate::endpoint::subprotocols::ReceiveSide;
use crate::nic::Nic;
use crate::wire::{ExtraFeatures, Payload, ReadNack, RecvId};

/// A part of the target is not memory of the application.
pub(crate) const COPY_FAILED: Failure = Failure::new(Errno::EFAULT, ProviderError::ReceiveCopy);

impl<N: Nic> ReceiveSide<'_, N> {
    /// Copies a piece of a transfer's data from a packet: one that the peer sent without being
    /// asked or, with `in_window`, one that it was granted. Returns false, without an effect, if
    /// the piece contradicts what is known of the transfer.
    pub(crate) fn take_data(
        &mut self,
        id: ReceiveId,
        packet: &ReceivedPacket,
        payload: Payload,
        offset: u64,
        protocol: Protocol,
        in_window: bool,
    ) -> bool {
        let length = payload.length as u64;
        match self.receiving.arrived(id, offset, length, in_window) {
            Arrival::Misfit => return false,
            Arrival::Drop => {}
            Arrival::Copy { target, fits } => {
                let copied = copy_out(
                    self.channel.posting.nic_mut(),
                    packet,
                    payload.offset,
                    payload.length,
                    target,
                    offset,
                );
                self.channel
                    .reports
                    .statistics
                    .note_received(protocol, fits);
                if copied.is_err() {
                    self.receiving.copy_failed(id, COPY_FAILED);
                }
            }
        }
        true
    }

    /// Continues a transfer after something arrived: ends it, or asks the peer for more.
    pub(crate) fn go_on_with(&mut self, id: ReceiveId) {
        match self.receiving.next_step(id) {
            Step::Wait => {}
            Step::Finish => self.finish_inbound(id),
            Step::Grant => self.ask(id, Ask::Cts),
            Step::Refuse => self.refuse_data(id),
        }
    }

    /// Tells the peer that its data cannot be read, once its features are known.
    fn refuse_data(&mut self, id: ReceiveId) {
        let peer = self.receiving.peer(id);
        match peer.and_then(|peer| self.channel.peers.features(peer)) {
            None => {}
            Some(features) if features.extra.contains(ExtraFeatures::READ_NACK) => {
                self.ask(id, Ask::ReadNack);
            }
            Some(_) => {
                // libfabric before 1.20 does not know READ_NACK, and cannot send the data in
                // another way.
                let failure = Failure::new(Errno::ENOMEM, ProviderError::RdmaReadPost);
                self.fail_inbound(id, failure);
            }
        }
    }

    fn ask(&mut self, id: ReceiveId, ask: Ask) {
        self.receiving.ask(id, ask);
        self.queue_inbound(id);
    }

    /// Queues a transfer for which something has to be sent or posted.
    pub(crate) fn queue_inbound(&mut self, id: ReceiveId) {
        if self.receiving.enqueue(id) {
            self.channel.posting.queue(Work::Inbound(id));
        }
    }

    /// Sends and posts what a transfer needs. Returns whether there is more.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn serve_inbound(&mut self, id: ReceiveId) -> Result<bool, EndpointError> {
        match self.receiving.asks(id) {
            None => return Ok(false),
            Some(Ask::Nothing) => {}
            Some(Ask::Cts) => self.send_cts(id)?,
            Some(Ask::ReadNack) => self.send_read_nack(id)?,
        }
        let more = self.post_reads(id)?;
        self.receiving.served(id, more);
        Ok(more)
    }

    fn send_read_nack(&mut self, id: ReceiveId) -> Result<(), EndpointError> {
        let Some(Nack {
            peer,
            send_id,
            is_write,
        }) = self.receiving.nack(id)
        else {
            return Ok(());
        };
        let nack = ReadNack {
            send_id,
            recv_id: RecvId(id.to_wire()),
            connid: Some(self.channel.address.qkey.into()),
            ..ReadNack::default()
        };
        let owner = if is_write {
            Owner::Nobody
        } else {
            Owner::Inbound(id)
        };
        self.send_for(id, peer, owner, &nack)?;
        self.receiving.nacked(id);
        if is_write {
            self.receiving.finish(id);
            self.channel.end_operation(peer);
            self.channel.quota.end_request(peer);
        }
        Ok(())
    }

    /// Sends a packet for a transfer. An error other than lack of room ends the transfer.
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
            .channel
            .posting
            .start_packet(header)
            .and_then(|packet| self.channel.post_packet(peer, owner, packet));
        match posted {
            Ok(()) => Ok(()),
            Err(EndpointError::TryAgain) => Err(EndpointError::TryAgain),
            Err(error) => {
                self.fail_inbound(id, Failure::of_post(&error));
                Ok(())
            }
        }
    }

    /// Ends a transfer that is complete or failed, if the device no longer uses its memory.
    fn finish_inbound(&mut self, id: ReceiveId) {
        let Some(ended) = self.receiving.finish(id) else {
            return;
        };
        let (peer, ending) = (ended.peer, &ended.ending);
        if ending.is_remote() {
            self.channel.end_operation(peer);
        }
        if ending.is_peers() {
            self.channel.quota.end_request(peer);
        }
        self.channel.deregister_own(ended.own_regions);
        if let Some(send_id) = ended.eor {
            self.channel.queue_eor(peer, send_id, id);
        }
        if let Some((send_id, msg_id)) = ended.receipt {
            self.channel.queue_receipt(peer, send_id, msg_id);
        }
        self.end_inbound(ending, peer, ended.length, ended.capacity, ended.failure);
    }

    /// Reports the end of an operation that received `length` bytes into a buffer of `capacity`
    /// bytes.
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
                self.channel.reports.event(Event::RemoteOperationFailed {
                    peer,
                    packet_type: request.code(),
                    failure,
                });
            }
            (Some(failure), Audience::Starter) => {
                self.channel.reports.failed(ErrorEntry {
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
                    self.channel.reports.succeeded(CompletionEntry {
                        context: ending.context,
                        flags,
                        length,
                        data: ending.cq_data.unwrap_or(0),
                        tag: ending.tag,
                        source: (!is_own).then_some(peer),
                        buffer: ending.part.map_or(0, |part| part.address),
                    });
                } else {
                    self.channel.reports.succeeded_silently(flags);
                }
            }
        }
    }

    /// Fails a transfer. It ends when the device no longer uses its memory.
    pub(crate) fn fail_inbound(&mut self, id: ReceiveId, failure: Failure) {
        self.receiving.abort(id, failure);
        self.go_on_with(id);
    }
}
