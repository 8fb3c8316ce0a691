//! Queues of slab elements, found by key.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use slab::Slab;

use crate::endpoint::hash::Mixer;
use crate::endpoint::ids::PeerId;
use crate::endpoint::list::{Linked, List};

/// What the elements of one queue have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    source: u64,
    tag: u64,
}

impl Key {
    /// All ones is no peer's id: its slot number would be out of range.
    const ANY: u64 = u64::MAX;

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

/// A slab's element that can stand in a queue of [`Queues<QUEUE>`].
pub(super) trait Queued<const QUEUE: usize>: Linked<QUEUE> {
    /// Which queue; it does not change while the element is in it.
    fn key(&self) -> Key;
}

/// A hash table of queues. It holds no keys: the first element of each queue has it, and that is
/// what a look-up is after. Empty queues leave the table.
#[derive(Default)]
pub(super) struct Queues<const QUEUE: usize> {
    table: HashTable<List<QUEUE>>,
}

fn key<T: Queued<QUEUE>, const QUEUE: usize>(nodes: &Slab<T>, queue: &List<QUEUE>) -> Option<Key> {
    let front = queue.front()?;
    nodes.get(front as usize).map(T::key)
}

impl<const QUEUE: usize> Queues<QUEUE> {
    /// The first element of a queue, given the hash of its key.
    #[inline]
    pub(super) fn front<T: Queued<QUEUE>>(
        &self,
        hash: u64,
        nodes: &Slab<T>,
        wanted: Key,
    ) -> Option<u32> {
        self.table
            .find(hash, |queue| key(nodes, queue) == Some(wanted))
            .and_then(List::front)
    }

    /// Puts an element at the end of its queue.
    pub(super) fn push<T: Queued<QUEUE>>(&mut self, mixer: Mixer, nodes: &mut Slab<T>, node: u32) {
        let wanted = nodes[node as usize].key();
        let entry = self.table.entry(
            wanted.hash(mixer),
            |queue| key(nodes, queue) == Some(wanted),
            |queue| key(nodes, queue).map_or(0, |key| key.hash(mixer)),
        );
        match entry {
            Entry::Occupied(mut occupied) => occupied.get_mut().push_back(nodes, node),
            Entry::Vacant(vacant) => {
                let mut queue = List::EMPTY;
                queue.push_back(nodes, node);
                vacant.insert(queue);
            }
        }
    }

    /// Takes out an element that is the first of its queue, given the hash of its key.
    pub(super) fn pop_front<T: Queued<QUEUE>>(
        &mut self,
        hash: u64,
        nodes: &mut Slab<T>,
        node: u32,
    ) {
        let found = self
            .table
            .find_entry(hash, |queue| queue.front() == Some(node));
        if let Ok(mut entry) = found {
            entry.get_mut().remove(nodes, node);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }

    /// Takes an element out of its queue.
    pub(super) fn remove<T: Queued<QUEUE>>(
        &mut self,
        mixer: Mixer,
        nodes: &mut Slab<T>,
        node: u32,
    ) {
        let wanted = nodes[node as usize].key();
        let found = self.table.find_entry(wanted.hash(mixer), |queue| {
            key(nodes, queue) == Some(wanted)
        });
        if let Ok(mut entry) = found {
            entry.get_mut().remove(nodes, node);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}
