//! Writes of a peer's memory: by the device (spec section 4.6), or emulated, in one packet, in
//! windows (spec section 3.3) or by an RDMA read of the target (spec section 4.1).

use crate::endpoint::subprotocols::{ReceiveSide, SendSide};
use crate::nic::{Access, Nic};
use crate::wire::{
    EagerRtw, LongctsRtw, LongreadRtw, MsgId, PacketType, Payload, Repr, ReqOptions, RmaIov,
    RmaIovs, SendId,
};

use crate::endpoint::IOV_LIMIT;
use crate::endpoint::api::completion::{CompletionFlags, PacketError};
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::operation::{OperationFlags, RemoteIoVec, WriteArgs};
use crate::endpoint::api::reports::Report;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{InboundId, PeerId};
use crate::endpoint::base::immediate;
use crate::endpoint::memory::iov::{Iov, copy_out, total_length};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::memory::registration::Registered;
use crate::endpoint::posting::PacketOwner;
use crate::endpoint::receiving::{ReportRecipient, Transfer, TransferEnding};
use crate::endpoint::sending::choice::{self, WriteProtocol, WriteQuery};
use crate::endpoint::sending::{AwaitedPacket, Bulk, Outbound};
use crate::endpoint::sending::{RequestHead, Stream, WriteHead};
use crate::endpoint::subprotocols::outgoing_message::check_pieces;

/// The memory of a peer that an operation of `length` bytes names.
pub(crate) fn remote_pieces(remote: &[RemoteIoVec], length: u64) -> Result<RmaIovs, EndpointError> {
    if remote.len() > IOV_LIMIT {
        return Err(EndpointError::OutOfRange {
            what: "number of remote pieces",
            value: remote.len() as u64,
            limit: IOV_LIMIT as u64,
        });
    }
    let pieces = RmaIovs::first_of(
        remote
            .iter()
            .map(|piece| RmaIov::new(piece.address, piece.length, piece.key.0)),
    );
    match pieces.total_len() {
        Some(total) if total == length => Ok(pieces),
        total => Err(EndpointError::LengthMismatch {
            local: length,
            remote: total.unwrap_or(u64::MAX),
        }),
    }
}

