//! Messages that no receive has taken, and those that the application reserved for itself.

use crate::endpoint::base::ids::PeerId;
use crate::wire::MsgId;

use super::held::HeldId;
use super::matching::Matcher;
use super::transfer::{Audience, Ending, receive_flags};

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
    pub(super) tagged: bool,
    pub(super) tag: u64,
    pub(crate) message: UnexpectedMessage,
}

impl Claim {
    /// Who hears of the end of its receive, and what.
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
