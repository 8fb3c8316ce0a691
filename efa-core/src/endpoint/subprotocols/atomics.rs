//! Atomics (spec section 3.3): one request, and a response with the old values if they are
//! requested. They take their turn among the messages of their sender.
//!
//! The requester of an atomic that fetches receives the old values as it receives the data of a
//! read. Otherwise it is the source of the data.

use crate::endpoint::api::completion::{CompletionFlags, Event};
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{AtomicArgs, AtomicKind, IoVec, OperationFlags};
use crate::endpoint::api::reports::Report;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::channel::{Channel, atomic_operand};
use crate::endpoint::memory::iov::{Iov, total_length};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::one_sided::{AtomicResponse, OneSided, arithmetic};
use crate::endpoint::posting::{PacketOwner, Work};
use crate::endpoint::receiving::{ReportRecipient, Transfer, TransferEnding};
use crate::endpoint::sending::choice::{self, AtomicQuery};
use crate::endpoint::sending::{AwaitedPacket, Outbound};
use crate::endpoint::subprotocols::outgoing_message::check_pieces;
use crate::endpoint::subprotocols::write::remote_pieces;
use crate::endpoint::subprotocols::{ReceiveSide, SendSide};
use crate::nic::{Nic, NicAttributes};
use crate::wire::{
    AtomRsp, AtomicDatatype, AtomicOp, MsgId, Packet, PacketType, RecvId, Repr, ReqOptions,
    RmaIovs, Rta, RtaKind, SendId,
};

/// Header of ATOMRSP in bytes.
const ATOMRSP_HEADER: usize = PacketType::AtomRsp.header_len(0, 0);

/// How large an atomic operation may be (`fi_atomic_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicLimits {
    /// Elements of one operation.
    pub count: usize,
    /// Bytes of an element.
    pub size: usize,
}

/// Returns the maximum size of an operation on a device with these attributes; `None` if it is not
/// defined for the data type and the kind of call (`fi_query_atomic`). Memory in `kind` is ignored.
pub fn atomic_limits(
    attributes: &NicAttributes,
    datatype: AtomicDatatype,
    operation: AtomicOp,
    kind: AtomicKind<'_>,
) -> Option<AtomicLimits> {
    // A read without a result would have no effect, so the operation is only defined with a result.
    if operation == AtomicOp::ATOMIC_READ && !matches!(kind, AtomicKind::Fetch { .. }) {
        return None;
    }
    let size = arithmetic::check(datatype, operation, kind.is_compare()).ok()?;
    let count = atomic_operand(attributes.mtu, kind) / size;
    Some(AtomicLimits { count, size })
}

/// An atomic of the application whose arguments are consistent, and whose peer can accept it now.
struct AtomicRequest {
    target: RmaIovs,
    /// In bytes, of the operand and of all other buffers.
    length: u64,
    msg_id: MsgId,
    options: ReqOptions,
}

impl AtomicRequest {
    fn new<N: Nic>(
        channel: &mut Channel<N>,
        args: &AtomicArgs<'_>,
        delivery_complete: bool,
    ) -> Result<Self, EndpointError> {
        let length = total_length(args.operand);
        check_pieces(args.operand.len())?;
        let limit = channel.sizes.atomic(args.kind) as u64;
        if length > limit {
            return Err(EndpointError::OutOfRange {
                what: "length of an atomic's operand",
                value: length,
                limit,
            });
        }
        arithmetic::check(args.datatype, args.operation, args.kind.is_compare())
            .map_err(EndpointError::Unsupported)?;
        let target = remote_pieces(args.remote, length)?;
        let same_length = |pieces: &[IoVec]| match total_length(pieces) {
            other if other == length => Ok(()),
            other => Err(EndpointError::LengthMismatch {
                local: length,
                remote: other,
            }),
        };
        match args.kind {
            AtomicKind::Write => {}
            AtomicKind::Fetch { result } => same_length(result)?,
            AtomicKind::Compare { result, comparand } => {
                same_length(comparand)?;
                same_length(result)?;
            }
        }
        let (_, state) = channel.peers.check_sequence(args.peer)?;
        let features = state.and_then(|state| state.handshake.features());
        let msg_id = channel.peers.next_msg_id(state);
        let query = AtomicQuery {
            datatype: args.datatype,
            is_compare: args.kind.is_compare(),
            remote_pieces: args.remote.len(),
            delivery_complete,
        };
        if let Err(reason) = choice::atomic(features, &query) {
            return Err(channel.no_protocol(args.peer, reason));
        }
        Ok(AtomicRequest {
            target,
            length,
            msg_id,
            options: channel.request_options(features, None),
        })
    }

