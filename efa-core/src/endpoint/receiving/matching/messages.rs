//! The queues of messages that no receive has matched.

use slab::Slab;

use crate::endpoint::api::operation::SourceFilter;
use crate::endpoint::base::by_peer::{PeerLinks, PeerLists, PeerNodes};
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::PeerId;

use super::Filter;
use super::arrivals::{ArrivalNumber, Arrivals};
use super::queues::{Key, Links, Nodes, Queues};

const BY_SOURCE_AND_TAG: usize = 0;
const BY_TAG: usize = 1;

/// Names a message inside its [`MessageQueues`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageKey(u32);

/// The messages of one kind, tagged or untagged, that no receive has matched. `M` is a message.
pub(crate) struct MessageQueues<M> {
    messages: Slab<QueuedMessage<M>>,
    all: Arrivals,
    by_source_and_tag: Queues<BY_SOURCE_AND_TAG>,
    by_tag: Queues<BY_TAG>,
    by_source: PeerLists,
    hasher: SeededHasher,
}

struct QueuedMessage<M> {
    message: M,
    source: PeerId,
    tag: u64,
    links: [Links; 2],
    of_source: PeerLinks,
    place: ArrivalNumber,
}

impl<M> PeerNodes for Slab<QueuedMessage<M>> {
    fn links(&self, node: u32) -> &PeerLinks {
        &self[node as usize].of_source
    }

    fn links_mut(&mut self, node: u32) -> &mut PeerLinks {
        &mut self[node as usize].of_source
    }
}

/// Makes messages the elements of a queue, whose key has the source that the function returns.
macro_rules! elements_of {
    ($($queue:ident: $source:expr,)*) => {$(
        impl<M> Nodes<$queue> for Slab<QueuedMessage<M>> {
            fn key(&self, node: u32) -> Key {
                let queued = &self[node as usize];
                let source: fn(PeerId) -> Option<PeerId> = $source;
                Key::new(source(queued.source), queued.tag)
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
elements_of! {
    BY_SOURCE_AND_TAG: Some,
    BY_TAG: |_| None,
}

impl<M> MessageQueues<M> {
    pub(crate) fn new(hasher: SeededHasher) -> Self {
        MessageQueues {
            messages: Slab::new(),
            all: Arrivals::default(),
            by_source_and_tag: Queues::default(),
            by_tag: Queues::default(),
            by_source: PeerLists::default(),
            hasher,
        }
    }

    /// Appends a message.
    pub(crate) fn push(&mut self, source: PeerId, tag: u64, message: M) -> MessageKey {
        let node = self.messages.vacant_key() as u32;
        let nodes = &mut self.messages;
        let (of_source, of_any) = (Key::new(Some(source), tag), Key::new(None, tag));
        let links = [
            self.by_source_and_tag
                .push(self.hasher, nodes, of_source, node),
            self.by_tag.push(self.hasher, nodes, of_any, node),
        ];
        nodes.insert(QueuedMessage {
            message,
            source,
            tag,
            links,
            of_source: PeerLinks::NONE,
            place: self.all.push(source, tag, node),
        });
        self.by_source.push(nodes, source, node);
        MessageKey(node)
    }

    /// The number of messages.
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The first message to have arrived that a receive accepts.
    pub(crate) fn find(&self, filter: &Filter) -> Option<MessageKey> {
        if self.messages.is_empty() {
            return None;
        }
        let tag = filter.tag.tag;
        let front = |source| match source {
            None => {
                let key = Key::new(None, tag);
                self.by_tag.find(key.hash(self.hasher), &self.messages, key)
            }
            source => {
                let key = Key::new(source, tag);
                self.by_source_and_tag
                    .find(key.hash(self.hasher), &self.messages, key)
            }
        };
        let front = |source| front(source).map(|front| front.node);
        let node = match (filter.tag.ignore, filter.source) {
            (0, SourceFilter::Any) => front(None),
            (0, SourceFilter::Peer(source)) => front(Some(source)),
            _ => self
                .all
                .iter()
                .find(|arrival| filter.accepts(arrival.source, arrival.tag))
                .map(|arrival| arrival.node),
        };
        node.map(MessageKey)
    }

    /// A message, with its source and tag.
    pub(crate) fn get_mut(&mut self, MessageKey(node): MessageKey) -> (PeerId, u64, &mut M) {
        let queued = &mut self.messages[node as usize];
        (queued.source, queued.tag, &mut queued.message)
    }

    /// Removes a message. Returns it with its source and tag.
    pub(crate) fn remove(&mut self, MessageKey(node): MessageKey) -> (PeerId, u64, M) {
        let nodes = &mut self.messages;
        let QueuedMessage { source, tag, .. } = nodes[node as usize];
        let hash = |source| Key::new(source, tag).hash(self.hasher);
        self.by_source_and_tag
            .remove(hash(Some(source)), nodes, node);
        self.by_tag.remove(hash(None), nodes, node);
        self.by_source.remove(nodes, source, node);
        let QueuedMessage { message, place, .. } = nodes.remove(node as usize);
        self.all
            .remove(place, |node, place| nodes[node as usize].place = place);
        (source, tag, message)
    }

    /// Returns whether there is no message of a source.
    pub(crate) fn has_none_from(&self, source: PeerId) -> bool {
        self.by_source.is_empty(source)
    }

    /// The messages of one source, in the order of their arrival.
    pub(crate) fn of_source(&self, source: PeerId) -> Vec<MessageKey> {
        let nodes = self.by_source.of(&self.messages, source);
        nodes.into_iter().map(MessageKey).collect()
    }
}
