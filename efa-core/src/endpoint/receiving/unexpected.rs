//! Messages that no receive has taken, and messages that the application claimed.

use crate::endpoint::base::by_peer::{OfPeers, PeerLinks};
use crate::endpoint::base::ids::{Arena, ClaimId, PeerId};
use crate::wire::MsgId;

use super::matching::Matcher;
use super::transfer::{Audience, Ending, receive_flags};
use crate::endpoint::posting::HeldId;

/// A message that no receive has taken yet.
pub(crate) struct UnexpectedMessage {
    pub(crate) msg_id: MsgId,
    /// Length of the whole message in bytes.
    pub(crate) length: u64,
    pub(crate) cq_data: Option<u64>,
    /// Whether it consists of several packets with the same `msg_id`.
    pub(crate) segmented: bool,
    /// Its packets so far.
    pub(crate) head: HeldId,
}

pub(crate) type MessageMatcher = Matcher<UnexpectedMessage>;

/// A message that the application claimed.
pub(crate) struct Claim {
    pub(crate) peer: PeerId,
    pub(super) tagged: bool,
    pub(super) tag: u64,
    pub(crate) message: UnexpectedMessage,
    /// Its links among the claims of the same sender.
    pub(super) links: PeerLinks,
}

impl OfPeers for Arena<Claim, ClaimId> {
    fn links(&self, slot: u32) -> &PeerLinks {
        match self.at(slot as usize) {
            Some((_, claim)) => &claim.links,
            None => not_claimed(slot),
        }
    }

    fn links_mut(&mut self, slot: u32) -> &mut PeerLinks {
        match self.at_mut(slot as usize) {
            Some(claim) => &mut claim.links,
            None => not_claimed(slot),
        }
    }
}

#[cold]
fn not_claimed(slot: u32) -> ! {
    unreachable!("a peer has a claimed message in slot {slot} that does not exist")
}

impl Claim {
    /// How the end of its receive is reported.
    pub(crate) fn ending(&self) -> Ending {
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