    /// Posts the packet of the request.
    fn post<N: Nic>(
        &self,
        channel: &mut Channel<N>,
        args: &AtomicArgs<'_>,
        kind: RtaKind,
        owner: PacketOwner,
    ) -> Result<(), EndpointError> {
        let mut packet = channel.posting.start_packet(&Rta {
            kind,
            msg_id: self.msg_id,
            atomic_datatype: args.datatype,
            atomic_op: args.operation,
            rma_iov: self.target,
            options: self.options,
        })?;
        let comparand = match args.kind {
            AtomicKind::Compare { comparand, .. } => comparand,
            AtomicKind::Write | AtomicKind::Fetch { .. } => &[],
        };
        for operand in [args.operand, comparand] {
            let all = (0, total_length(operand) as usize);
            channel.attach(&mut packet, Protocol::Atomic, operand, all, false)?;
        }
        packet.sequenced = Some(self.msg_id);
        channel.post_packet(args.peer, owner, packet)?;
        channel.request_posted(args.peer);
        Ok(())
    }
}

impl<N: Nic> SendSide<'_, N> {
    /// Starts an atomic that returns no old values.
    pub(crate) fn start_atomic_write(
        &mut self,
        args: &AtomicArgs<'_>,
    ) -> Result<(), EndpointError> {
        let inject = args.flags.contains(OperationFlags::INJECT);
        let delivery_complete = args.flags.contains(OperationFlags::DELIVERY_COMPLETE) && !inject;
        let request = AtomicRequest::new(self.channel, args, delivery_complete)?;
        let report = Report {
            context: args.context,
            flags: CompletionFlags::ATOMIC | CompletionFlags::WRITE,
            success: args.flags.contains(OperationFlags::COMPLETION) && !inject,
        };
        let awaited = AwaitedPacket::for_packets(delivery_complete);
        let (msg_id, length) = (Some(request.msg_id), request.length);
        let outbound = Outbound::one_packet(args.peer, msg_id, report, length, awaited);
        let started = self.sending.start(outbound);
        let id = started.ok_or(EndpointError::TryAgain)?;
        let kind = match delivery_complete {
            true => RtaKind::DcWrite(SendId(id.to_wire())),
            false => RtaKind::Write,
        };
        request
            .post(self.channel, args, kind, PacketOwner::Outbound(id))
            .inspect_err(|_| self.discard_outbound(id))
    }
}

impl<N: Nic> ReceiveSide<'_, N> {
    /// Starts an atomic whose old values go to `result`.
    pub(crate) fn start_fetching_atomic(
        &mut self,
        args: &AtomicArgs<'_>,
        result: &[IoVec],
    ) -> Result<(), EndpointError> {
        let request = AtomicRequest::new(self.channel, args, false)?;
        let ending = TransferEnding {
            context: args.context,
            report_success: args.flags.contains(OperationFlags::COMPLETION),
            flags: CompletionFlags::ATOMIC | CompletionFlags::READ,
            tag: 0,
            cq_data: None,
            recipient: ReportRecipient::Starter,
            part: None,
        };
        let target = Iov::new(result)?;
        let transfer = Transfer::new(args.peer, MsgId(0), request.length, target, ending);
        let started = self.receiving.start(transfer);
        let id = started.ok_or(EndpointError::TryAgain)?;
        let recv_id = RecvId(id.to_wire());
        let kind = match args.kind.is_compare() {
            true => RtaKind::Compare(recv_id),
            false => RtaKind::Fetch(recv_id),
        };
        request
            .post(self.channel, args, kind, PacketOwner::Inbound(id))
            .inspect_err(|_| {
                self.receiving.finish(id);
            })
    }
}

/// This endpoint as the target of its peers' atomics.
pub(crate) struct AtomicTarget<'a, N> {
    pub(crate) channel: &'a mut Channel<N>,
    pub(crate) one_sided: &'a mut OneSided,
}

