//! Operations of peers that wait until there is room for them.

use slab::Slab;

use crate::endpoint::api::operation::IoVec;

use super::transfer::Ending;
use super::unexpected::UnexpectedMessage;
use crate::endpoint::posting::HeldId;

/// An operation of a peer that waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Postponed {
    /// A request to write or read, of which this packet waits.
    Request(HeldId),
    /// A message for a part of a multi-receive buffer.
    Part(PartKey),
}

/// Names a [`PostponedPart`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartKey(u32);

/// A message that has its part of a multi-receive buffer, and its packets so far.
pub(crate) struct PostponedPart {
    pub(crate) message: UnexpectedMessage,
    pub(crate) target: IoVec,
    pub(crate) ending: Ending,
}

/// Messages for multi-receive buffers that wait for room.
#[derive(Default)]
pub(crate) struct PostponedParts(Slab<PostponedPart>);

impl PostponedParts {
    pub(crate) fn insert(&mut self, part: PostponedPart) -> PartKey {
        PartKey(self.0.insert(part) as u32)
    }

    pub(crate) fn remove(&mut self, PartKey(key): PartKey) -> PostponedPart {
        self.0.remove(key as usize)
    }

    /// The packets of a message that waits.
    pub(crate) fn head(&mut self, PartKey(key): PartKey) -> Option<&mut HeldId> {
        let part = self.0.get_mut(key as usize)?;
        Some(&mut part.message.head)
    }
}
