//! The queues of posted receives.

use crate::endpoint::api::operation::SourceFilter;
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::PeerId;

use super::Filter;
use super::queues::{Key, Links, Nodes, Queues};

/// Differs from the queues of messages.
const POSTED: usize = 2;

/// The state of a posted receive that belongs to [`ReceiveQueues`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedEntry {
    order: u64,
    key: Key,
    links: Links,
    group: u32,
    /// Whether it may match several messages.
    stays: bool,
}

impl PostedEntry {
    /// The source that the receive names.
    pub(crate) fn source(&self) -> Option<PeerId> {
        self.key.source()
    }

    /// The receive's number in the order in which receives were posted.
    pub(crate) fn order(&self) -> u64 {
        self.order
    }
}

/// The posted receives by slot. The methods may panic for a slot without a receive, which is a
/// mistake of the caller.
pub(crate) trait Receives {
    fn entry(&self, slot: u32) -> &PostedEntry;
    fn entry_mut(&mut self, slot: u32) -> &mut PostedEntry;
}

impl<R: Receives> Nodes<POSTED> for R {
    #[inline]
    fn key(&self, slot: u32) -> Key {
        self.entry(slot).key
    }

    #[inline]
    fn links(&self, slot: u32) -> &Links {
        &self.entry(slot).links
    }

    #[inline]
    fn links_mut(&mut self, slot: u32) -> &mut Links {
        &mut self.entry_mut(slot).links
    }
}

/// A posted receive that accepts a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MatchedReceive {
    pub(crate) slot: u32,
    /// Whether it stays posted, because it may match several messages.
    pub(crate) stays: bool,
}

/// The queues of the posted receives of one kind, tagged or untagged. The receives themselves are
/// in slots elsewhere ([`Receives`]).
pub(crate) struct ReceiveQueues {
    groups: Vec<Group>,
    /// The group of the receive that was posted last.
    recent: usize,
    /// The number of receives in all groups.
    count: usize,
    /// The number of the next receive. A lower number is older.
    next_order: u64,
    hasher: SeededHasher,
}

/// Receives with the same ignore mask that all name a source, or all do not.
struct Group {
    ignore: u64,
    directed: bool,
    /// The number of receives. A message costs an empty group only this test.
    count: usize,
    queues: Queues<POSTED>,
}

impl Group {
    #[inline(always)]
    fn key(&self, source: PeerId, tag: u64) -> Key {
        Key::new(self.directed.then_some(source), tag & !self.ignore)
    }
}

impl ReceiveQueues {
    pub(crate) fn new(hasher: SeededHasher) -> Self {
        ReceiveQueues {
            groups: Vec::new(),
            recent: 0,
            count: 0,
            next_order: 0,
            hasher,
        }
    }

    /// Makes the entry of a receive that is about to be posted. [`MatchedReceive::stays`] returns
    /// `stays`.
    #[inline]
    pub(crate) fn new_entry(&mut self, filter: &Filter, stays: bool) -> PostedEntry {
        let group = self.group(filter);
        let source = match filter.source {
            SourceFilter::Any => None,
            SourceFilter::Peer(peer) => Some(peer),
        };
        let order = self.next_order;
        self.next_order += 1;
        PostedEntry {
            order,
            key: Key::new(source, filter.tag.tag & !filter.tag.ignore),
            links: Links::NONE,
            group: group as u32,
            stays,
        }
    }

    /// Appends a receive to the posted ones. Its entry, which is in its slot, was the last one that
    /// [`ReceiveQueues::new_entry`] made.
    #[inline]
    pub(crate) fn post(&mut self, receives: &mut impl Receives, slot: u32, entry: PostedEntry) {
        let group = &mut self.groups[entry.group as usize];
        self.count += 1;
        group.count += 1;
        let links = group.queues.push(self.hasher, receives, entry.key, slot);
        receives.entry_mut(slot).links = links;
    }

    /// The group for a filter.
    #[inline(always)]
    fn group(&mut self, filter: &Filter) -> usize {
        let directed = matches!(filter.source, SourceFilter::Peer(_));
        let ignore = filter.tag.ignore;
        match self.groups.get(self.recent) {
            Some(group) if group.ignore == ignore && group.directed == directed => {}
            _ => self.recent = self.other_group(ignore, directed),
        }
        self.recent
    }

    /// The existing group, or an empty one that is reused, or a new one.
    #[inline(never)]
    fn other_group(&mut self, ignore: u64, directed: bool) -> usize {
        let mut empty = None;
        for (index, group) in self.groups.iter().enumerate() {
            if group.ignore == ignore && group.directed == directed {
                return index;
            }
            if group.count == 0 {
                empty = Some(index);
            }
        }
        // Some empty groups are not reused, so that programs with the usual few masks keep theirs.
        if let Some(index) = empty.filter(|_| self.groups.len() >= 8) {
            let group = &mut self.groups[index];
            (group.ignore, group.directed) = (ignore, directed);
            return index;
        }
        self.groups.push(Group {
            ignore,
            directed,
            count: 0,
            queues: Queues::default(),
        });
        self.groups.len() - 1
    }

    /// Finds the oldest receive that accepts a message, and removes it unless it stays. A separate
    /// function, so that it has enough registers.
    #[inline(never)]
    pub(crate) fn take_oldest(
        &mut self,
        receives: &mut impl Receives,
        source: PeerId,
        tag: u64,
    ) -> Option<MatchedReceive> {
        let mut index = self.recent;
        // Usually all receives are in the group of the last one.
        if self.groups.get(index)?.count != self.count {
            index = self.group_with_oldest(receives, source, tag)?;
        }
        let group = &mut self.groups[index];
        let key = group.key(source, tag);
        let front = group.queues.find(key.hash(self.hasher), receives, key)?;
        let (slot, stays) = (front.node, receives.entry(front.node).stays);
        if !stays {
            self.count -= 1;
            group.count -= 1;
            group.queues.remove_first(receives, front);
        }
        Some(MatchedReceive { slot, stays })
    }

    /// The group with the oldest receive that accepts a message.
    #[inline(never)]
    fn group_with_oldest(
        &self,
        receives: &impl Receives,
        source: PeerId,
        tag: u64,
    ) -> Option<usize> {
        let oldest_of = |group: &Group| {
            let key = group.key(source, tag);
            let front = group.queues.find(key.hash(self.hasher), receives, key)?;
            Some(receives.entry(front.node).order)
        };
        let groups = self.groups.iter().enumerate();
        let oldest = groups
            .filter(|(_, group)| group.count > 0)
            .filter_map(|(index, group)| Some((oldest_of(group)?, index)));
        oldest.min().map(|(_, index)| index)
    }

    /// Removes a posted receive.
    pub(crate) fn remove(&mut self, receives: &mut impl Receives, slot: u32) {
        let PostedEntry { group, key, .. } = *receives.entry(slot);
        let group = &mut self.groups[group as usize];
        self.count -= 1;
        group.count -= 1;
        group.queues.remove(key.hash(self.hasher), receives, slot);
    }

    /// The number of posted receives.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}
