//! Outgoing messages: the choice of a subprotocol, and the start of the message.

use crate::endpoint::subprotocols::SendSide;
use crate::nic::{Access, Nic};
use crate::wire::{EagerRtm, Repr, SendId};

use crate::endpoint::IOV_LIMIT;
use crate::endpoint::api::completion::CompletionFlags;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{OperationFlags, SendArgs};
use crate::endpoint::api::reports::Report;
use crate::endpoint::base::ids::{OutboundId, PeerId};
use crate::endpoint::memory::iov::{Iov, total_length};
use crate::endpoint::receiving::message_flags;
use crate::endpoint::sending::choice::{self, MessageProtocol, MessageQuery};
use crate::endpoint::sending::{AwaitedPacket, Bulk};
use crate::endpoint::sending::{MessageHead, RequestHead, Stream, segment_size};

impl<N: Nic> SendSide<'_, N> {
    pub(crate) fn start_send(&mut self, args: &SendArgs<'_>) -> Result<(), EndpointError> {
        let length = total_length(args.data);
        let inject = args.flags.contains(OperationFlags::INJECT);
        check_pieces(args.data.len())?;
        self.channel.sizes.check_inject(inject, length)?;
        let (destination, state) = self.channel.peers.check_sequence(args.peer)?;
        let features = state.and_then(|state| state.handshake.features());
        let options = self.channel.request_options(features, args.cq_data);
        // Stock libfabric ignores delivery complete for injected data, because no success is
        // reported.
        let delivery_complete = args.flags.contains(OperationFlags::DELIVERY_COMPLETE) && !inject;
        // The header of an eager message. The operation that RECEIPT names is not known yet.
        let mut header = EagerRtm {
            msg_id: self.channel.peers.next_msg_id(state),
            tag: args.tag,
            receipt: delivery_complete.then_some(SendId(0)),
            options,
        };
        let query = MessageQuery {
            length,
            eager_capacity: self.channel.sizes.mtu.saturating_sub(header.header_len()) as u64,
            runt_budget: state.map_or(self.channel.sizes.runt, |state| {
                state.read_based.runt_budget(self.channel.sizes.runt)
            }),
            delivery_complete,
            inject,
            tagged: args.tag.is_some(),
        };
        let protocol = match choice::message(&self.channel.local, features, &query) {
            Ok(protocol) => protocol,
            Err(reason) => return Err(self.channel.no_protocol(args.peer, reason)),
        };
        let is_eager = match protocol {
            MessageProtocol::Eager => true,
            MessageProtocol::Headerless(qpn, qkey) => {
                // Messages without a header are not part of the sequence.
                return self.send_headerless(args, length, (qpn, qkey));
            }
            _ => {
                let head = MessageHead {
                    msg_id: header.msg_id,
                    tag: header.tag,
                    delivery_complete,
                    options: header.options,
                };
                !self.send_bulk(args, query, protocol, head)?
            }
        };
        if is_eager {
            self.send_eager(args, destination, length, &mut header)?;
        }
        // The id is counted after the post, because an unused id would be a gap that stalls the
        // peer.
        self.channel.request_posted(args.peer);
        Ok(())
    }

    /// Sends a message that needs more than its first packet. If the peer was to read it, but the
    /// device refuses to register its memory, the message is sent without RDMA. If it then fits one
    /// packet, returns false and sends nothing.
    #[inline(never)]
    fn send_bulk(
        &mut self,
        args: &SendArgs<'_>,
        query: MessageQuery,
        protocol: MessageProtocol,
        head: MessageHead,
    ) -> Result<bool, EndpointError> {
        let (peer, length) = (args.peer, query.length);
        let (mut protocol, mut local) = (protocol, self.channel.local);
        let mut registered = None;
        if protocol.is_read_by_peer() {
            registered = self
                .channel
                .register_source(args.data, Access::REMOTE_READ)?;
            if registered.is_none() {
                let features = self.channel.peers.features(peer);
                local = local.without_rdma();
                protocol = match choice::message(&local, features, &query) {
                    Ok(protocol) => protocol,
                    Err(reason) => return Err(self.channel.no_protocol(peer, reason)),
                };
            }
        }
        let report = send_report(args);
        tracing::debug!(
            %peer,
            msg_id = head.msg_id.0,
            subprotocol = ?protocol,
            length,
            reason = choice::why_message(&local, self.channel.peers.features(peer), &query, protocol),
            "message to send"
        );
        let request = RequestHead::Message(head);
        match (protocol, registered) {
            (MessageProtocol::LongRead, Some(data)) => {
                self.start_long_read(peer, report, data, length, request)?;
            }
            (MessageProtocol::RuntRead(runt), Some(data)) => {
                self.start_runt_read(peer, report, data, length, head, runt)?;
            }
            (MessageProtocol::Eager, _) => return Ok(false),
            (MessageProtocol::Medium, _) => {
                let source = Iov::new(args.data)?;
                self.send_medium(peer, report, source, length, head)?;
            }
            (MessageProtocol::Headerless(qpn, qkey), _) => {
                self.send_headerless(args, length, (qpn, qkey))?;
            }
            (
                MessageProtocol::LongCts | MessageProtocol::LongRead | MessageProtocol::RuntRead(_),
                _,
            ) => {
                let source = Iov::new(args.data)?;
                self.start_long_cts(peer, report, source, length, request)?;
            }
        }
        Ok(true)
    }

    /// Sends a message as segments, without flow control (spec section 3.2, medium message).
    fn send_medium(
        &mut self,
        peer: PeerId,
        report: Report,
        source: Iov,
        length: u64,
        head: MessageHead,
    ) -> Result<(), EndpointError> {
        // All ids have the same width, so any one serves to measure the header.
        let header = head.medium(OutboundId::from_wire(0), length, 0);
        let size = segment_size(
            length,
            self.channel.sizes.mtu.saturating_sub(header.header_len()),
        );
        let awaited = AwaitedPacket::for_packets(head.delivery_complete);
        let bulk = Bulk::new(source, length, Stream::Medium(head, size));
        let id = self.new_bulk(peer, Some(report), length, awaited, bulk)?;
        self.start_stream(id)
    }

    /// Starts an operation whose data the peer requests, window by window.
    pub(crate) fn start_long_cts(
        &mut self,
        peer: PeerId,
        report: Report,
        source: Iov,
        length: u64,
        request: RequestHead,
    ) -> Result<OutboundId, EndpointError> {
        let delivery_complete = match request {
            RequestHead::Message(head) => head.delivery_complete,
            RequestHead::Write(head) => head.delivery_complete,
        };
        let bulk = Bulk {
            allowed: 0,
            ..Bulk::new(source, length, Stream::LongCts(request))
        };
        let awaited = AwaitedPacket::for_packets(delivery_complete);
        let id = self.new_bulk(peer, Some(report), length, awaited, bulk)?;
        self.start_stream(id)?;
        Ok(id)
    }
}

/// How the end of a send is reported.
pub(crate) fn send_report(args: &SendArgs<'_>) -> Report {
    Report {
        context: args.context,
        flags: message_flags(args.tag.is_some(), CompletionFlags::SEND),
        success: args.flags.contains(OperationFlags::COMPLETION)
            && !args.flags.contains(OperationFlags::INJECT),
    }
}

pub(crate) fn check_pieces(count: usize) -> Result<(), EndpointError> {
    if count > IOV_LIMIT {
        return Err(EndpointError::OutOfRange {
            what: "number of buffer pieces",
            value: count as u64,
            limit: IOV_LIMIT as u64,
        });
    }
    Ok(())
}
