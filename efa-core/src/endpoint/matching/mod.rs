//! Matching of messages with receives, in libfabric's order.
//!
//! A message goes to the oldest posted receive that accepts it; a receive takes the message that
//! arrived first among those it accepts. Both are kept exactly, also between exact receives and
//! receives with ignore bits or without a source.
//!
//! *Posted receives* are grouped by their kind of filter: the ignore mask, and whether they name a
//! source. Within a group the filter is a plain key, so a hash table of queues finds the oldest
//! receive of the group at once; the oldest of all groups wins, told by a counter. Programs use few
//! distinct masks, so the cost does not depend on how many receives are posted.
//!
//! *Unexpected messages* stand in two queues at once, of those with the same source and tag and of
//! those with the same tag: an exact receive looks only at the head of one queue. A receive with
//! ignore bits goes through all of them in the order of their arrival, which is kept in one piece of
//! memory for that.
//!
//! With many receives or messages the cost is that of memory that is not in a cache. So the tables
//! hold 8 bytes per queue and no keys, and what is looked at in one match lies together.

mod arrivals;
mod queues;

#[cfg(test)]
mod tests;

use slab::Slab;

use super::hash::Mixer;
use super::ids::{PeerId, ReceiveId};
use super::list::{Linked, Links};
use super::operation::{SourceFilter, TagFilter};

use arrivals::{Arrivals, Place};
use queues::{Key, Queued, Queues};

/// What a receive accepts. Untagged receives have the filter of tag 0 in a matcher of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Filter {
    pub(crate) source: SourceFilter,
    pub(crate) tag: TagFilter,
}

impl Filter {
    fn accepts(&self, source: PeerId, tag: u64) -> bool {
        let source_matches = match self.source {
            SourceFilter::Any => true,
            SourceFilter::Peer(peer) => peer == source,
        };
        source_matches && self.tag.accepts(tag)
    }
}

/// Names a posted receive inside its [`Matcher`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PostedKey(u32);

impl PostedKey {
    /// Of a receive that is about to be posted.
    pub(crate) const NOWHERE: PostedKey = PostedKey(u32::MAX);
}

/// A posted receive that accepts a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) receive: ReceiveId,
    /// It was left, as it may take several messages.
    pub(crate) stays: bool,
}

/// Names an unexpected message inside its [`Matcher`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnexpectedKey(u32);

/// The posted receives and unexpected messages of one kind, tagged or untagged. `M` is an
/// unexpected message.
pub(crate) struct Matcher<M> {
    posted: Slab<Posted>,
    groups: Vec<Group>,
    /// Counts the receives, to tell which of two is older.
    next_order: u64,
    unexpected: Slab<Unexpected<M>>,
    all: Arrivals,
    by_source_and_tag: Queues<BY_SOURCE_AND_TAG>,
    by_tag: Queues<BY_TAG>,
    mixer: Mixer,
}

struct Posted {
    order: u64,
    key: Key,
    links: Links,
    receive: ReceiveId,
    group: u32,
    /// It may take several messages.
    stays: bool,
}

/// Receives with the same ignore mask that all name a source, or all do not.
struct Group {
    ignore: u64,
    directed: bool,
    /// Receives in the group. An empty group costs a message nothing but this test.
    count: usize,
    queues: Queues<POSTED>,
}

impl Group {
    fn key(&self, source: PeerId, tag: u64) -> Key {
        Key::new(self.directed.then_some(source), tag & !self.ignore)
    }
}

struct Unexpected<M> {
    message: M,
    source: PeerId,
    tag: u64,
    links: [Links; 2],
    place: Place,
}

const BY_SOURCE_AND_TAG: usize = 0;
const BY_TAG: usize = 1;
const POSTED: usize = 2;

