//! Receive calls of the application, and the reports of receives that end.

use crate::endpoint::api::completion::ErrorEntry;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::api::operation::{
    ClaimedRecvArgs, IoVec, MultiRecvArgs, OperationFlags, RecvArgs,
};
use crate::endpoint::base::ids::{ClaimId, PeerId, ReceiveId};
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::receiving::{
    DeferredOperation, DeferredPart, Filter, NewReceive, PartKey, ReportRecipient, Transfer,
    TransferEnding, UnexpectedMessage, receive_flags,
};
use crate::endpoint::subprotocols::ReceiveSide;
use crate::endpoint::subprotocols::incoming_message::{MessagePart, Rtm};
use crate::nic::Nic;

/// Whether complete messages that wait for room are received when their sender no longer exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CompleteMessages {
    /// They are received.
    Received,
    /// They are dropped, as all others.
    Dropped,
}

// Posting and cancelling.
impl<N: Nic> ReceiveSide<'_, N> {
    pub(crate) fn start_recv(&mut self, args: &RecvArgs<'_>) -> Result<ReceiveId, EndpointError> {
        self.channel.peers.check_source(args.source)?;
        let target = Iov::new(args.buffer)?;
        let tagged = args.tag.is_some();
        let filter = Filter::new(args.source, args.tag);
        if self.receiving.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let report_success = args.flags.contains(OperationFlags::COMPLETION);
        // Usually receives are posted before their messages arrive.
        if self.receiving.unexpected.has_any(tagged)
            && let Some(received) =
                self.receive_unexpected((tagged, filter), args.context, report_success, args.buffer)
        {
            return received;
        }
        let posted = self.receiving.post(NewReceive {
            context: args.context,
            report_success,
            tagged,
            filter,
            target,
        });
        posted.ok_or(EndpointError::TryAgain)
    }

    /// Receives the earliest arrived message that the filter of a receive accepts, if there is one.
    /// The arguments are values, because a reference would keep the arguments of every receive in
    /// memory.
    #[inline(never)]
    fn receive_unexpected(
        &mut self,
        (tagged, filter): (bool, Filter),
        context: u64,
        report_success: bool,
        buffer: &[IoVec],
    ) -> Option<Result<ReceiveId, EndpointError>> {
        let (peer, tag, message) = self.receiving.unexpected.take(tagged, &filter)?;
        let ending = TransferEnding {
            context,
            report_success,
            flags: receive_flags(tagged, message.cq_data),
            tag,
            cq_data: message.cq_data,
            recipient: ReportRecipient::Starter,
            part: None,
        };
        let target = Iov::new(buffer);
        Some(target.and_then(|target| self.receive_at_once(peer, message, target, ending)))
    }

    /// Ends a posted receive that no message has matched. Returns whether there was one.
    pub(crate) fn withdraw_posted(&mut self, id: ReceiveId, failure: Failure) -> bool {
        let Some((context, flags, tag)) = self.receiving.posted.withdraw(id) else {
            return false;
        };
        let entry = ErrorEntry::without_data(context, flags, None, failure);
        self.channel.reports.failed(ErrorEntry { tag, ..entry });
        true
    }

    /// Receives a message that has already arrived. The returned id cannot be cancelled.
    ///
    /// # Errors
    /// As of [`ReceiveSide::receive_arrived`].
    fn receive_at_once(
        &mut self,
        peer: PeerId,
        message: UnexpectedMessage,
        target: Iov,
        ending: TransferEnding,
    ) -> Result<ReceiveId, EndpointError> {
        let id = self.receiving.posted.skip_id();
        let id = id.ok_or(EndpointError::TryAgain)?;
        self.receive_arrived(peer, message, target, ending)?;
        Ok(id)
    }

    /// Receives a message that has already arrived.
    ///
    /// # Errors
    /// [`EndpointError::TryAgain`] if there are too many operations. The caller has to check that
    /// first, because the message is lost then.
    pub(crate) fn receive_arrived(
        &mut self,
        peer: PeerId,
        message: UnexpectedMessage,
        target: Iov,
        ending: TransferEnding,
    ) -> Result<(), EndpointError> {
        let transfer = Transfer::new(peer, message.msg_id, message.length, target, ending);
        let id = self
            .receiving
            .start(transfer)
            .ok_or(EndpointError::TryAgain)?;
        if message.segmented {
            self.receiving.assemble(id);
        }
        let mut next = Some(message.head);
        while let Some((packet, behind)) =
            next.and_then(|deferred| self.channel.take_deferred(peer, deferred))
        {
            next = behind;
            let incoming = self.channel.posting.parse_again(&packet);
            match incoming.as_ref().and_then(Rtm::of) {
                Some(rtm) => self.message_packet(id, peer, &packet, &rtm),
                None => debug_assert!(false, "it was parsed before it had to wait"),
            }
            self.channel.posting.release(packet);
        }
        if let Some(failure) = message.lost {
            self.fail_inbound(id, failure);
        }
        self.receiving.unexpected.left(message);
        Ok(())
    }

    /// Drops a message that no receive matched.
    pub(crate) fn drop_unexpected(&mut self, peer: PeerId, message: UnexpectedMessage) {
        if message.segmented {
            let unexpected = &mut self.receiving.unexpected;
            unexpected.forget_segments(peer, message.msg_id);
        }
        self.channel.drop_deferred(peer, message.head);
        self.receiving.unexpected.left(message);
    }
}

