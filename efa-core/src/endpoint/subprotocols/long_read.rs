//! Messages that the receiver reads by RDMA (spec section 4.1), with or without a first part in
//! packets (spec section 4.5), and the fallback when it cannot read (spec section 4.7).

use crate::endpoint::subprotocols::{ReceiveSide, SendSide};
use crate::nic::Nic;
use crate::wire::{Eor, LongctsRtm, PacketType, ReadNack, Repr, RmaIovs};

use crate::endpoint::api::completion::PacketError;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::reports::Report;
use crate::endpoint::base::ids::{InboundId, OutboundId, PeerId};
use crate::endpoint::memory::registration::{Registered, readable_pieces};
use crate::endpoint::sending::{AwaitedPacket, Bulk};
use crate::endpoint::sending::{MessageHead, RequestHead, Stream, segment_size};

// The sender's side.
impl<N: Nic> SendSide<'_, N> {
    /// Starts an operation whose data the peer reads.
    pub(crate) fn start_long_read(
        &mut self,
        peer: PeerId,
        report: Report,
        data: Registered,
        length: u64,
        request: RequestHead,
    ) -> Result<OutboundId, EndpointError> {
        let Registered {
            pieces: source,
            own_regions,
        } = data;
        let remote = readable_pieces(&source);
        let bulk = Bulk {
            to_move: 0,
            allowed: 0,
            own_regions,
            runt: Some(0),
            ..Bulk::new(source, length, Stream::LongRead(request, remote))
        };
        self.start_read_based(peer, report, length, AwaitedPacket::Eor, bulk)
    }

    /// Starts a message whose first `runt` bytes travel in packets.
    pub(crate) fn start_runt_read(
        &mut self,
        peer: PeerId,
        report: Report,
        data: Registered,
        length: u64,
        head: MessageHead,
        runt: u64,
    ) -> Result<OutboundId, EndpointError> {
        let Registered {
            pieces: source,
            own_regions,
        } = data;
        let remote = readable_pieces(&source);
        // All ids have the same width, so any one serves to measure the header.
        let header = head.runt(OutboundId::from_wire(0), length, 0, runt, &remote);
        let size = segment_size(
            runt,
            self.channel.sizes.mtu.saturating_sub(header.header_len()),
        );
        // If nothing remains to be read, no EOR follows.
        let awaited = if runt < length {
            AwaitedPacket::Eor
        } else {
            AwaitedPacket::Nothing
        };
        let bulk = Bulk {
            to_move: runt,
            allowed: runt,
            own_regions,
            runt: Some(runt),
            ..Bulk::new(source, length, Stream::Runt(head, size, remote))
        };
        self.start_read_based(peer, report, length, awaited, bulk)
    }

    fn start_read_based(
        &mut self,
        peer: PeerId,
        report: Report,
        length: u64,
        awaited: AwaitedPacket,
        bulk: Bulk,
    ) -> Result<OutboundId, EndpointError> {
        let runt = bulk.runt.unwrap_or(0);
        if self.sending.is_full() {
            self.channel.deregister_own(bulk.own_regions);
            return Err(EndpointError::TryAgain);
        }
        if let Some(state) = self.channel.peers.state_mut(peer) {
            state.read_based.begin(runt);
        }
        let id = self.new_bulk(peer, Some(report), length, awaited, bulk)?;
        self.start_stream(id)?;
        Ok(id)
    }

    /// Handles an EOR.
    pub(crate) fn on_eor(&mut self, peer: PeerId, eor: &Eor) {
        self.on_acknowledged(peer, eor.send_id.0, AwaitedPacket::Eor, PacketType::Eor);
    }

    /// Handles a READ_NACK: sends the missing data in packets. A message continues after its runt,
    /// under the same `msg_id`; a write starts again.
    pub(crate) fn on_read_nack(&mut self, peer: PeerId, nack: &ReadNack) {
        let id = OutboundId::from_wire(nack.send_id.0);
        match self.sending.nacked(peer, id) {
            Ok(runt) => {
                tracing::debug!(%peer, op_id = nack.send_id.0, "READ_NACK received: data goes by packets");
                if let Some(runt) = runt {
                    self.channel.peers.end_read_based(peer, runt);
                }
                self.queue_outbound(id);
            }
            Err(reason) => {
                self.channel.reports.refuse(
                    Some(peer),
                    PacketType::ReadNack.code(),
                    reason.error(nack.send_id.0),
                );
            }
        }
    }
}

// The receiver's side.
impl<N: Nic> ReceiveSide<'_, N> {
    /// Starts to read a transfer's data from byte `in_packets` on.
    pub(crate) fn start_reads(&mut self, id: InboundId, remote: RmaIovs, in_packets: u64) {
        if self.plan_reads(id, remote, in_packets, true).is_ok() {
            return;
        }
        if let Some(peer) = self.receiving.refuse_read(id, in_packets) {
            tracing::debug!(%peer, op_id = id.to_wire(), "RDMA read not possible: data is asked for by packets");
            self.refuse_read(peer, id);
        }
    }

    /// Continues a transfer whose data cannot be read, once the peer's features are known.
    pub(crate) fn refuse_read(&mut self, peer: PeerId, id: InboundId) {
        let Some(state) = self.channel.peers.state_mut(peer) else {
            return;
        };
        match state.handshake.waiting() {
            Some(waiting) => waiting.refused_reads.push(id),
            None => self.go_on_with(id),
        }
    }

    /// Handles the answer to READ_NACK: a long-CTS request under the `msg_id` of the refused one.
    pub(crate) fn on_nack_answer(
        &mut self,
        peer: PeerId,
        packet_type: PacketType,
        long: &LongctsRtm,
    ) {
        match self.receiving.nack_answered(peer, long) {
            Some(id) => self.go_on_with(id),
            None => {
                let msg_id = long.msg_id.0;
                let reason = PacketError::AlreadyProcessed { msg_id };
                self.channel
                    .reports
                    .refuse(Some(peer), packet_type.code(), reason);
            }
        }
    }
}
