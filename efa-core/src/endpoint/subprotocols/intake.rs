//! Incoming data: copying it from packets, asking the peer for more, and the end of a transfer.

use crate::endpoint::api::completion::PacketError;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{InboundId, PeerId};
use crate::endpoint::memory::iov::copy_out;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::posting::{AbandonedMessage, PacketOwner, Work};
use crate::endpoint::receiving::{ControlPacket, DataAction, Nack, NextAction, TransferEnding};
use crate::endpoint::subprotocols::ReceiveSide;
use crate::nic::Nic;
use crate::wire::{OpeType, PacketType, Payload, ReadNack, RecvId};

impl<N: Nic> ReceiveSide<'_, N> {
    /// Copies a piece of a transfer's data from a packet. With `in_window` the piece was granted by
    /// a CTS, otherwise the peer sent it unsolicited. A duplicate is refused without any other
    /// effect. Returns false, without an effect, if the piece contradicts the known state of the
    /// transfer.
    pub(crate) fn take_data(
        &mut self,
        id: InboundId,
        packet: &ReceivedPacket,
        payload: Payload,
        offset: u64,
        protocol: Protocol,
        in_window: bool,
    ) -> bool {
        let Some(transfer) = self.receiving.transfers.get_mut(id) else {
            return false;
        };
        match transfer.arrived(offset, payload.length as u64, in_window) {
            DataAction::Misfit => return false,
            DataAction::Drop => {}
            DataAction::Repeated => self.refuse_repeated(id, packet, offset),
            DataAction::Copy { target, fits } => {
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
                    transfer.fail(Failure::COPY_FAILED);
                }
            }
        }
        true
    }

    /// Refuses a packet whose data has arrived before.
    #[cold]
    #[inline(never)]
    fn refuse_repeated(&mut self, id: InboundId, packet: &ReceivedPacket, offset: u64) {
        let peer = self.receiving.transfers.get(id).map(|of| of.peer);
        let bytes = packet.bytes(self.channel.posting.nic());
        let packet_type = bytes.first().copied().unwrap_or(0);
        let reason = PacketError::RepeatedData { offset };
        self.channel.reports.refuse(peer, packet_type, reason);
    }

    /// Continues a transfer after a packet or read has arrived: ends it, or requests more from the
    /// peer.
    pub(crate) fn go_on_with(&mut self, id: InboundId) {
        let Some(transfer) = self.receiving.transfers.get_mut(id) else {
            return;
        };
        match transfer.next_action() {
            NextAction::Wait => {}
            NextAction::Finish => self.finish_inbound(id),
            NextAction::Grant => {
                transfer.pending_control.set(ControlPacket::Cts);
                self.queue_inbound(id);
            }
            NextAction::Refuse => self.refuse_data(id),
        }
    }

    /// Notifies the peer that its data cannot be read, once its features are known.
    fn refuse_data(&mut self, id: InboundId) {
        let Some(transfer) = self.receiving.transfers.get_mut(id) else {
            return;
        };
        match self.channel.peers.features(transfer.peer) {
            None => {}
            Some(features) if features.extra.permit(PacketType::ReadNack) => {
                transfer.pending_control.set(ControlPacket::ReadNack);
                self.queue_inbound(id);
            }
            Some(_) => {
                // libfabric before 1.20 does not support READ_NACK, and cannot send the data in
                // another way.
                let failure = Failure::new(Errno::ENOMEM, ProviderError::RdmaReadPost);
                self.fail_inbound(id, failure);
            }
        }
    }

    /// Queues a transfer that has a packet to send or a read to post.
    pub(crate) fn queue_inbound(&mut self, id: InboundId) {
        if let Some(transfer) = self.receiving.transfers.get_mut(id)
            && transfer.pending_control.enqueue()
        {
            self.channel.posting.queue(Work::Inbound(id));
        }
    }

    /// Sends the CTS or READ_NACK that a transfer needs, and posts its reads. Returns whether more
    /// reads remain.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn serve_inbound(&mut self, id: InboundId) -> Result<bool, EndpointError> {
        let Some(transfer) = self.receiving.transfers.get(id) else {
            return Ok(false);
        };
        match transfer.pending_control.packet() {
            ControlPacket::Nothing => {}
            ControlPacket::Cts => self.send_cts(id)?,
            ControlPacket::ReadNack => self.send_read_nack(id)?,
        }
        let more = self.post_reads(id)?;
        if let Some(transfer) = self.receiving.transfers.get_mut(id) {
            transfer.pending_control.served(more);
        }
        Ok(more)
    }

    fn send_read_nack(&mut self, id: InboundId) -> Result<(), EndpointError> {
        let Some(transfer) = self.receiving.transfers.get(id) else {
            return Ok(());
        };
        let (peer, Nack { send_id, is_write }) = (transfer.peer, transfer.nack());
        let nack = ReadNack {
            send_id,
            recv_id: RecvId(id.to_wire()),
            connid: Some(self.channel.address.qkey.into()),
            ..ReadNack::default()
        };
        let owner = if is_write {
            PacketOwner::Control
        } else {
            PacketOwner::Inbound(id)
        };
        self.send_for(id, peer, owner, &nack)?;
        if is_write {
            // A device error has already ended it.
            if self.receiving.finish(id).is_some() {
                self.channel.end_operation(peer);
                self.channel.quota.end_request(peer);
            }
        } else if let Some(transfer) = self.receiving.transfers.get_mut(id) {
            transfer.nacked();
        }
        Ok(())
    }

    /// Sends a packet for a transfer. An error other than lack of room ends the transfer.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn send_for(
        &mut self,
        id: InboundId,
        peer: PeerId,
        owner: PacketOwner,
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
    fn finish_inbound(&mut self, id: InboundId) {
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
        if let (Some((msg_id, send_id)), Some(failure)) = (ended.abandoned, ended.failure) {
            let what = AbandonedMessage {
                msg_id,
                op_id: send_id.0,
                side: OpeType::RXE,
            };
            self.channel.abandon(peer, what, failure, None);
        }
        self.end_inbound(ending, peer, ended.length, ended.capacity, ended.failure);
    }

    /// Reports the end of an operation that received `length` bytes into a buffer of `capacity`
    /// bytes.
    #[inline(always)]
    pub(crate) fn end_inbound(
        &mut self,
        ending: &TransferEnding,
        peer: PeerId,
        length: u64,
        capacity: u64,
        failure: Option<Failure>,
    ) {
        let is_free = match ending.part {
            None => false,
            Some(part) => self.receiving.posted.end_part(part),
        };
        let outcome = ending.outcome(peer, length, capacity, failure, is_free);
        self.channel.reports.report(outcome);
    }

    /// Refuses a packet that contradicts its transfer, and fails the transfer, whose data is
    /// missing.
    pub(crate) fn refuse_misfit(&mut self, id: InboundId, peer: PeerId, packet_type: PacketType) {
        self.channel
            .reports
            .refuse(Some(peer), packet_type.code(), PacketError::SizeMismatch);
        self.fail_inbound(id, Failure::SIZE_MISMATCH);
    }

    /// Fails a transfer. It ends when the device no longer uses its memory.
    pub(crate) fn fail_inbound(&mut self, id: InboundId, failure: Failure) {
        if let Some(transfer) = self.receiving.transfers.get_mut(id) {
            transfer.abort(failure);
        }
        self.go_on_with(id);
    }
}
