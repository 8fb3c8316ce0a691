//! The application sends a message: the choice of a subprotocol, and what all of them share.

use crate::nic::{Access, Destination, Nic};
use crate::wire::{EagerRtm, MsgId, Repr, SendId};

use crate::endpoint::api::completion::CompletionFlags;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{OperationFlags, SendArgs};
use crate::endpoint::api::reports::Report;
use crate::endpoint::base::ids::{OutboundId, PeerId};
use crate::endpoint::conversation::Conversation;
use crate::endpoint::memory::iov::{Iov, total_length};
use crate::endpoint::peers::handshake::PeerFeatures;
use crate::endpoint::posting::Work;
use crate::endpoint::receiving::message_flags;
use crate::endpoint::sending::choice::{self, MessageProtocol, MessageQuery, NoProtocol};
use crate::endpoint::sending::{Awaited, Bulk};
use crate::endpoint::sending::{MessageHead, Request, Stream, segment_size};
use crate::endpoint::{Endpoint, IOV_LIMIT};

impl<N: Nic> Endpoint<N> {
    pub(crate) fn start_send(&mut self, args: &SendArgs<'_>) -> Result<(), EndpointError> {
        let length = total_length(args.data);
        let inject = args.flags.contains(OperationFlags::INJECT);
        check_pieces(args.data.len())?;
        self.check_inject(inject, length)?;
        let (destination, state) = self.check_sequence(args.peer)?;
        let features = state.and_then(|state| state.handshake.features());
        let options = self.request_options(features, args.cq_data);
        // Stock libfabric keeps injected data out of delivery complete: nobody hears of its end.
        let delivery_complete = args.flags.contains(OperationFlags::DELIVERY_COMPLETE) && !inject;
        // As if it were to fit one packet; the operation that RECEIPT has to name is not known yet.
        let mut header = EagerRtm {
            msg_id: self.next_msg_id(state),
            tag: args.tag,
            receipt: delivery_complete.then_some(SendId(0)),
            options,
        };
        let query = MessageQuery {
            length,
            eager_capacity: self.mtu.saturating_sub(header.header_len()) as u64,
            runt_budget: self.runt_budget(state),
            delivery_complete,
            inject,
            tagged: args.tag.is_some(),
        };
        let protocol = match choice::message(&self.local, features, &query) {
            Ok(protocol) => protocol,
            Err(reason) => return self.no_protocol(args.peer, reason),
        };
        match protocol {
            MessageProtocol::Eager => self.send_eager(args, destination, length, &mut header)?,
            MessageProtocol::Headerless(qpn, qkey) => {
                // It is not part of the sequence of messages.
                return self.send_headerless(args, length, (qpn, qkey));
            }
            _ => self.send_bulk(args, &query, protocol, &mut header)?,
        }
        // Only now: an id that was not used would be a gap that stalls the peer for good.
        self.request_posted(args.peer);
        Ok(())
    }

    /// Notes that a request to a peer was posted, with the next `msg_id`.
    #[inline]
    pub(crate) fn request_posted(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.state_mut(peer) {
            state.sequence.used();
            state.handshake.request_sent();
            if state.sequence.has_gaps() {
                // The peer was away when others were lost.
                self.posting.queue(Work::Fill(peer));
            }
        }
    }

