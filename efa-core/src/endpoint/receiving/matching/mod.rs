//! Matching of messages with receives, in libfabric's order.
//!
//! A message goes to the oldest posted receive that accepts it. A receive takes the first message
//! to have arrived that it accepts. Both rules hold exactly, also between exact receives and
//! receives with ignore bits or without a source.
//!
//! *Posted receives* are grouped by the kind of their filter: the ignore mask, and whether they
//! name a source. Within a group the filter is a plain key, so a hash table of queues finds the
//! oldest receive of the group at once. Among the groups, a counter tells which receive is the
//! oldest. Programs use few distinct masks, so the cost does not depend on the number of posted
//! receives.
//!
//! *Unexpected messages* are in two queues at once: of those with the same source and tag, and of
//! those with the same tag. An exact receive looks only at the head of one queue. A receive with
//! ignore bits walks through all messages in the order of their arrival, which one piece of memory
//! holds.
//!
//! With many receives or messages, reading memory that is not in a cache dominates the cost. So the
//! tables hold 4 bytes per queue and no keys, the links of a posted receive are in the receive
//! itself, and the values that one match reads are close together.

mod arrivals;
mod queues;

#[cfg(test)]
mod tests;

use slab::Slab;

use crate::endpoint::api::operation::{SourceFilter, TagFilter};
use crate::endpoint::base::by_peer::{ByPeer, OfPeers, PeerLinks};
use crate::endpoint::base::hash::Mixer;
use crate::endpoint::base::ids::{PeerId, ReceiveId};

use arrivals::{Arrivals, Place};
use queues::{Key, Links, Nodes, Queues};

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

/// The state that a [`Matcher`] keeps in a posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedEntry {
    order: u64,
    key: Key,
    links: Links,
    group: u32,
    /// Whether it may take several messages.
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
    fn id(&self, slot: u32) -> ReceiveId;
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
pub(crate) struct Found {
    pub(crate) receive: ReceiveId,
    /// Whether it stays posted, because it may take several messages.
    pub(crate) stays: bool,
}

/// Names an unexpected message inside its [`Matcher`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnexpectedKey(u32);

/// The posted receives and unexpected messages of one kind, tagged or untagged. `M` is an
/// unexpected message.
pub(crate) struct Matcher<M> {
    groups: Vec<Group>,
    /// The number of the next receive. A lower number is older.
    next_order: u64,
    unexpected: Slab<Unexpected<M>>,
    all: Arrivals,
    by_source_and_tag: Queues<BY_SOURCE_AND_TAG>,
    by_tag: Queues<BY_TAG>,
    by_source: ByPeer,
    mixer: Mixer,
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
    fn key(&self, source: PeerId, tag: u64) -> Key {
        Key::new(self.directed.then_some(source), tag & !self.ignore)
    }
}

struct Unexpected<M> {
    message: M,
    source: PeerId,
    tag: u64,
    links: [Links; 2],
    of_source: PeerLinks,
    place: Place,
}

impl<M> OfPeers for Slab<Unexpected<M>> {
    fn links(&self, node: u32) -> &PeerLinks {
        &self[node as usize].of_source
    }

    fn links_mut(&mut self, node: u32) -> &mut PeerLinks {
        &mut self[node as usize].of_source
    }
}

const BY_SOURCE_AND_TAG: usize = 0;
const BY_TAG: usize = 1;
const POSTED: usize = 2;

macro_rules! unexpected_stands_in {
    ($($queue:ident: $source:expr,)*) => {$(
        impl<M> Nodes<$queue> for Slab<Unexpected<M>> {
            fn key(&self, node: u32) -> Key {
                let unexpected = &self[node as usize];
                let source: fn(PeerId) -> Option<PeerId> = $source;
                Key::new(source(unexpected.source), unexpected.tag)
            }

            fn links(&self, node: u32) -> &Links {
                &self[node as usize].links[$queue]
            }

            fn links_mut(&mut self, node: u32) -> &mut Links {
                &mut self[node as usize].links[$queue]
            }
        }
    )*};
}
unexpected_stands_in! {
    BY_SOURCE_AND_TAG: Some,
    BY_TAG: |_| None,
}