// Multi-receive buffers.
impl<N: Nic> ReceiveSide<'_, N> {
    pub(crate) fn start_multi_recv(
        &mut self,
        args: &MultiRecvArgs,
    ) -> Result<ReceiveId, EndpointError> {
        self.channel.peers.check_source(args.source)?;
        if args.min_free == 0 || args.min_free > args.buffer.memory.length {
            return Err(EndpointError::OutOfRange {
                what: "min_free of a multi-receive buffer",
                value: args.min_free as u64,
                limit: args.buffer.memory.length as u64,
            });
        }
        let filter = Filter::new(args.source, None);
        let receive = NewReceive {
            context: args.context,
            report_success: true,
            tagged: false,
            filter,
            target: Iov::One(args.buffer),
        };
        let posted = self
            .receiving
            .post_multi(receive, args.buffer, args.min_free);
        let id = posted.ok_or(EndpointError::TryAgain)?;
        // Messages that have already arrived are received first.
        while let Some((.., message)) = self.receiving.unexpected.first(false, &filter)
            && let (length, cq_data) = (message.length, message.cq_data)
            && let Some((target, ending)) = self.receiving.posted.next_part(id, length, cq_data)
            && let Some((peer, _, message)) = self.receiving.unexpected.take(false, &filter)
        {
            match self.channel.quota.admits(peer) {
                true => self.receive_part(peer, message, target, ending),
                false => self.defer_part(peer, message, target, ending),
            }
        }
        Ok(id)
    }

    /// Receives a message into a multi-receive buffer that accepts it.
    pub(crate) fn match_multi(
        &mut self,
        receive: ReceiveId,
        peer: PeerId,
        packet: ReceivedPacket,
        rtm: &Rtm<'_>,
    ) {
        let length = rtm.length;
        // A message that ends with its first packet does not block others.
        if !matches!(rtm.extent, MessagePart::Whole(_)) && !self.channel.quota.admits(peer) {
            let Some(head) = self.channel.make_wait(peer, packet, rtm.packet_type) else {
                return;
            };
            let unexpected = &mut self.receiving.unexpected;
            let message = rtm.unexpected(head, unexpected.nothing_arrived(rtm.is_segment()));
            match self
                .receiving
                .posted
                .next_part(receive, length, rtm.cq_data)
            {
                Some((target, ending)) => self.defer_part(peer, message, target, ending),
                None => self.drop_unexpected(peer, message),
            }
            return;
        }
        let part = self
            .receiving
            .posted
            .next_part(receive, length, rtm.cq_data);
        let Some((target, ending)) = part else {
            return self.keep_unexpected(peer, packet, rtm);
        };
        self.channel.quota.begin_operation(peer);
        let transfer = Transfer::new(peer, rtm.msg_id, length, Iov::One(target), ending);
        match self.receiving.start(transfer) {
            Some(id) => self.begin_message(id, peer, packet, rtm),
            // Operations of peers always have room.
            None => self.channel.posting.release(packet),
        }
    }

    /// Makes a message wait that has its part of a multi-receive buffer.
    fn defer_part(
        &mut self,
        peer: PeerId,
        message: UnexpectedMessage,
        target: IoVec,
        ending: TransferEnding,
    ) {
        let part = DeferredPart {
            message,
            target,
            ending,
        };
        let operation = self.receiving.unexpected.defer_part(peer, part);
        self.channel.quota.defer(peer, operation);
    }

    /// Receives a message of [`ReceiveSide::defer_part`].
    pub(crate) fn receive_deferred_part(&mut self, peer: PeerId, key: PartKey) {
        let DeferredPart {
            message,
            target,
            ending,
        } = self.receiving.unexpected.take_deferred_part(key);
        self.receive_part(peer, message, target, ending);
    }

    /// Drops all operations of a peer that wait for room, but perhaps not messages that are whole.
    pub(crate) fn drop_held_operations(
        &mut self,
        peer: PeerId,
        failure: Failure,
        whole: CompleteMessages,
    ) {
        for operation in self.channel.quota.withdraw(peer) {
            match operation {
                DeferredOperation::Request(head) => {
                    self.channel.quota.end_request(peer);
                    self.channel.drop_deferred(peer, head);
                }
                DeferredOperation::Part(key) => {
                    let part = self.receiving.unexpected.take_deferred_part(key);
                    if whole == CompleteMessages::Received && part.message.is_whole() {
                        self.receive_part(peer, part.message, part.target, part.ending);
                        continue;
                    }
                    let (length, capacity) = (part.message.length, part.target.memory.length);
                    self.drop_unexpected(peer, part.message);
                    let failure = Some(failure);
                    self.end_inbound(&part.ending, peer, length, capacity as u64, failure);
                }
            }
        }
    }

    /// Receives a message into its part of a multi-receive buffer.
    fn receive_part(
        &mut self,
        peer: PeerId,
        message: UnexpectedMessage,
        target: IoVec,
        ending: TransferEnding,
    ) {
        self.channel.quota.begin_operation(peer);
        // Operations of peers always have room.
        let received = self.receive_arrived(peer, message, Iov::One(target), ending);
        debug_assert!(received.is_ok());
    }
}

// Claimed messages.
impl<N: Nic> ReceiveSide<'_, N> {
    pub(crate) fn receive_claimed(
        &mut self,
        args: &ClaimedRecvArgs<'_>,
    ) -> Result<ReceiveId, EndpointError> {
        let target = Iov::new(args.buffer)?;
        if self.receiving.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let claim = self.receiving.unexpected.take_claim(args.claim);
        let claim = claim.ok_or(EndpointError::UnknownClaim)?;
        let ending = TransferEnding {
            context: args.context,
            report_success: args.flags.contains(OperationFlags::COMPLETION),
            ..claim.ending()
        };
        self.receive_at_once(claim.peer, claim.message, target, ending)
    }

    pub(crate) fn discard_claimed(&mut self, id: ClaimId) -> Result<(), EndpointError> {
        if self.receiving.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let claim = self.receiving.unexpected.take_claim(id);
        let claim = claim.ok_or(EndpointError::UnknownClaim)?;
        // The message is received without a buffer, so that the sender's side of the protocol ends
        // normally.
        let ending = TransferEnding {
            recipient: ReportRecipient::None,
            ..claim.ending()
        };
        self.receive_arrived(claim.peer, claim.message, Iov::NONE, ending)
    }
}
