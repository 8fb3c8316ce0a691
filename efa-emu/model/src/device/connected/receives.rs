//! Posted receives: those of a queue pair, and those of a shared receive queue.

use std::collections::VecDeque;

use super::buffers::BufferList;
use super::tags::TagList;
use crate::device::error::Error;
use crate::device::ids::{CqId, PdId};

/// A posted receive.
#[derive(Clone, Debug)]
pub struct RecvWr {
    /// The program's id of the receive.
    pub wr_id: u64,
    /// The memory for a message.
    pub buffers: BufferList,
}

/// Posted receives, in order.
pub(super) struct ReceiveQueue {
    posted: VecDeque<RecvWr>,
    depth: u32,
    max_sge: u32,
}

impl ReceiveQueue {
    pub(super) fn new(depth: u32, max_sge: u32) -> ReceiveQueue {
        ReceiveQueue {
            posted: VecDeque::new(),
            depth,
            max_sge,
        }
    }

    /// # Errors
    /// [`Error::QueueFull`], and [`Error::Invalid`] for more buffers than the queue was made for.
    #[inline]
    pub(super) fn post(&mut self, receive: RecvWr) -> Result<(), Error> {
        let buffers = receive.buffers.as_slice().len() as u64;
        if buffers > u64::from(self.max_sge) {
            return Err(Error::invalid("number of scatter entries", buffers));
        }
        if self.posted.len() >= self.depth as usize {
            return Err(Error::QueueFull("receive"));
        }
        self.posted.push_back(receive);
        Ok(())
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<RecvWr> {
        self.posted.pop_front()
    }

    pub(super) fn len(&self) -> u32 {
        self.posted.len() as u32
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    pub(super) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(super) fn clear(&mut self) {
        self.posted.clear();
    }
}

/// The id of a device's shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SrqId(pub u32);

/// The parameters for creating a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqConfig {
    /// The protection domain of its receives.
    pub pd: PdId,
    /// The most posted receives.
    pub max_wr: u32,
    /// The most buffers of a receive.
    pub max_sge: u32,
    /// Its completion queue and the most tags, if it matches tags.
    pub tags: Option<TagConfig>,
}

/// The tag matching parameters of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagConfig {
    /// The completion queue of its messages and of operations on the tag list.
    pub cq: CqId,
    /// The most tags in the list.
    pub max_tags: u32,
}

/// Attributes of a shared receive queue that a query returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttributes {
    /// The most posted receives.
    pub max_wr: u32,
    /// The most buffers of a receive.
    pub max_sge: u32,
    /// The number of receives below which an event is raised; 0 for no event.
    pub limit: u32,
}

/// A shared receive queue.
pub(super) struct SharedQueue {
    pub(super) config: SrqConfig,
    pub(super) receives: ReceiveQueue,
    pub(super) limit: u32,
    /// Queue pairs that receive from it.
    pub(super) users: u32,
    pub(super) tags: Option<TagList>,
}

impl SharedQueue {
    pub(super) fn new(config: SrqConfig) -> SharedQueue {
        SharedQueue {
            receives: ReceiveQueue::new(config.max_wr, config.max_sge),
            limit: 0,
            users: 0,
            tags: config.tags.map(|tags| TagList::new(tags.max_tags)),
            config,
        }
    }

    pub(super) fn attributes(&self) -> SrqAttributes {
        SrqAttributes {
            max_wr: self.receives.depth(),
            max_sge: self.receives.max_sge(),
            limit: self.limit,
        }
    }

    /// Whether the number of receives has fallen below the limit. Returns true only once.
    pub(super) fn has_reached_limit(&mut self) -> bool {
        let is_reached = self.receives.len() < self.limit;
        if is_reached {
            self.limit = 0;
        }
        is_reached
    }
}