impl<N: Nic> AtomicTarget<'_, N> {
    /// Handles an atomic whose turn has come.
    pub(crate) fn on_atomic(
        &mut self,
        peer: PeerId,
        packet: &ReceivedPacket,
        incoming: &Packet,
        rta: &Rta,
    ) {
        let limit = self.channel.sizes.mtu - ATOMRSP_HEADER;
        let nic = self.channel.posting.nic_mut();
        let operands = incoming.payload;
        if let Err(failure) = self.one_sided.carry_out(nic, packet, operands, rta, limit) {
            return self.channel.reports.event(Event::RemoteOperationFailed {
                peer,
                packet_type: incoming.base.packet_type.code(),
                failure,
            });
        }
        let direction = match rta.kind {
            RtaKind::Write | RtaKind::DcWrite(_) => CompletionFlags::REMOTE_WRITE,
            RtaKind::Fetch(_) | RtaKind::Compare(_) => CompletionFlags::REMOTE_READ,
        };
        // An atomic without memory only fills the place of a lost message.
        if rta.rma_iov.count() > 0 {
            let flags = CompletionFlags::ATOMIC | direction;
            self.channel.reports.succeeded_silently(flags);
        }
        match rta.kind {
            RtaKind::Write => {}
            RtaKind::DcWrite(send_id) => self.channel.queue_receipt(peer, send_id, MsgId(0)),
            RtaKind::Fetch(recv_id) | RtaKind::Compare(recv_id) => {
                let values = self.one_sided.old_values();
                if send_old_values(self.channel, peer, recv_id, values).is_err() {
                    let values = values.into();
                    self.queue_response(AtomicResponse {
                        peer,
                        recv_id,
                        values,
                    });
                }
            }
        }
    }

    /// Queues an ATOMRSP until there is room for it.
    fn queue_response(&mut self, response: AtomicResponse) {
        let peer = response.peer;
        if self.channel.begin_answer(peer, PacketType::AtomRsp) {
            let key = self.one_sided.keep_response(response);
            self.channel
                .posting
                .queue(Work::AtomicResponse { peer, key });
        }
    }

    /// Sends an ATOMRSP that was queued.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn send_queued_response(&mut self, key: u32) -> Result<(), EndpointError> {
        let Some(response) = self.one_sided.take_response(key) else {
            return Ok(());
        };
        let AtomicResponse { peer, recv_id, .. } = response;
        let sent = send_old_values(self.channel, peer, recv_id, &response.values);
        if sent.is_err() {
            // The slot that was just freed is the next one used, so the key stays.
            let again = self.one_sided.keep_response(response);
            debug_assert_eq!(again, key);
        }
        sent
    }
}

/// Sends ATOMRSP.
///
/// # Errors
/// Only [`EndpointError::TryAgain`].
fn send_old_values<N: Nic>(
    channel: &mut Channel<N>,
    peer: PeerId,
    recv_id: RecvId,
    values: &[u8],
) -> Result<(), EndpointError> {
    let header = AtomRsp {
        connid: Some(channel.address.qkey.into()),
        recv_id,
        seg_length: values.len() as u64,
        ..AtomRsp::default()
    };
    debug_assert_eq!(header.header_len(), ATOMRSP_HEADER);
    let posted = channel
        .posting
        .start_packet(&header)
        .and_then(|mut packet| {
            channel.posting.attach_bytes(&mut packet, values);
            channel.post_packet(peer, PacketOwner::Control, packet)
        });
    channel.control_posted(peer, PacketType::AtomRsp, posted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::Domain as _;
    use crate::nic::fake::fake_nic;

    #[test]
    fn limits_are_those_of_one_packet() {
        let nic = fake_nic(1);
        let attributes = nic.attributes();
        let limits =
            |datatype, operation, kind| atomic_limits(attributes, datatype, operation, kind);
        let (result, comparand) = (&[][..], &[][..]);
        let fetch = AtomicKind::Fetch { result };
        let compare = AtomicKind::Compare { result, comparand };
        let sum = limits(AtomicDatatype::INT32, AtomicOp::SUM, AtomicKind::Write).unwrap();
        assert_eq!(sum.size, 4);
        assert_eq!(
            sum.count,
            atomic_operand(attributes.mtu, AtomicKind::Write) / 4
        );
        let swap = limits(AtomicDatatype::INT32, AtomicOp::CSWAP, compare).unwrap();
        assert_eq!(swap.count, sum.count / 2);
        let read = (AtomicDatatype::INT8, AtomicOp::ATOMIC_READ);
        assert!(limits(read.0, read.1, fetch).is_some());
        for kind in [AtomicKind::Write, compare] {
            assert_eq!(limits(read.0, read.1, kind), None);
        }
        assert_eq!(limits(AtomicDatatype::FLOAT, AtomicOp::BOR, fetch), None);
        assert_eq!(limits(AtomicDatatype(99), AtomicOp::SUM, fetch), None);
    }
}
