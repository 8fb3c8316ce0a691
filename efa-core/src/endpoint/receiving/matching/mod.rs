//! Matching of messages with receives, in libfabric's order.
//!
//! A message goes to the oldest posted receive that accepts it. A receive matches the earliest
//! arrived message that it accepts. Both rules hold exactly, also between exact receives and
//! receives with ignore bits or without a source.
//!
//! *Posted receives* are grouped by the kind of their filter: the ignore mask, and whether they
//! name a source. Within a group the filter is a plain key, so a hash table of queues finds the
//! oldest receive of the group at once. Among the groups, a counter shows which receive is the
//! oldest. Programs use few distinct masks, so the cost does not depend on the number of posted
//! receives.
//!
//! *Unexpected messages* are each in two queues: the messages with the same source and tag, and the
//! messages with the same tag. An exact receive checks only the head of one queue. A receive with
//! ignore bits walks through all messages in the order of their arrival, which are stored
//! contiguously.
//!
//! With many receives or messages, reading memory that is not in a cache dominates the cost. So the
//! tables have 4 bytes per queue and no keys, the links of a posted receive are in the receive
//! itself, and the values that one match reads are close together.

mod arrivals;
mod messages;
mod queues;
mod receives;

#[cfg(test)]
mod tests;

use crate::endpoint::api::operation::{SourceFilter, TagFilter};
use crate::endpoint::base::ids::PeerId;

pub(crate) use messages::{MessageKey, MessageQueues};
pub(crate) use receives::{MatchedReceive, PostedEntry, ReceiveQueues, Receives};

/// The messages that a receive accepts. Untagged receives, which have separate queues, have the
/// filter of tag 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Filter {
    pub(crate) source: SourceFilter,
    pub(crate) tag: TagFilter,
}

impl Filter {
    /// The filter of a receive; `tag` is `None` if it is untagged.
    pub(crate) fn new(source: SourceFilter, tag: Option<TagFilter>) -> Self {
        Filter {
            source,
            tag: tag.unwrap_or(TagFilter::exact(0)),
        }
    }

    fn accepts(&self, source: PeerId, tag: u64) -> bool {
        let source_matches = match self.source {
            SourceFilter::Any => true,
            SourceFilter::Peer(peer) => peer == source,
        };
        source_matches && self.tag.accepts(tag)
    }
}