// The requester's side.
impl<N: Nic> SendSide<'_, N> {
    pub(crate) fn start_write(&mut self, args: &WriteArgs<'_>) -> Result<(), EndpointError> {
        let length = total_length(args.data);
        check_pieces(args.data.len())?;
        let target = remote_pieces(args.remote, length)?;
        let inject = args.flags.contains(OperationFlags::INJECT);
        self.channel.sizes.check_inject(inject, length)?;
        self.channel.peers.check(args.peer)?;
        let delivery_complete = args.flags.contains(OperationFlags::DELIVERY_COMPLETE) && !inject;
        let features = self.channel.peers.features(args.peer).copied();
        let options = self
            .channel
            .request_options(features.as_ref(), args.cq_data);
        let head = WriteHead {
            target,
            delivery_complete,
            options,
        };
        let report = Report {
            context: args.context,
            flags: CompletionFlags::RMA | CompletionFlags::WRITE,
            success: args.flags.contains(OperationFlags::COMPLETION) && !inject,
        };
        let header = eager_header(&head, SendId(0)).header_len();
        let query = WriteQuery {
            length,
            eager_capacity: self.channel.sizes.mtu.saturating_sub(header) as u64,
            delivery_complete,
            inject,
            fits_rdma: self.channel.sizes.fits_rdma(args, length),
        };
        let mut local = self.channel.local;
        let mut protocol = match choice::write(&local, features.as_ref(), &query) {
            Ok(protocol) => protocol,
            Err(reason) => return Err(self.channel.no_protocol(args.peer, reason)),
        };
        let mut registered = None;
        if let Some(access) = protocol.registration() {
            registered = self.channel.register_source(args.data, access)?;
            if registered.is_none() {
                local = local.without_rdma();
                protocol = match choice::write(&local, features.as_ref(), &query) {
                    Ok(protocol) => protocol,
                    Err(reason) => return Err(self.channel.no_protocol(args.peer, reason)),
                };
            }
        }
        tracing::debug!(
            peer = %args.peer,
            subprotocol = ?protocol,
            length,
            reason = choice::why_write(&local, features.as_ref(), &query, protocol),
            "write"
        );
        let request = RequestHead::Write(head);
        match (protocol, registered) {
            (WriteProtocol::Direct, Some(data)) => {
                return self.write_direct(args, data, length, target, report);
            }
            (WriteProtocol::LongRead, Some(data)) => {
                self.start_long_read(args.peer, report, data, length, request)?;
            }
            (WriteProtocol::Eager, _) => self.write_eager(args, length, &head, report)?,
            (WriteProtocol::LongCts | WriteProtocol::LongRead | WriteProtocol::Direct, _) => {
                let source = Iov::new(args.data)?;
                self.start_long_cts(args.peer, report, source, length, request)?;
            }
        }
        if let Some(state) = self.channel.peers.state_mut(args.peer) {
            state.handshake.request_sent();
        }
        Ok(())
    }

    fn write_eager(
        &mut self,
        args: &WriteArgs<'_>,
        length: u64,
        head: &WriteHead,
        report: Report,
    ) -> Result<(), EndpointError> {
        let awaited = AwaitedPacket::for_packets(head.delivery_complete);
        let outbound = Outbound::one_packet(args.peer, None, report, length, awaited);
        let Some(id) = self.sending.start(outbound) else {
            return Err(EndpointError::TryAgain);
        };
        let may_gather = !args.flags.contains(OperationFlags::INJECT);
        let header = eager_header(head, SendId(id.to_wire()));
        let posted = self
            .channel
            .posting
            .start_packet(&header)
            .and_then(|mut packet| {
                let all = (0, length as usize);
                self.channel.attach(
                    &mut packet,
                    Protocol::EagerWrite,
                    args.data,
                    all,
                    may_gather,
                )?;
                self.channel
                    .post_packet(args.peer, PacketOwner::Outbound(id), packet)
            });
        if posted.is_err() {
            self.sending.discard(id);
        }
        posted
    }

    /// Writes by RDMA.
    fn write_direct(
        &mut self,
        args: &WriteArgs<'_>,
        data: Registered,
        length: u64,
        target: RmaIovs,
        report: Report,
    ) -> Result<(), EndpointError> {
        let Registered {
            pieces: source,
            own_regions,
        } = data;
        let immediate = args.cq_data.map(|data| immediate::of_cq_data(data as u32));
        let bulk = Bulk {
            own_regions,
            ..Bulk::new(source, length, Stream::RdmaWrite(target, immediate))
        };
        let id = self.new_bulk(
            args.peer,
            Some(report),
            length,
            AwaitedPacket::Nothing,
            bulk,
        )?;
        self.start_stream(id)
    }
}

fn eager_header(head: &WriteHead, send_id: SendId) -> EagerRtw {
    EagerRtw {
        rma_iov: head.target,
        receipt: head.delivery_complete.then_some(send_id),
        options: ReqOptions { ..head.options },
    }
}

