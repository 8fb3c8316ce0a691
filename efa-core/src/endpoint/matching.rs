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
//! *Unexpected messages* stand in three lists at once: all, those of the same source and tag, those
//! of the same tag. An exact receive looks only at the head of one list. A receive with ignore bits
//! walks the list of all.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use slab::Slab;

use super::hash::Mixer;
use super::ids::{PeerId, ReceiveId};
use super::list::{Linked, Links, List};
use super::operation::{SourceFilter, TagFilter};

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
    pub(crate) key: PostedKey,
    pub(crate) receive: ReceiveId,
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
    all: List<ALL>,
    by_source_and_tag: HashTable<Bucket<BY_SOURCE_AND_TAG>>,
    by_tag: HashTable<Bucket<BY_TAG>>,
    mixer: Mixer,
}

struct Posted {
    receive: ReceiveId,
    /// It may take several messages.
    stays: bool,
    order: u64,
    group: u32,
    key: Key,
    links: Links,
}

/// Receives with the same ignore mask that all name a source, or all do not.
struct Group {
    ignore: u64,
    directed: bool,
    /// Receives in the group. An empty group costs a message nothing but this test.
    count: usize,
    queues: HashTable<Bucket<QUEUE>>,
}

impl Group {
    fn key(&self, source: PeerId, tag: u64) -> Key {
        Key {
            source: self.directed.then_some(source),
            tag: tag & !self.ignore,
        }
    }
}

struct Unexpected<M> {
    message: M,
    source: PeerId,
    tag: u64,
    links: [Links; 3],
}

const ALL: usize = 0;
const BY_SOURCE_AND_TAG: usize = 1;
const BY_TAG: usize = 2;
const QUEUE: usize = 3;

impl Linked<QUEUE> for Posted {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
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
unexpected_stands_in!(ALL BY_SOURCE_AND_TAG BY_TAG);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    source: Option<PeerId>,
    tag: u64,
}

impl Key {
    fn hash(self, mixer: Mixer) -> u64 {
        // All ones is no peer's id: its slot number would be out of range.
        mixer.hash(self.tag, self.source.map_or(u64::MAX, PeerId::to_bits))
    }
}

/// A list and the key under which a hash table holds it. Empty lists leave the table.
struct Bucket<const LIST: usize> {
    key: Key,
    list: List<LIST>,
}

fn push<T: Linked<LIST>, const LIST: usize>(
    table: &mut HashTable<Bucket<LIST>>,
    mixer: Mixer,
    nodes: &mut Slab<T>,
    key: Key,
    node: u32,
) {
    let entry = table.entry(
        key.hash(mixer),
        |bucket| bucket.key == key,
        |bucket| bucket.key.hash(mixer),
    );
    let mut occupied = match entry {
        Entry::Occupied(occupied) => occupied,
        Entry::Vacant(vacant) => vacant.insert(Bucket {
            key,
            list: List::EMPTY,
        }),
    };
    occupied.get_mut().list.push_back(nodes, node);
}

fn front<const LIST: usize>(
    table: &HashTable<Bucket<LIST>>,
    mixer: Mixer,
    key: Key,
) -> Option<u32> {
    table
        .find(key.hash(mixer), |bucket| bucket.key == key)
        .and_then(|bucket| bucket.list.front())
}

fn unlink<T: Linked<LIST>, const LIST: usize>(
    table: &mut HashTable<Bucket<LIST>>,
    mixer: Mixer,
    nodes: &mut Slab<T>,
    key: Key,
    node: u32,
) {
    if let Ok(mut entry) = table.find_entry(key.hash(mixer), |bucket| bucket.key == key) {
        entry.get_mut().list.remove(nodes, node);
        if entry.get().list.is_empty() {
            entry.remove();
        }
    }
}

impl<M> Matcher<M> {
    pub(crate) fn new(mixer: Mixer) -> Self {
        Matcher {
            posted: Slab::new(),
            groups: Vec::new(),
            next_order: 0,
            unexpected: Slab::new(),
            all: List::EMPTY,
            by_source_and_tag: HashTable::new(),
            by_tag: HashTable::new(),
            mixer,
        }
    }

