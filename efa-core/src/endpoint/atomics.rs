//! Atomics (spec section 3.3): one request, and a response with the old values if they are wanted. They
//! take their turn among the messages of their sender.

use crate::endpoint::one_sided::AtomicResponse;
use crate::nic::{Access, Domain, Nic, UserSlice};
use crate::wire::{
    AtomRsp, AtomicOp, MsgId, Packet, PacketType, Payload, RecvId, Repr, Rta, RtaKind, SendId,
};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{CompletionFlags, Event};
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::operation::{AtomicArgs, AtomicKind, IoVec, OperationFlags};
use crate::endpoint::api::reports::Report;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::iov::{Iov, total_length};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::one_sided::arithmetic;
use crate::endpoint::posting::{Owner, Work};
use crate::endpoint::receiving::{Audience, Ending, Transfer};
use crate::endpoint::sending::choice::{self, AtomicQuery};
use crate::endpoint::sending::{Awaited, Outbound};
use crate::endpoint::subprotocols::intake::COPY_FAILED;
use crate::endpoint::subprotocols::long_cts::SIZE_MISMATCH;
use crate::endpoint::subprotocols::outgoing_message::check_pieces;
use crate::endpoint::subprotocols::write::remote_pieces;

/// Bytes of the largest element: a complex number of two long doubles.
const LARGEST_ELEMENT: usize = 32;

/// Header of ATOMRSP in bytes.
const ATOMRSP_HEADER: usize = PacketType::AtomRsp.header_len(0, 0);

// The requester's side.
impl<N: Nic> Endpoint<N> {
    pub(crate) fn start_atomic(&mut self, args: &AtomicArgs<'_>) -> Result<(), EndpointError> {
        let length = total_length(args.operand);
        check_pieces(args.operand.len())?;
        let limit = self.channel.sizes.atomic(args.kind) as u64;
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
        let (result, comparand): (Option<&[IoVec]>, &[IoVec]) = match args.kind {
            AtomicKind::Write => (None, &[]),
            AtomicKind::Fetch { result } => (Some(result), &[]),
            AtomicKind::Compare { result, comparand } => {
                same_length(comparand)?;
                (Some(result), comparand)
            }
        };
        if let Some(result) = result {
            same_length(result)?;
        }
        let (_, state) = self.channel.peers.check_sequence(args.peer)?;
        let inject = args.flags.contains(OperationFlags::INJECT);
        let delivery_complete =
            args.flags.contains(OperationFlags::DELIVERY_COMPLETE) && !inject && result.is_none();
        let features = state.and_then(|state| state.handshake.features());
        let msg_id = self.channel.peers.next_msg_id(state);
        let query = AtomicQuery {
            datatype: args.datatype,
            is_compare: args.kind.is_compare(),
            remote_pieces: args.remote.len(),
            delivery_complete,
        };
        if let Err(reason) = choice::atomic(features, &query) {
            return self.channel.no_protocol(args.peer, reason);
        }
        let options = self.channel.request_options(features, None);
        let (kind, owner) =
            self.remember_atomic(args, msg_id, length, result, delivery_complete)?;
        let header = Rta {
            kind,
            msg_id,
            atomic_datatype: args.datatype,
            atomic_op: args.operation,
            rma_iov: target,
            options,
        };
        let posted = self
            .channel
            .posting
            .start_packet(&header)
            .and_then(|mut packet| {
                for operand in [args.operand, comparand] {
                    let length = total_length(operand) as usize;
                    let copied =
                        self.channel
                            .posting
                            .attach(&mut packet, operand, 0, length, false)?;
                    self.channel
                        .reports
                        .statistics
                        .note_sent(Protocol::Atomic, copied);
                }
                packet.sequenced = Some(msg_id);
                self.channel.post_packet(args.peer, owner, packet)
            });
        if let Err(error) = posted {
            match owner {
                Owner::Outbound(id) => self.send_side().discard_outbound(id),
                Owner::Inbound(id) => {
                    self.receiving.finish(id);
                }
                Owner::Whole(_) | Owner::Nobody | Owner::Provocation => {}
            }
            return Err(error);
        }
        self.channel.request_posted(args.peer);
        Ok(())
    }