    /// Sends a message that takes more than its first packet. One that the peer was to read, but
    /// whose memory the device does not register, goes as if there were no RDMA.
    fn send_bulk(
        &mut self,
        args: &SendArgs<'_>,
        query: &MessageQuery,
        protocol: MessageProtocol,
        header: &mut EagerRtm,
    ) -> Result<(), EndpointError> {
        let head = MessageHead {
            msg_id: header.msg_id,
            tag: header.tag,
            delivery_complete: query.delivery_complete,
            options: header.options,
        };
        let (peer, length) = (args.peer, query.length);
        let mut protocol = protocol;
        let mut registered = None;
        if protocol.is_read_by_peer() {
            registered = self.register_source(args.data, Access::REMOTE_READ)?;
            if registered.is_none() {
                let features = self.features(peer);
                let local = self.local.without_rdma();
                protocol = match choice::message(&local, features, query) {
                    Ok(protocol) => protocol,
                    Err(reason) => return self.no_protocol(peer, reason),
                };
            }
        }
        let report = Self::send_report(args);
        let request = Request::Message(head);
        match (protocol, registered) {
            (MessageProtocol::LongRead, Some(data)) => {
                self.start_long_read(peer, report, data, length, request)?;
            }
            (MessageProtocol::RuntRead(runt), Some(data)) => {
                self.start_runt_read(peer, report, data, length, head, runt)?;
            }
            (MessageProtocol::Eager, _) => {
                let destination = self.destination(peer)?;
                self.send_eager(args, destination, length, header)?;
            }
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
        Ok(())
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
        // The id has a fixed width, so any serves to measure the header.
        let header = head.medium(OutboundId::from_wire(0), length, 0);
        let size = segment_size(length, self.mtu.saturating_sub(header.header_len()));
        let awaited = Awaited::for_packets(head.delivery_complete);
        let bulk = Bulk::new(source, length, Stream::Medium(head, size));
        let id = self.new_bulk(peer, Some(report), length, awaited, bulk)?;
        self.start_stream(id)
    }

    /// Starts an operation whose data the peer asks for, window by window.
    pub(crate) fn start_long_cts(
        &mut self,
        peer: PeerId,
        report: Report,
        source: Iov,
        length: u64,
        request: Request,
    ) -> Result<OutboundId, EndpointError> {
        let delivery_complete = match request {
            Request::Message(head) => head.delivery_complete,
            Request::Write(head) => head.delivery_complete,
        };
        let bulk = Bulk {
            allowed: 0,
            ..Bulk::new(source, length, Stream::LongCts(request))
        };
        let awaited = Awaited::for_packets(delivery_complete);
        let id = self.new_bulk(peer, Some(report), length, awaited, bulk)?;
        self.start_stream(id)?;
        Ok(id)
    }

    /// Refuses an operation for which there is no protocol, now or at all.
    pub(crate) fn no_protocol(
        &mut self,
        peer: PeerId,
        reason: NoProtocol,
    ) -> Result<(), EndpointError> {
        match reason {
            NoProtocol::AwaitHandshake => self.await_handshake(peer),
            NoProtocol::Unsupported(what) => Err(EndpointError::Unsupported(what)),
        }
    }

    /// Where packets for a peer go with which an operation can be started now, and its state if there
    /// was ever a packet.
    ///
    /// # Errors
    /// No operation can be started.
    #[inline]
    pub(crate) fn check_peer(
        &self,
        peer: PeerId,
    ) -> Result<(Destination, Option<&Conversation>), EndpointError> {
        match self.peers.lookup(peer) {
            None => Err(EndpointError::UnknownPeer(peer)),
            Some((_, Some(state))) if state.failure.is_some() => {
                Err(EndpointError::PeerFailed(peer))
            }
            Some((_, Some(state))) if state.backoff.is_active() => Err(EndpointError::TryAgain),
            Some(known) => Ok(known),
        }
    }

    /// As [`Endpoint::check_peer`], for an operation that takes a `msg_id`.
    #[inline]
    pub(crate) fn check_sequence(
        &self,
        peer: PeerId,
    ) -> Result<(Destination, Option<&Conversation>), EndpointError> {
        match self.check_peer(peer)? {
            (_, Some(state)) if state.sequence.is_broken() => Err(EndpointError::PeerFailed(peer)),
            (_, Some(state)) if state.sequence.is_too_far_ahead() => Err(EndpointError::TryAgain),
            known => Ok(known),
        }
    }

    /// What a peer said about itself, once it has.
    pub(crate) fn features(&self, peer: PeerId) -> Option<&PeerFeatures> {
        self.peers.state(peer)?.handshake.features()
    }

    /// The id of the next message to a peer.
    pub(crate) fn next_msg_id(&self, peer: Option<&Conversation>) -> MsgId {
        peer.map_or(MsgId(self.config.first_msg_id), |state| {
            state.sequence.next()
        })
    }

    /// What to tell the application of a send.
    pub(crate) fn send_report(args: &SendArgs<'_>) -> Report {
        Report {
            context: args.context,
            flags: message_flags(args.tag.is_some(), CompletionFlags::SEND),
            success: args.flags.contains(OperationFlags::COMPLETION)
                && !args.flags.contains(OperationFlags::INJECT),
        }
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
