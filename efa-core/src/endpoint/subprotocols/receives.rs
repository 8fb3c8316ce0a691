//! The application receives: posting, cancelling, and taking messages that were already here.

use crate::nic::Nic;

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{CompletionFlags, ErrorEntry};
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::operation::{OperationFlags, RecvArgs, SourceFilter, TagFilter};
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::memory::iov::{Iov, total_length};
use crate::endpoint::receiving::assembly::Assembly;
use crate::endpoint::receiving::claims::{MessageMatcher, UnexpectedMessage};
use crate::endpoint::receiving::matching::Filter;
use crate::endpoint::receiving::table::{Inbound, InboundTable};
use crate::endpoint::receiving::transfer::{Audience, Ending, Posted, Transfer};
use crate::endpoint::subprotocols::message::{message_flags, receive_flags};

impl<N: Nic> Endpoint<N> {
    pub(crate) fn matcher(&mut self, tagged: bool) -> &mut MessageMatcher {
        self.matching(tagged).0
    }

    /// The receives of one kind, and where they are.
    #[inline]
    pub(crate) fn matching(&mut self, tagged: bool) -> (&mut MessageMatcher, &mut InboundTable) {
        let matcher = match tagged {
            true => &mut self.tagged,
            false => &mut self.untagged,
        };
        (matcher, &mut self.inbound)
    }

    pub(crate) fn start_recv(&mut self, args: &RecvArgs<'_>) -> Result<ReceiveId, EndpointError> {
        if let SourceFilter::Peer(peer) = args.source
            && !self.peers.contains(peer)
        {
            return Err(EndpointError::UnknownPeer(peer));
        }
        let target = Iov::new(args.buffer)?;
        let capacity = total_length(args.buffer);
        let tagged = args.tag.is_some();
        let filter = Filter {
            source: args.source,
            tag: args.tag.unwrap_or(TagFilter::exact(0)),
        };
        if self.inbound.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let report_success = args.flags.contains(OperationFlags::COMPLETION);
        if let Some(key) = self.matcher(tagged).find_unexpected(&filter) {
            let (peer, tag, message) = self.matcher(tagged).remove_unexpected(key);
            let ending = Ending {
                context: args.context,
                report_success,
                flags: receive_flags(tagged, message.cq_data),
                tag,
                cq_data: message.cq_data,
                audience: Audience::Starter,
                part: None,
            };
            return self.receive_kept(peer, &message, target, capacity, ending);
        }
        let entry = self.matcher(tagged).new_entry(&filter, false);
        let posted = Posted {
            context: args.context,
            report_success,
            target,
            capacity,
            tagged,
            entry,
            multi: None,
        };
        let Ok(id) = self.inbound.insert_posted(posted) else {
            return Err(EndpointError::TryAgain);
        };
        let (matcher, receives) = self.matching(tagged);
        matcher.post(receives, id.slot());
        Ok(id)
    }

    /// Receives a message that is here already.
    ///
    /// # Errors
    /// [`EndpointError::TryAgain`] if there are too many operations; the message is lost to the
    /// caller then, who has to have looked.
    pub(crate) fn receive_kept(
        &mut self,
        peer: PeerId,
        message: &UnexpectedMessage,
        target: Iov,
        capacity: u64,
        ending: Ending,
    ) -> Result<ReceiveId, EndpointError> {
        let mut transfer = Transfer::new(peer, message.length, target, capacity, ending);
        transfer.msg_id = message.msg_id;
        transfer.assembled = message.segmented;
        let Ok(id) = self.inbound.insert_active(transfer) else {
            return Err(EndpointError::TryAgain);
        };
        self.receive_held(id, peer, message);
        Ok(id)
    }

    /// Gives a receive the packets of a message that was unexpected.
    fn receive_held(&mut self, id: ReceiveId, peer: PeerId, message: &UnexpectedMessage) {
        if message.segmented {
            self.assemblies
                .set(peer, message.msg_id, Assembly::Receive(id));
        }
        let mut next = Some(message.head);
        while let Some((packet, behind)) = next.and_then(|held| self.take_held(peer, held)) {
            next = behind;
            match self.parse_again(&packet) {
                Some(incoming) => self.message_packet(id, peer, &packet, &incoming),
                None => debug_assert!(false, "it was parsed before it had to wait"),
            }
            self.release(packet);
        }
    }

    /// Gives up a message that no receive took.
    pub(crate) fn drop_unexpected(&mut self, peer: PeerId, message: &UnexpectedMessage) {
        if message.segmented {
            self.assemblies.remove(peer, message.msg_id);
        }
        self.drop_held(peer, message.head);
    }

    pub(crate) fn cancel_receive(&mut self, id: ReceiveId) -> bool {
        self.withdraw_posted(id, Failure::new(Errno::ECANCELED, ProviderError::None))
    }

    /// Ends a posted receive that no message has matched. Returns whether it was one.
    pub(crate) fn withdraw_posted(&mut self, id: ReceiveId, failure: Failure) -> bool {
        let Some(Inbound::Posted(posted)) = self.inbound.get(id) else {
            return false;
        };
        let (matcher, receives) = self.matching(posted.tagged);
        matcher.remove_receive(receives, id.slot());
        self.end_posted(id, failure);
        true
    }

    /// Ends a receive that is not among the posted ones any more.
    pub(crate) fn end_posted(&mut self, id: ReceiveId, failure: Failure) {
        if let Some(posted) = self.inbound.remove_posted(id) {
            let mut flags = message_flags(posted.tagged, CompletionFlags::RECV);
            if let Some(multi) = posted.multi {
                flags.set(CompletionFlags::MULTI_RECV, self.close_multi(multi));
            }
            self.reports.failed(ErrorEntry {
                context: posted.context,
                flags,
                length: 0,
                overflow_length: 0,
                data: 0,
                tag: 0,
                source: None,
                failure,
            });
        }
    }
}