    /// Makes the operation that an atomic ends with: a send, or the read of the old values.
    fn remember_atomic(
        &mut self,
        args: &AtomicArgs<'_>,
        msg_id: MsgId,
        length: u64,
        result: Option<&[IoVec]>,
        delivery_complete: bool,
    ) -> Result<(RtaKind, Owner), EndpointError> {
        let report_success = args.flags.contains(OperationFlags::COMPLETION);
        let Some(result) = result else {
            let inject = args.flags.contains(OperationFlags::INJECT);
            let report = Report {
                context: args.context,
                flags: CompletionFlags::ATOMIC | CompletionFlags::WRITE,
                success: report_success && !inject,
            };
            let awaited = Awaited::for_packets(delivery_complete);
            let outbound = Outbound::one_packet(args.peer, Some(msg_id), report, length, awaited);
            let id = self
                .sending
                .start(outbound)
                .ok_or(EndpointError::TryAgain)?;
            let kind = match delivery_complete {
                true => RtaKind::DcWrite(SendId(id.to_wire())),
                false => RtaKind::Write,
            };
            return Ok((kind, Owner::Outbound(id)));
        };
        let ending = Ending {
            context: args.context,
            report_success,
            flags: CompletionFlags::ATOMIC | CompletionFlags::READ,
            tag: 0,
            cq_data: None,
            audience: Audience::Starter,
            part: None,
        };
        let transfer = Transfer::new(args.peer, MsgId(0), length, Iov::new(result)?, ending);
        let id = self
            .receiving
            .start(transfer)
            .ok_or(EndpointError::TryAgain)?;
        let recv_id = RecvId(id.to_wire());
        let kind = match args.kind.is_compare() {
            true => RtaKind::Compare(recv_id),
            false => RtaKind::Fetch(recv_id),
        };
        Ok((kind, Owner::Inbound(id)))
    }
}

// The responder's side.
impl<N: Nic> Endpoint<N> {
    /// Handles an atomic whose turn has come.
    pub(crate) fn on_atomic(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        incoming: &Packet,
        rta: &Rta,
    ) {
        let packet_type = incoming.base.packet_type;
        let operand = incoming.payload;
        if let Err(failure) = self.carry_out(peer, &packet, operand, rta) {
            self.channel.reports.event(Event::RemoteOperationFailed {
                peer,
                packet_type: packet_type.code(),
                failure,
            });
        }
        self.channel.posting.release(packet);
    }

