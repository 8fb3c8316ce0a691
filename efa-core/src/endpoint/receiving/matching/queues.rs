//! Queues of elements that are in slots elsewhere, found by key.
//!
//! All links are in the elements. A queue is a list of elements with the same key, and the first
//! element of each queue is in the list of its bucket. So inserting and removing an element needs
//! no allocation. A look-up reads a bucket and the first elements of its queues, nearly always one.

use crate::endpoint::base::hash::SeededHasher;
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
    pub(super) fn hash(self, hasher: SeededHasher) -> u64 {
        hasher.hash(self.tag, self.source)
    }
}

/// No slot.
const END: u32 = u32::MAX;

/// The links of an element in its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Links {
    /// The element before it; of the first element, the last one.
    previous: u32,
    /// The next element.
    next: u32,
    /// For the first element of a queue: the first element of another queue in the same bucket.
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

/// A queue that is not empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    bucket: usize,
    /// The first element of the queue before it in the bucket.
    before: u32,
    /// Its first element.
    pub(super) node: u32,
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

    /// The queue with the key `wanted`, whose hash is `hash`.
    #[inline]
    pub(super) fn find(&self, hash: u64, nodes: &impl Nodes<QUEUE>, wanted: Key) -> Option<Front> {
        let bucket = self.bucket(hash);
        let mut front = Front {
            bucket,
            before: END,
            node: *self.buckets.get(bucket)?,
        };
        while front.node != END {
            if nodes.key(front.node) == wanted {
                return Some(front);
            }
            front.before = front.node;
            front.node = nodes.links(front.node).neighbour;
        }
        None
    }

    /// Puts an element at the end of its queue, and returns its links. It need not be in its slot
    /// yet.
    #[inline]
    pub(super) fn push(
        &mut self,
        hasher: SeededHasher,
        nodes: &mut impl Nodes<QUEUE>,
        key: Key,
        node: u32,
    ) -> Links {
        let hash = key.hash(hasher);
        if let Some(Front { node: first, .. }) = self.find(hash, nodes, key) {
            let last = core::mem::replace(&mut nodes.links_mut(first).previous, node);
            nodes.links_mut(last).next = node;
            return Links {
                previous: last,
                ..Links::NONE
            };
        }
        if self.queues * 2 >= self.buckets.len() {
            self.grow(hasher, nodes);
        }
        self.queues += 1;
        Links {
            previous: node,
            next: END,
            neighbour: self.insert_front(hash, node),
        }
    }

    /// Makes an element the first one of a bucket. Returns the previous first one.
    #[inline]
    fn insert_front(&mut self, hash: u64, node: u32) -> u32 {
        let bucket = self.bucket(hash);
        match self.buckets.get_mut(bucket) {
            Some(first) => core::mem::replace(first, node),
            None => END,
        }
    }

    #[cold]
    fn grow(&mut self, hasher: SeededHasher, nodes: &mut impl Nodes<QUEUE>) {
        let count = (self.buckets.len() * 2).max(MIN_BUCKETS);
        let old = core::mem::replace(&mut self.buckets, vec![END; count]);
        for mut node in old {
            while node != END {
                let hash = nodes.key(node).hash(hasher);
                let neighbour = self.insert_front(hash, node);
                node = core::mem::replace(&mut nodes.links_mut(node).neighbour, neighbour);
            }
        }
    }

    /// Removes an element from its queue, given the hash of its key.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, nodes: &mut impl Nodes<QUEUE>, node: u32) {
        let Links { previous, next, .. } = *nodes.links(node);
        let Some(front) = self.find(hash, nodes, nodes.key(node)) else {
            return;
        };
        if front.node == node {
            return self.remove_first(nodes, front);
        }
        nodes.links_mut(previous).next = next;
        // The first element has a link to the last one.
        let behind = match next {
            END => front.node,
            next => next,
        };
        nodes.links_mut(behind).previous = previous;
    }

    /// Removes the first element of a queue.
    #[inline]
    pub(super) fn remove_first(&mut self, nodes: &mut impl Nodes<QUEUE>, front: Front) {
        let Links {
            previous,
            next,
            neighbour,
        } = *nodes.links(front.node);
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
        match front.before {
            END => self.buckets[front.bucket] = successor,
            before => nodes.links_mut(before).neighbour = successor,
        }
    }
}
