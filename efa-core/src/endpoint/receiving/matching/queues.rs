//! Queues of elements that are in slots elsewhere, found by key.
//!
//! All links are in the elements. A queue is a list of elements with the same key, and the first
//! element of each queue is in the list of its bucket. So inserting and removing an element needs
//! no memory of its own, and a look-up reads a bucket and the first elements of its queues, nearly
//! always one.

use crate::endpoint::base::hash::Mixer;
use crate::endpoint::base::ids::PeerId;

/// The key of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    source: u64,
    tag: u64,
}

impl Key {
    /// No peer has this id: its slot number would be out of range.
    const ANY: u64 = u64::MAX;

    #[inline]
    pub(super) fn new(source: Option<PeerId>, tag: u64) -> Self {
        Key {
            source: source.map_or(Self::ANY, PeerId::to_bits),
            tag,
        }
    }

    pub(super) fn source(self) -> Option<PeerId> {
        (self.source != Self::ANY).then_some(PeerId::from_bits(self.source))
    }

    #[inline]
    pub(super) fn hash(self, mixer: Mixer) -> u64 {
        mixer.hash(self.tag, self.source)
    }
}

/// No slot.
const END: u32 = u32::MAX;

/// The links of an element in its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Links {
    /// The element before it; of the first element, the last one.
    previous: u32,
    /// The element behind it.
    next: u32,
    /// Of the first element of a queue: the first element of another queue in the same bucket.
    neighbour: u32,
}

impl Links {
    /// The links of an element that is in no queue.
    pub(super) const NONE: Links = Links {
        previous: END,
        next: END,
        neighbour: END,
    };
}

/// Slots with elements that can be in a queue of [`Queues<QUEUE>`].
pub(super) trait Nodes<const QUEUE: usize> {
    /// The key of an element. It does not change while the element is in a queue.
    fn key(&self, node: u32) -> Key;
    fn links(&self, node: u32) -> &Links;
    fn links_mut(&mut self, node: u32) -> &mut Links;
}

/// A hash table of queues.
#[derive(Default)]
pub(super) struct Queues<const QUEUE: usize> {
    /// The first element of the first queue of each bucket. Empty, or a power of two.
    buckets: Vec<u32>,
    /// The number of queues that are not empty, at most half that of the buckets, so that a look-up
    /// rarely meets a queue with another key.
    queues: usize,
}

/// Buckets of the table when the first queue is added.
const MIN_BUCKETS: usize = 16;

impl<const QUEUE: usize> Queues<QUEUE> {
    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        hash as usize & self.buckets.len().wrapping_sub(1)
    }

    /// The first element of the queue with the key `wanted`, whose hash is `hash`.
    #[inline]
    pub(super) fn front(&self, hash: u64, nodes: &impl Nodes<QUEUE>, wanted: Key) -> Option<u32> {
        let mut node = *self.buckets.get(self.bucket(hash))?;
        while node != END {
            if nodes.key(node) == wanted {
                return Some(node);
            }
            node = nodes.links(node).neighbour;
        }
        None
    }

    /// Puts an element at the end of its queue.
    #[inline]
    pub(super) fn push(&mut self, mixer: Mixer, nodes: &mut impl Nodes<QUEUE>, node: u32) {
        let key = nodes.key(node);
        let hash = key.hash(mixer);
        if let Some(first) = self.front(hash, nodes, key) {
            let last = nodes.links(first).previous;
            nodes.links_mut(last).next = node;
            nodes.links_mut(first).previous = node;
            *nodes.links_mut(node) = Links {
                previous: last,
                ..Links::NONE
            };
            return;
        }
        if self.queues * 2 >= self.buckets.len() {
            self.grow(mixer, nodes);
        }
        self.queues += 1;
        self.insert_front(hash, nodes, node, node);
    }

    /// Makes an element the first one of a new queue.
    #[inline]
    fn insert_front(&mut self, hash: u64, nodes: &mut impl Nodes<QUEUE>, node: u32, last: u32) {
        let bucket = self.bucket(hash);
        if let Some(first) = self.buckets.get_mut(bucket) {
            let links = nodes.links_mut(node);
            links.previous = last;
            links.neighbour = core::mem::replace(first, node);
        }
    }

    #[cold]
    fn grow(&mut self, mixer: Mixer, nodes: &mut impl Nodes<QUEUE>) {
        let count = (self.buckets.len() * 2).max(MIN_BUCKETS);
        let old = core::mem::replace(&mut self.buckets, vec![END; count]);
        for mut node in old {
            while node != END {
                let Links {
                    previous: last,
                    neighbour,
                    ..
                } = *nodes.links(node);
                let hash = nodes.key(node).hash(mixer);
                self.insert_front(hash, nodes, node, last);
                node = neighbour;
            }
        }
    }

    /// Removes an element from its queue, given the hash of its key.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, nodes: &mut impl Nodes<QUEUE>, node: u32) {
        let Links {
            previous,
            next,
            neighbour,
        } = *nodes.links(node);
        // A single element is its own predecessor.
        let is_first = previous == node || nodes.links(previous).next == END;
        if !is_first {
            // The first element has a link to the last one.
            let behind = match next {
                END => self.front(hash, nodes, nodes.key(node)),
                next => Some(next),
            };
            nodes.links_mut(previous).next = next;
            if let Some(behind) = behind {
                nodes.links_mut(behind).previous = previous;
            }
            return;
        }
        let successor = match next {
            END => {
                self.queues -= 1;
                neighbour
            }
            next => {
                let links = nodes.links_mut(next);
                links.neighbour = neighbour;
                links.previous = previous;
                next
            }
        };
        self.replace_front(hash, nodes, node, successor);
    }

    /// Replaces the first element of a queue in the list of its bucket.
    #[inline]
    fn replace_front(
        &mut self,
        hash: u64,
        nodes: &mut impl Nodes<QUEUE>,
        node: u32,
        successor: u32,
    ) {
        let bucket = self.bucket(hash);
        let Some(first) = self.buckets.get_mut(bucket) else {
            return;
        };
        if *first == node {
            *first = successor;
            return;
        }
        let mut at = *first;
        while at != END {
            let links = nodes.links_mut(at);
            if links.neighbour == node {
                links.neighbour = successor;
                return;
            }
            at = links.neighbour;
        }
    }
}
