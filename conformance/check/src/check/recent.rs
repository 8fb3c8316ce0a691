//! The latest elements of a capture, found by key.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Elements in the order of their arrival, each found by its key. They are stored contiguously, and
/// only their numbers are in the hash table: most elements are added, looked up soon or never, and
/// removed as the oldest.
#[derive(Debug)]
pub(super) struct RecentMap<K, V> {
    things: VecDeque<(K, V)>,
    /// The numbers of elements, which count all that were ever added.
    numbers: HashTable<u32>,
    /// The number of removed elements.
    gone: u32,
}

impl<K, V> Default for RecentMap<K, V> {
    fn default() -> Self {
        RecentMap {
            things: VecDeque::new(),
            numbers: HashTable::new(),
            gone: 0,
        }
    }
}

fn hash(key: &impl Hash) -> u64 {
    FixedState::default().hash_one(key)
}

impl<K: Hash + Eq, V> RecentMap<K, V> {
    pub(super) fn len(&self) -> usize {
        self.things.len()
    }

    fn place(&self, number: u32) -> usize {
        number.wrapping_sub(self.gone) as usize
    }

    pub(super) fn find(&self, key: &K) -> Option<u32> {
        let is_it = |number: &u32| self.get(*number).0 == *key;
        self.numbers.find(hash(key), is_it).copied()
    }

    /// The element with a number.
    pub(super) fn get(&self, number: u32) -> &(K, V) {
        &self.things[self.place(number)]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut V {
        let at = self.place(number);
        &mut self.things[at].1
    }

    /// The number of the element with a key, which is added as the latest one if it does not exist.
    pub(super) fn find_or_insert(&mut self, key: K, new: impl FnOnce() -> V) -> u32 {
        let (things, gone) = (&self.things, self.gone);
        let key_of = |number: &u32| &things[number.wrapping_sub(gone) as usize].0;
        let is_it = |number: &u32| *key_of(number) == key;
        let hash_of = |number: &u32| hash(key_of(number));
        match self.numbers.entry(hash(&key), is_it, hash_of) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(vacant) => {
                let number = gone.wrapping_add(things.len() as u32);
                vacant.insert(number);
                self.things.push_back((key, new()));
                number
            }
        }
    }

    /// Removes the oldest element.
    pub(super) fn pop(&mut self) -> Option<(K, V)> {
        let (key, value) = self.things.pop_front()?;
        let oldest = self.gone;
        if let Ok(number) = self.numbers.find_entry(hash(&key), |it| *it == oldest) {
            number.remove();
        }
        self.gone = oldest.wrapping_add(1);
        Some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RecentMap;

    proptest! {
        #[test]
        fn things_are_found_until_they_are_the_oldest(
            steps in prop::collection::vec((0..30_u64, any::<bool>()), 0..300),
            first in prop_oneof![Just(0), Just(u32::MAX - 20)],
        ) {
            let mut recent = RecentMap { gone: first, ..RecentMap::default() };
            let mut expected: Vec<(u64, usize)> = Vec::new();
            for (step, (key, is_pop)) in steps.into_iter().enumerate() {
                if is_pop {
                    let oldest = (!expected.is_empty()).then(|| expected.remove(0));
                    prop_assert_eq!(recent.pop(), oldest);
                } else {
                    if !expected.iter().any(|(known, _)| *known == key) {
                        expected.push((key, step));
                    }
                    let value = expected.iter().find(|(known, _)| *known == key).unwrap().1;
                    let number = recent.find_or_insert(key, || step);
                    prop_assert_eq!(*recent.get_mut(number), value);
                }
                prop_assert_eq!(recent.len(), expected.len());
                for key in 0..30 {
                    let value = expected.iter().find(|(known, _)| *known == key);
                    let found = recent.find(&key).map(|number| recent.get(number));
                    prop_assert_eq!(found, value);
                }
            }
        }
    }
}