    fn carry_out(
        &mut self,
        peer: PeerId,
        packet: &ReceivedPacket,
        payload: Payload,
        rta: &Rta,
    ) -> Result<(), Failure> {
        const BAD_TYPE: Failure = Failure::new(Errno::EINVAL, ProviderError::InvalidDatatype);
        const BAD_MEMORY: Failure = Failure::new(Errno::EINVAL, ProviderError::RmaAddress);
        let is_compare = matches!(rta.kind, RtaKind::Compare(_));
        let size = arithmetic::check(rta.atomic_datatype, rta.atomic_op, is_compare)
            .map_err(|_| BAD_TYPE)?;
        let total = rta.rma_iov.total_len().unwrap_or(u64::MAX);
        let operands = if is_compare { 2 } else { 1 };
        if total.checked_mul(operands) != Some(payload.length as u64)
            || total + ATOMRSP_HEADER as u64 > self.channel.sizes.mtu as u64
            || rta
                .rma_iov
                .iter()
                .any(|piece| piece.len() % size as u64 != 0)
        {
            return Err(SIZE_MISMATCH);
        }
        let total = total as usize;
        let access = if rta.atomic_op == AtomicOp::ATOMIC_READ {
            Access::REMOTE_READ
        } else {
            Access::REMOTE_WRITE
        };
        let target = self
            .one_sided
            .exposed
            .memory(&rta.rma_iov, access)
            .ok_or(BAD_MEMORY)?;
        let mut values = self.one_sided.take_scratch();
        let result = (|| {
            // The old values come first, then the operands and comparands of the request.
            let bytes = packet.bytes(self.channel.posting.nic());
            let came = bytes.get(payload.offset..).unwrap_or_default();
            values.resize(total, 0);
            values.extend_from_slice(came);
            let (old, came) = values.split_at_mut(total);
            let (operand, comparand) = came.split_at(total);
            let nic = self.channel.posting.nic_mut();
            let pieces = target.as_slice().iter();
            let addresses = pieces.flat_map(|piece| {
                let UserSlice { address, length } = piece.memory;
                (address..address + length as u64).step_by(size)
            });
            for (address, at) in addresses.zip((0..total).step_by(size)) {
                let element = at..at + size;
                let old = &mut old[element.clone()];
                nic.read_user(address, old).map_err(|_| COPY_FAILED)?;
                if rta.atomic_op == AtomicOp::ATOMIC_READ {
                    continue;
                }
                let comparand = comparand.get(element.clone()).unwrap_or_default();
                let mut new = [0; LARGEST_ELEMENT];
                let new = &mut new[..size];
                // The application or other peers may change the memory meanwhile.
                loop {
                    arithmetic::apply(
                        rta.atomic_datatype,
                        rta.atomic_op,
                        old,
                        &operand[element.clone()],
                        comparand,
                        new,
                    );
                    if nic
                        .exchange_user(address, old, new)
                        .map_err(|_| COPY_FAILED)?
                    {
                        break;
                    }
                }
            }
            Ok(())
        })();
        if result.is_ok() {
            match rta.kind {
                RtaKind::Write => {}
                RtaKind::DcWrite(send_id) => self.channel.queue_receipt(peer, send_id, MsgId(0)),
                RtaKind::Fetch(recv_id) | RtaKind::Compare(recv_id) => {
                    let values = &values[..total];
                    if self.send_old_values(peer, recv_id, values).is_err() {
                        self.queue_atomic_response(AtomicResponse {
                            peer,
                            recv_id,
                            values: values.into(),
                        });
                    }
                }
            }
        }
        self.one_sided.put_scratch(values);
        result
    }

    /// Sends ATOMRSP.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    fn send_old_values(
        &mut self,
        peer: PeerId,
        recv_id: RecvId,
        values: &[u8],
    ) -> Result<(), EndpointError> {
        let header = AtomRsp {
            connid: Some(self.channel.address.qkey.into()),
            recv_id,
            seg_length: values.len() as u64,
            ..AtomRsp::default()
        };
        debug_assert_eq!(header.header_len(), ATOMRSP_HEADER);
        let posted = self
            .channel
            .posting
            .start_packet(&header)
            .and_then(|mut packet| {
                self.channel.posting.attach_bytes(&mut packet, values);
                self.channel.post_packet(peer, Owner::Nobody, packet)
            });
        self.channel
            .control_posted(peer, PacketType::AtomRsp, posted)
    }

    /// Queues an ATOMRSP until there is room for it.
    fn queue_atomic_response(&mut self, response: AtomicResponse) {
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
    pub(crate) fn send_atomic_response(&mut self, key: u32) -> Result<(), EndpointError> {
        let Some(response) = self.one_sided.take_response(key) else {
            return Ok(());
        };
        let sent = self.send_old_values(response.peer, response.recv_id, &response.values);
        if sent.is_err() {
            // The slot that was just freed is the next one taken, so the key stays.
            let again = self.one_sided.keep_response(response);
            debug_assert_eq!(again, key);
        }
        sent
    }
}
