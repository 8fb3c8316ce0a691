//! Reads of a peer's memory: by the device (spec section 4.1), or emulated, in one packet or in
//! windows (spec section 3.3). The responder of an emulated read is the source of the data. The old
//! values of a fetching atomic are received as the data of a read.

use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::subprotocols::{ReceiveSide, SendSide};
use crate::nic::{Access, Nic};
use crate::wire::{AtomRsp, MsgId, PacketType, Payload, ReadRsp, RecvId, RmaIovs, Rtr, RtrKind};

use crate::endpoint::api::completion::{CompletionFlags, PacketError};
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{OperationFlags, ReadArgs};
use crate::endpoint::base::ids::{InboundId, PeerId};
use crate::endpoint::memory::iov::{Iov, total_length};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::posting::PacketOwner;
use crate::endpoint::receiving::{ReportRecipient, Transfer, TransferEnding};
use crate::endpoint::sending::Stream;
use crate::endpoint::sending::choice::{self, LocalCapabilities, ReadProtocol};
use crate::endpoint::sending::{AwaitedPacket, Bulk};
use crate::endpoint::subprotocols::write::remote_pieces;

// The requester's side.
impl<N: Nic> ReceiveSide<'_, N> {
    pub(crate) fn start_read(&mut self, args: &ReadArgs<'_>) -> Result<(), EndpointError> {
        let length = total_length(args.buffer);
        let target = Iov::new(args.buffer)?;
        let source = remote_pieces(args.remote, length)?;
        self.channel.peers.check(args.peer)?;
        let capacity = self.channel.sizes.read_response;
        let features = self.channel.peers.features(args.peer).copied();
        let local = self.channel.local;
        let choose =
            |local: &LocalCapabilities| choice::read(local, features.as_ref(), length, capacity);
        let protocol = match choose(&local) {
            Ok(protocol) => protocol,
            Err(reason) => return Err(self.channel.no_protocol(args.peer, reason)),
        };
        let ending = TransferEnding {
            context: args.context,
            report_success: args.flags.contains(OperationFlags::COMPLETION),
            flags: CompletionFlags::RMA | CompletionFlags::READ,
            tag: 0,
            cq_data: None,
            recipient: ReportRecipient::Starter,
            part: None,
        };
        let transfer = Transfer::new(args.peer, MsgId(0), length, target, ending);
        let id = self
            .receiving
            .start(transfer)
            .ok_or(EndpointError::TryAgain)?;
        let show = |local: &LocalCapabilities, subprotocol| {
            let reason = choice::why_read(local, features.as_ref(), length, subprotocol);
            tracing::debug!(peer = %args.peer, ?subprotocol, length, reason, "read");
        };
        if protocol == ReadProtocol::Direct && self.plan_reads(id, source, 0, false).is_ok() {
            show(&local, protocol);
            return Ok(());
        }
        let local = match protocol {
            ReadProtocol::Direct => local.without_rdma(),
            ReadProtocol::Short | ReadProtocol::LongCts => local,
        };
        let (protocol, kind) = match choose(&local.without_rdma()) {
            Ok(ReadProtocol::Short) => (ReadProtocol::Short, RtrKind::Short),
            _ => (ReadProtocol::LongCts, RtrKind::Longcts),
        };
        show(&local, protocol);
        self.request_read(id, args.peer, kind, &source, length)
            .inspect_err(|_| {
                self.receiving.finish(id);
            })
    }

    fn request_read(
        &mut self,
        id: InboundId,
        peer: PeerId,
        kind: RtrKind,
        source: &RmaIovs,
        length: u64,
    ) -> Result<(), EndpointError> {
        // A full READRSP must fit the window, because stock responders assume that it does.
        let window = self
            .channel
            .sizes
            .window
            .max(self.channel.sizes.read_response);
        let granted = match kind {
            RtrKind::Short => length,
            RtrKind::Longcts => length.min(window),
        };
        let header = Rtr {
            kind,
            rma_iov: *source,
            msg_length: length,
            recv_id: RecvId(id.to_wire()),
            recv_length: u32::try_from(granted).unwrap_or(u32::MAX),
            options: self
                .channel
                .request_options(self.channel.peers.features(peer), None),
        };
        let packet = self.channel.posting.start_packet(&header)?;
        self.channel
            .post_packet(peer, PacketOwner::Inbound(id), packet)?;
        if let Some(transfer) = self.receiving.transfers.get_mut(id) {
            transfer.granted(header.recv_length.into());
        }
        if let Some(state) = self.channel.peers.state_mut(peer) {
            state.handshake.request_sent();
        }
        Ok(())
    }

    /// Handles READRSP, which has the first data of a read.
    pub(crate) fn on_read_response(
        &mut self,
        peer: PeerId,
        response: &ReadRsp,
        packet: &ReceivedPacket,
        payload: Payload,
    ) {
        let packet_type = PacketType::ReadRsp;
        let transfers = &mut self.receiving.transfers;
        let named = transfers.named_by(peer, response.recv_id);
        let first = named.and_then(|(id, read)| read.responded(response.send_id).then_some(id));
        match first {
            Some(id) => self.take_granted(id, 0, packet, payload, packet_type),
            None => self
                .channel
                .reports
                .refuse_id(peer, packet_type, response.recv_id.0),
        }
    }

    /// Handles ATOMRSP, which has the old values of an atomic.
    pub(crate) fn on_atomic_response(
        &mut self,
        peer: PeerId,
        response: &AtomRsp,
        packet: &ReceivedPacket,
        payload: Payload,
    ) {
        let packet_type = PacketType::AtomRsp;
        let transfers = &mut self.receiving.transfers;
        let named = transfers.named_by(peer, response.recv_id);
        let Some((id, _)) = named.filter(|(_, transfer)| transfer.is_atomic()) else {
            let reports = &mut self.channel.reports;
            return reports.refuse_id(peer, packet_type, response.recv_id.0);
        };
        if self.take_data(id, packet, payload, 0, Protocol::Atomic, false) {
            return self.go_on_with(id);
        }
        self.refuse_misfit(id, peer, packet_type);
    }
}

// The responder's side.
impl<N: Nic> SendSide<'_, N> {
    /// Handles a peer's request to read local memory.
    pub(crate) fn on_read(&mut self, peer: PeerId, rtr: &Rtr, packet_type: PacketType) {
        let length = rtr.msg_length;
        if rtr.rma_iov.total_len() != Some(length)
            || (rtr.recv_length == 0 && length > 0 && rtr.kind == RtrKind::Longcts)
        {
            return self.channel.reports.refuse(
                Some(peer),
                packet_type.code(),
                PacketError::SizeMismatch,
            );
        }
        let Some(source) = self.exposed.memory(&rtr.rma_iov, Access::REMOTE_READ) else {
            return self.channel.reports.refuse_memory(peer, packet_type);
        };
        if !self.channel.begin_request(peer, packet_type) {
            return;
        }
        let bulk = Bulk {
            // libfabric 1.11 does not set the field in SHORT_RTR, which the spec allows.
            allowed: match rtr.kind {
                RtrKind::Short => length,
                RtrKind::Longcts => length.min(rtr.recv_length.into()),
            },
            ..Bulk::new(source, length, Stream::ReadResponse(rtr.recv_id))
        };
        if let Ok(id) = self.new_bulk(peer, None, length, AwaitedPacket::Nothing, bulk) {
            self.channel.quota.begin_operation(peer);
            self.queue_outbound(id);
        }
    }
}