impl<M> Matcher<M> {
    pub(crate) fn new(mixer: Mixer) -> Self {
        Matcher {
            groups: Vec::new(),
            next_order: 0,
            unexpected: Slab::new(),
            all: Arrivals::default(),
            by_source_and_tag: Queues::default(),
            by_tag: Queues::default(),
            by_source: ByPeer::default(),
            mixer,
        }
    }

    /// Makes the entry of a receive that is about to be posted. [`Found::stays`] returns `stays`.
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

    /// Posts a receive behind all others. Its entry was the last one that [`Matcher::new_entry`]
    /// made.
    #[inline]
    pub(crate) fn post(&mut self, receives: &mut impl Receives, slot: u32) {
        let group = &mut self.groups[receives.entry(slot).group as usize];
        group.count += 1;
        group.queues.push(self.mixer, receives, slot);
    }

    /// The group for a filter: the existing one, or an empty one that is reused, or a new one.
    fn group(&mut self, filter: &Filter) -> usize {
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

    /// Finds the oldest receive that accepts a message, and removes it unless it stays.
    #[inline]
    pub(crate) fn match_receive(
        &mut self,
        receives: &mut impl Receives,
        source: PeerId,
        tag: u64,
    ) -> Option<Found> {
        let mut oldest: Option<(u64, u32, u64, bool, &mut Group)> = None;
        for group in self.groups.iter_mut().filter(|group| group.count > 0) {
            let key = group.key(source, tag);
            let hash = key.hash(self.mixer);
            if let Some(slot) = group.queues.front(hash, receives, key) {
                let PostedEntry { order, stays, .. } = *receives.entry(slot);
                if oldest.as_ref().is_none_or(|(oldest, ..)| order < *oldest) {
                    oldest = Some((order, slot, hash, stays, group));
                }
            }
        }
        let (_, slot, hash, stays, group) = oldest?;
        if !stays {
            group.count -= 1;
            group.queues.remove(hash, receives, slot);
        }
        Some(Found {
            receive: receives.id(slot),
            stays,
        })
    }

    /// Removes a posted receive.
    pub(crate) fn remove_receive(&mut self, receives: &mut impl Receives, slot: u32) {
        let PostedEntry { group, key, .. } = *receives.entry(slot);
        let group = &mut self.groups[group as usize];
        group.count -= 1;
        group.queues.remove(key.hash(self.mixer), receives, slot);
    }

    /// The number of posted receives.
    #[cfg(test)]
    pub(crate) fn posted_len(&self) -> usize {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// Adds a message that no receive accepts, behind all others.
    pub(crate) fn add_unexpected(&mut self, source: PeerId, tag: u64, message: M) -> UnexpectedKey {
        let node = self.unexpected.vacant_key() as u32;
        self.unexpected.insert(Unexpected {
            message,
            source,
            tag,
            links: [Links::NONE; 2],
            of_source: PeerLinks::NONE,
            place: self.all.push(source, tag, node),
        });
        let nodes = &mut self.unexpected;
        self.by_source_and_tag.push(self.mixer, nodes, node);
        self.by_tag.push(self.mixer, nodes, node);
        self.by_source.push(nodes, source, node);
        UnexpectedKey(node)
    }

    /// The number of unexpected messages.
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

    /// Removes an unexpected message. Returns it with its source and tag.
    pub(crate) fn remove_unexpected(
        &mut self,
        UnexpectedKey(node): UnexpectedKey,
    ) -> (PeerId, u64, M) {
        let nodes = &mut self.unexpected;
        let Unexpected { source, tag, .. } = nodes[node as usize];
        let hash = |source| Key::new(source, tag).hash(self.mixer);
        self.by_source_and_tag
            .remove(hash(Some(source)), nodes, node);
        self.by_tag.remove(hash(None), nodes, node);
        self.by_source.remove(nodes, source, node);
        let Unexpected { message, place, .. } = nodes.remove(node as usize);
        self.all
            .remove(place, |node, place| nodes[node as usize].place = place);
        (source, tag, message)
    }

    /// Returns whether there is no unexpected message of a source.
    pub(crate) fn has_none_from(&self, source: PeerId) -> bool {
        self.by_source.is_empty(source)
    }

    /// The unexpected messages of one source, in the order of their arrival.
    pub(crate) fn unexpected_from(&self, source: PeerId) -> Vec<UnexpectedKey> {
        let nodes = self.by_source.of(&self.unexpected, source);
        nodes.into_iter().map(UnexpectedKey).collect()
    }
}