// The responder's side.
impl<N: Nic> ReceiveSide<'_, N> {
    /// Handles a peer's write of local memory with all data in the request.
    pub(crate) fn on_eager_write(
        &mut self,
        peer: PeerId,
        packet_type: PacketType,
        eager: &EagerRtw,
        packet: &ReceivedPacket,
        payload: Payload,
    ) {
        let length = payload.length as u64;
        let (iov, options) = (&eager.rma_iov, &eager.options);
        let Some((target, ending)) = self.written(peer, packet_type, iov, length, options) else {
            return;
        };
        let copied = copy_out(
            self.channel.posting.nic_mut(),
            packet,
            payload.offset,
            payload.length,
            target.as_slice(),
            0,
        );
        self.channel
            .reports
            .statistics
            .note_received(Protocol::EagerWrite, length);
        let failure = copied.is_err().then_some(Failure::COPY_FAILED);
        if let Some(send_id) = eager.receipt
            && failure.is_none()
        {
            self.channel.queue_receipt(peer, send_id, MsgId(0));
        }
        // A write without pieces and data only requests a HANDSHAKE.
        if iov.count() == 0 && options.cq_data.is_none() {
            return;
        }
        self.end_inbound(&ending, peer, length, length, failure);
    }

    /// Handles a peer's write of local memory in windows.
    pub(crate) fn on_longcts_write(
        &mut self,
        peer: PeerId,
        packet_type: PacketType,
        long: &LongctsRtw,
        packet: &ReceivedPacket,
        payload: Payload,
    ) {
        let (iov, length) = (&long.rma_iov, long.msg_length);
        let Some(id) = self.begin_write(peer, packet_type, iov, length, &long.options) else {
            return;
        };
        if let Some(transfer) = self.receiving.transfers.get_mut(id) {
            transfer.windows_follow(long.send_id, long.delivery_complete);
        }
        if self.take_data(id, packet, payload, 0, Protocol::LongCtsWrite, false) {
            self.go_on_with(id);
        } else {
            self.fail_inbound(id, Failure::SIZE_MISMATCH);
        }
    }

    /// Handles a peer's write of local memory with data that this endpoint reads from the peer's
    /// memory.
    pub(crate) fn on_longread_write(
        &mut self,
        peer: PeerId,
        packet_type: PacketType,
        long: &LongreadRtw,
    ) {
        let (iov, length) = (&long.rma_iov, long.msg_length);
        let Some(id) = self.begin_write(peer, packet_type, iov, length, &long.options) else {
            return;
        };
        if long.read_iov.total_len() != Some(length) {
            return self.fail_inbound(id, Failure::SIZE_MISMATCH);
        }
        if let Some(transfer) = self.receiving.transfers.get_mut(id) {
            transfer.note_sender(long.send_id);
        }
        self.start_reads(id, long.read_iov, 0);
        self.go_on_with(id);
    }

    /// Starts a peer's write of more than one packet. Returns `None` if it is not allowed.
    fn begin_write(
        &mut self,
        peer: PeerId,
        packet_type: PacketType,
        rma_iov: &RmaIovs,
        length: u64,
        options: &ReqOptions,
    ) -> Option<InboundId> {
        let (target, ending) = self.written(peer, packet_type, rma_iov, length, options)?;
        if !self.channel.begin_request(peer, packet_type) {
            return None;
        }
        let transfer = Transfer::new(peer, MsgId(0), length, target, ending);
        let id = self.receiving.start(transfer)?;
        self.channel.quota.begin_operation(peer);
        Some(id)
    }

    /// The target of a peer's write, and how its end is reported. Returns `None` if the write is
    /// not allowed.
    fn written(
        &mut self,
        peer: PeerId,
        packet_type: PacketType,
        rma_iov: &RmaIovs,
        length: u64,
        options: &ReqOptions,
    ) -> Option<(Iov, TransferEnding)> {
        let cq_data = options.cq_data;
        if rma_iov.total_len() != Some(length) {
            self.channel
                .reports
                .refuse(Some(peer), packet_type.code(), PacketError::SizeMismatch);
            return None;
        }
        let Some(target) = self.exposed.memory(rma_iov, Access::REMOTE_WRITE) else {
            self.channel.reports.refuse_memory(peer, packet_type);
            return None;
        };
        let mut flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE;
        flags.set(CompletionFlags::REMOTE_CQ_DATA, cq_data.is_some());
        let ending = TransferEnding {
            context: 0,
            // A peer's write without CQ data is not reported to the application.
            report_success: cq_data.is_some(),
            flags,
            tag: 0,
            cq_data,
            recipient: ReportRecipient::Target(packet_type),
            part: None,
        };
        Some((target, ending))
    }
}
