//! Looking at messages that no receive has taken: peek, claim, discard.

use super::held::HeldId;
use super::matching::Matcher;
use crate::nic::Nic;
use crate::wire::MsgId;

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{
    ClaimedRecvArgs, MessageInfo, OperationFlags, SourceFilter, TagFilter,
};
use crate::endpoint::base::ids::{ClaimId, PeerId, ReceiveId};
use crate::endpoint::memory::iov::{Iov, total_length};
use crate::endpoint::receiving::assembly::Assembly;
use crate::endpoint::receiving::matching::{Filter, UnexpectedKey};
use crate::endpoint::receiving::transfer::{Audience, Ending};
use crate::endpoint::subprotocols::message::receive_flags;

/// A message that no receive has taken yet.
pub(crate) struct UnexpectedMessage {
    pub(crate) msg_id: MsgId,
    /// Length of the whole message in bytes.
    pub(crate) length: u64,
    pub(crate) cq_data: Option<u64>,
    /// It comes in several packets of the same `msg_id`.
    pub(crate) segmented: bool,
    /// Its packets so far.
    pub(crate) head: HeldId,
}

pub(crate) type MessageMatcher = Matcher<UnexpectedMessage>;

/// A message that the application reserved for itself.
pub(crate) struct Claim {
    pub(crate) peer: PeerId,
    tagged: bool,
    tag: u64,
    pub(crate) message: UnexpectedMessage,
}

impl<N: Nic> Endpoint<N> {
    fn find_message(
        &mut self,
        source: SourceFilter,
        tag: Option<TagFilter>,
    ) -> Option<(bool, UnexpectedKey)> {
        let tagged = tag.is_some();
        let filter = Filter {
            source,
            tag: tag.unwrap_or(TagFilter::exact(0)),
        };
        let key = self.matcher(tagged).find_unexpected(&filter)?;
        Some((tagged, key))
    }

    pub(crate) fn peek_message(
        &mut self,
        source: SourceFilter,
        tag: Option<TagFilter>,
    ) -> Option<MessageInfo> {
        let (tagged, key) = self.find_message(source, tag)?;
        let (peer, tag, message) = self.matcher(tagged).unexpected_mut(key);
        Some(MessageInfo {
            source: peer,
            tag: tagged.then_some(tag),
            length: message.length,
            cq_data: message.cq_data,
        })
    }

    pub(crate) fn claim_message(
        &mut self,
        source: SourceFilter,
        tag: Option<TagFilter>,
    ) -> Option<(ClaimId, MessageInfo)> {
        if self.claims.is_full() {
            return None;
        }
        let info = self.peek_message(source, tag)?;
        let (tagged, key) = self.find_message(source, tag)?;
        let (peer, tag, message) = self.matcher(tagged).remove_unexpected(key);
        let (msg_id, segmented) = (message.msg_id, message.segmented);
        let claim = Claim {
            peer,
            tagged,
            tag,
            message,
        };
        let id = self.claims.insert(claim).ok()?;
        if segmented {
            self.assemblies.set(peer, msg_id, Assembly::Claimed(id));
        }
        Some((id, info))
    }

    pub(crate) fn receive_claimed(
        &mut self,
        args: &ClaimedRecvArgs<'_>,
    ) -> Result<ReceiveId, EndpointError> {
        let target = Iov::new(args.buffer)?;
        if self.inbound.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let claim = self
            .claims
            .remove(args.claim)
            .ok_or(EndpointError::UnknownClaim)?;
        let ending = Ending {
            context: args.context,
            report_success: args.flags.contains(OperationFlags::COMPLETION),
            ..claim.ending()
        };
        let capacity = total_length(args.buffer);
        self.receive_kept(claim.peer, &claim.message, target, capacity, ending)
    }

    pub(crate) fn discard_claimed(&mut self, id: ClaimId) -> Result<(), EndpointError> {
        if self.inbound.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let claim = self.claims.remove(id).ok_or(EndpointError::UnknownClaim)?;
        // Received without a buffer: the sender's side of its protocol runs to its end.
        let ending = Ending {
            audience: Audience::Nobody,
            ..claim.ending()
        };
        self.receive_kept(claim.peer, &claim.message, Iov::NONE, 0, ending)?;
        Ok(())
    }
}

impl Claim {
    fn ending(&self) -> Ending {
        Ending {
            context: 0,
            report_success: false,
            flags: receive_flags(self.tagged, self.message.cq_data),
            tag: self.tag,
            cq_data: self.message.cq_data,
            audience: Audience::Starter,
            part: None,
        }
    }
}