    /// Posts a receive behind all others. `stays` comes back when it is found.
    pub(crate) fn post(&mut self, receive: ReceiveId, filter: Filter, stays: bool) -> PostedKey {
        let group_index = self.group(filter);
        let group = &mut self.groups[group_index];
        let key = Key {
            source: match filter.source {
                SourceFilter::Any => None,
                SourceFilter::Peer(peer) => Some(peer),
            },
            tag: filter.tag.tag & !filter.tag.ignore,
        };
        let node = self.posted.insert(Posted {
            receive,
            stays,
            order: self.next_order,
            group: group_index as u32,
            key,
            links: Links::NONE,
        }) as u32;
        self.next_order += 1;
        group.count += 1;
        push(&mut group.queues, self.mixer, &mut self.posted, key, node);
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
            queues: HashTable::new(),
        });
        self.groups.len() - 1
    }

    /// Finds the oldest receive that accepts a message.
    pub(crate) fn find_receive(&self, source: PeerId, tag: u64) -> Option<Found> {
        let mut oldest: Option<(u64, u32)> = None;
        for group in self.groups.iter().filter(|group| group.count > 0) {
            if let Some(node) = front(&group.queues, self.mixer, group.key(source, tag)) {
                let order = self.posted[node as usize].order;
                if oldest.is_none_or(|(oldest, _)| order < oldest) {
                    oldest = Some((order, node));
                }
            }
        }
        oldest.map(|(_, node)| {
            let posted = &self.posted[node as usize];
            Found {
                key: PostedKey(node),
                receive: posted.receive,
                stays: posted.stays,
            }
        })
    }

    /// Takes out a posted receive.
    pub(crate) fn remove_receive(&mut self, PostedKey(node): PostedKey) -> ReceiveId {
        let Posted { group, key, .. } = self.posted[node as usize];
        let group = &mut self.groups[group as usize];
        group.count -= 1;
        unlink(&mut group.queues, self.mixer, &mut self.posted, key, node);
        self.posted.remove(node as usize).receive
    }

    /// Posted receives, oldest first.
    #[cfg(test)]
    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Keeps a message that no receive accepts yet, behind all others.
    pub(crate) fn add_unexpected(&mut self, source: PeerId, tag: u64, message: M) -> UnexpectedKey {
        let node = self.unexpected.insert(Unexpected {
            message,
            source,
            tag,
            links: [Links::NONE; 3],
        }) as u32;
        self.all.push_back(&mut self.unexpected, node);
        push(
            &mut self.by_source_and_tag,
            self.mixer,
            &mut self.unexpected,
            Key {
                source: Some(source),
                tag,
            },
            node,
        );
        push(
            &mut self.by_tag,
            self.mixer,
            &mut self.unexpected,
            Key { source: None, tag },
            node,
        );
        UnexpectedKey(node)
    }

    /// Unexpected messages.
    pub(crate) fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }

    /// The first message to have arrived that a receive accepts.
    pub(crate) fn find_unexpected(&self, filter: &Filter) -> Option<UnexpectedKey> {
        let tag = filter.tag.tag;
        let node = match (filter.tag.ignore, filter.source) {
            (0, SourceFilter::Any) => front(&self.by_tag, self.mixer, Key { source: None, tag }),
            (0, SourceFilter::Peer(source)) => front(
                &self.by_source_and_tag,
                self.mixer,
                Key {
                    source: Some(source),
                    tag,
                },
            ),
            _ => self.all.iter(&self.unexpected).find(|node| {
                let message = &self.unexpected[*node as usize];
                filter.accepts(message.source, message.tag)
            }),
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
        let Unexpected { source, tag, .. } = self.unexpected[node as usize];
        self.all.remove(&mut self.unexpected, node);
        unlink(
            &mut self.by_source_and_tag,
            self.mixer,
            &mut self.unexpected,
            Key {
                source: Some(source),
                tag,
            },
            node,
        );
        unlink(
            &mut self.by_tag,
            self.mixer,
            &mut self.unexpected,
            Key { source: None, tag },
            node,
        );
        (source, tag, self.unexpected.remove(node as usize).message)
    }

    /// The unexpected messages of one source, in the order of their arrival; linear in the number
    /// of all unexpected messages.
    pub(crate) fn unexpected_from(&self, source: PeerId) -> Vec<UnexpectedKey> {
        self.all
            .iter(&self.unexpected)
            .filter(|node| self.unexpected[*node as usize].source == source)
            .map(UnexpectedKey)
            .collect()
    }

    /// Posted receives that name this source, oldest first; linear in the number of all receives.
    pub(crate) fn posted_for(&self, source: PeerId) -> Vec<PostedKey> {
        let mut keys: Vec<(u64, PostedKey)> = self
            .posted
            .iter()
            .filter(|(_, posted)| posted.key.source == Some(source))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::endpoint::ids::Id;

    /// The matching rules as plain lists.
    #[derive(Default)]
    struct Model {
        posted: Vec<(ReceiveId, Filter)>,
        unexpected: Vec<(PeerId, u64, u32)>,
    }

    impl Model {
        fn message(&mut self, source: PeerId, tag: u64, number: u32) -> Option<ReceiveId> {
            match self
                .posted
                .iter()
                .position(|(_, filter)| filter.accepts(source, tag))
            {
                Some(position) => Some(self.posted.remove(position).0),
                None => {
                    self.unexpected.push((source, tag, number));
                    None
                }
            }
        }

        fn receive(&mut self, id: ReceiveId, filter: Filter) -> Option<u32> {
            match self
                .unexpected
                .iter()
                .position(|(source, tag, _)| filter.accepts(*source, *tag))
            {
                Some(position) => Some(self.unexpected.remove(position).2),
                None => {
                    self.posted.push((id, filter));
                    None
                }
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Message { source: u32, tag: u64 },
        Receive { source: Option<u32>, tag: TagFilter },
        Cancel { position: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let source = 0..3_u32;
        let tag = 0..8_u64;
        let ignore = prop_oneof![3 => Just(0), 1 => Just(7), 1 => Just(u64::MAX), 2 => 0..8_u64];
        let step = prop_oneof![
            4 => (source.clone(), tag.clone())
                .prop_map(|(source, tag)| Step::Message { source, tag }),
            4 => (proptest::option::of(source), tag, ignore).prop_map(|(source, tag, ignore)| {
                Step::Receive { source, tag: TagFilter { tag, ignore } }
            }),
            1 => any::<usize>().prop_map(|position| Step::Cancel { position }),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn behaves_as_plain_lists_do(steps in steps()) {
            let mut matcher = Matcher::new(Mixer::new(7));
            let mut model = Model::default();
            let mut keys = std::collections::HashMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                let number = number as u32;
                match step {
                    Step::Message { source, tag } => {
                        let source = PeerId::new(source, 0);
                        let found = matcher.find_receive(source, tag);
                        let found = found.map(|found| matcher.remove_receive(found.key));
                        prop_assert_eq!(found, model.message(source, tag, number));
                        if found.is_none() {
                            matcher.add_unexpected(source, tag, number);
                        }
                    }
                    Step::Receive { source, tag } => {
                        let id = ReceiveId::new(number, 0);
                        let source = source.map_or(SourceFilter::Any, |source| {
                            SourceFilter::Peer(PeerId::new(source, 0))
                        });
                        let filter = Filter { source, tag };
                        let found = matcher
                            .find_unexpected(&filter)
                            .map(|key| matcher.remove_unexpected(key).2);
                        prop_assert_eq!(found, model.receive(id, filter));
                        if found.is_none() {
                            keys.insert(number, matcher.post(id, filter, false));
                        }
                    }
                    Step::Cancel { position } => {
                        if !model.posted.is_empty() {
                            let position = position % model.posted.len();
                            let (id, _) = model.posted.remove(position);
                            prop_assert_eq!(
                                matcher.remove_receive(keys[&(id.index() as u32)]),
                                id
                            );
                        }
                    }
                }
                prop_assert_eq!(matcher.posted_len(), model.posted.len());
            }
            for source in 0..3 {
                let source = PeerId::new(source, 0);
                let left: Vec<u32> = matcher
                    .unexpected_from(source)
                    .into_iter()
                    .map(|key| *matcher.unexpected_mut(key).2)
                    .collect();
                let expected: Vec<u32> = model
                    .unexpected
                    .iter()
                    .filter(|(from, ..)| *from == source)
                    .map(|(.., number)| *number)
                    .collect();
                prop_assert_eq!(left, expected);
                let posted: Vec<ReceiveId> = matcher
                    .posted_for(source)
                    .into_iter()
                    .map(|key| matcher.posted[key.0 as usize].receive)
                    .collect();
                let expected: Vec<ReceiveId> = model
                    .posted
                    .iter()
                    .filter(|(_, filter)| filter.source == SourceFilter::Peer(source))
                    .map(|(id, _)| *id)
                    .collect();
                prop_assert_eq!(posted, expected);
            }
            let first = model.posted.first().map(|(id, _)| *id);
            prop_assert_eq!(matcher.find_posted(|_| true), first);
        }
    }
}