impl Linked<POSTED> for Posted {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Queued<POSTED> for Posted {
    fn key(&self) -> Key {
        self.key
    }
}

macro_rules! unexpected_stands_in {
    ($($list:ident)*) => {$(
        impl<M> Linked<$list> for Unexpected<M> {
            fn links(&self) -> &Links {
                &self.links[$list]
            }

            fn links_mut(&mut self) -> &mut Links {
                &mut self.links[$list]
            }
        }
    )*};
}
unexpected_stands_in!(BY_SOURCE_AND_TAG BY_TAG);

impl<M> Queued<BY_SOURCE_AND_TAG> for Unexpected<M> {
    fn key(&self) -> Key {
        Key::new(Some(self.source), self.tag)
    }
}

impl<M> Queued<BY_TAG> for Unexpected<M> {
    fn key(&self) -> Key {
        Key::new(None, self.tag)
    }
}

impl<M> Matcher<M> {
    pub(crate) fn new(mixer: Mixer) -> Self {
        Matcher {
            posted: Slab::new(),
            groups: Vec::new(),
            next_order: 0,
            unexpected: Slab::new(),
            all: Arrivals::default(),
            by_source_and_tag: Queues::default(),
            by_tag: Queues::default(),
            mixer,
        }
    }

    /// Posts a receive behind all others. `stays` comes back when it is found.
    pub(crate) fn post(&mut self, receive: ReceiveId, filter: Filter, stays: bool) -> PostedKey {
        let group_index = self.group(filter);
        let group = &mut self.groups[group_index];
        let source = match filter.source {
            SourceFilter::Any => None,
            SourceFilter::Peer(peer) => Some(peer),
        };
        let node = self.posted.insert(Posted {
            order: self.next_order,
            key: Key::new(source, filter.tag.tag & !filter.tag.ignore),
            links: Links::NONE,
            receive,
            group: group_index as u32,
            stays,
        }) as u32;
        self.next_order += 1;
        group.count += 1;
        group.queues.push(self.mixer, &mut self.posted, node);
        PostedKey(node)
    }

    /// The group for a filter: the one of its kind, or an empty one taken over, or a new one.
    fn group(&mut self, filter: Filter) -> usize {
        let directed = matches!(filter.source, SourceFilter::Peer(_));
        let ignore = filter.tag.ignore;
        let mut empty = None;
        for (index, group) in self.groups.iter().enumerate() {
            if group.ignore == ignore && group.directed == directed {
                return index;
            }
            if group.count == 0 {
                empty = Some(index);
            }
        }
        // Two empty groups are left alone, so that programs with the usual few masks do not move
        // them around.
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

    /// Finds the oldest receive that accepts a message, and takes it out unless it stays.
    pub(crate) fn match_receive(&mut self, source: PeerId, tag: u64) -> Option<Found> {
        let mut oldest: Option<(u64, u32, u64)> = None;
        for group in self.groups.iter().filter(|group| group.count > 0) {
            let key = group.key(source, tag);
            let hash = key.hash(self.mixer);
            if let Some(node) = group.queues.front(hash, &self.posted, key) {
                let order = self.posted[node as usize].order;
                if oldest.is_none_or(|(oldest, ..)| order < oldest) {
                    oldest = Some((order, node, hash));
                }
            }
        }
        let (_, node, hash) = oldest?;
        let posted = &self.posted[node as usize];
        let found = Found {
            receive: posted.receive,
            stays: posted.stays,
        };
        if !found.stays {
            let group = &mut self.groups[posted.group as usize];
            group.count -= 1;
            group.queues.pop_front(hash, &mut self.posted, node);
            self.posted.remove(node as usize);
        }
        Some(found)
    }

    /// Takes out a posted receive.
    pub(crate) fn remove_receive(&mut self, PostedKey(node): PostedKey) -> ReceiveId {
        let group = &mut self.groups[self.posted[node as usize].group as usize];
        group.count -= 1;
        group.queues.remove(self.mixer, &mut self.posted, node);
        self.posted.remove(node as usize).receive
    }

    /// Posted receives, oldest first.
    #[cfg(test)]
    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Keeps a message that no receive accepts yet, behind all others.
    pub(crate) fn add_unexpected(&mut self, source: PeerId, tag: u64, message: M) -> UnexpectedKey {
        let node = self.unexpected.vacant_key() as u32;
        self.unexpected.insert(Unexpected {
            message,
            source,
            tag,
            links: [Links::NONE; 2],
            place: self.all.push(source, tag, node),
        });
        let nodes = &mut self.unexpected;
        self.by_source_and_tag.push(self.mixer, nodes, node);
        self.by_tag.push(self.mixer, nodes, node);
        UnexpectedKey(node)
    }

    /// Unexpected messages.
    pub(crate) fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }

    /// The first message to have arrived that a receive accepts.
    pub(crate) fn find_unexpected(&self, filter: &Filter) -> Option<UnexpectedKey> {
        if self.unexpected.is_empty() {
            return None;
        }
        let tag = filter.tag.tag;
        let front = |source| match source {
            None => {
                let key = Key::new(None, tag);
                self.by_tag
                    .front(key.hash(self.mixer), &self.unexpected, key)
            }
            source => {
                let key = Key::new(source, tag);
                self.by_source_and_tag
                    .front(key.hash(self.mixer), &self.unexpected, key)
            }
        };
        let node = match (filter.tag.ignore, filter.source) {
            (0, SourceFilter::Any) => front(None),
            (0, SourceFilter::Peer(source)) => front(Some(source)),
            _ => self
                .all
                .iter()
                .find(|arrival| filter.accepts(arrival.source, arrival.tag))
                .map(|arrival| arrival.node),
        };
        node.map(UnexpectedKey)
    }

    /// An unexpected message, with its source and tag.
    pub(crate) fn unexpected_mut(
        &mut self,
        UnexpectedKey(node): UnexpectedKey,
    ) -> (PeerId, u64, &mut M) {
        let unexpected = &mut self.unexpected[node as usize];
        (unexpected.source, unexpected.tag, &mut unexpected.message)
    }

    /// Takes out an unexpected message, with its source and tag.
    pub(crate) fn remove_unexpected(
        &mut self,
        UnexpectedKey(node): UnexpectedKey,
    ) -> (PeerId, u64, M) {
        let nodes = &mut self.unexpected;
        self.by_source_and_tag.remove(self.mixer, nodes, node);
        self.by_tag.remove(self.mixer, nodes, node);
        let Unexpected {
            message,
            source,
            tag,
            place,
            ..
        } = nodes.remove(node as usize);
        self.all
            .remove(place, |node, place| nodes[node as usize].place = place);
        (source, tag, message)
    }

    /// The unexpected messages of one source, in the order of their arrival; linear in the number
    /// of all unexpected messages.
    pub(crate) fn unexpected_from(&self, source: PeerId) -> Vec<UnexpectedKey> {
        self.all
            .iter()
            .filter(|arrival| arrival.source == source)
            .map(|arrival| UnexpectedKey(arrival.node))
            .collect()
    }

    /// Posted receives that name this source, oldest first; linear in the number of all receives.
    pub(crate) fn posted_for(&self, source: PeerId) -> Vec<PostedKey> {
        let mut keys: Vec<(u64, PostedKey)> = self
            .posted
            .iter()
            .filter(|(_, posted)| posted.key.source() == Some(source))
            .map(|(node, posted)| (posted.order, PostedKey(node as u32)))
            .collect();
        keys.sort_unstable_by_key(|(order, _)| *order);
        keys.into_iter().map(|(_, key)| key).collect()
    }

    /// The oldest posted receive that satisfies `wanted`; linear in the number of receives.
    pub(crate) fn find_posted(
        &self,
        mut wanted: impl FnMut(ReceiveId) -> bool,
    ) -> Option<ReceiveId> {
        self.posted
            .iter()
            .filter(|(_, posted)| wanted(posted.receive))
            .min_by_key(|(_, posted)| posted.order)
            .map(|(_, posted)| posted.receive)
    }
}
