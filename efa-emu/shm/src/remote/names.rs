//! Names of outstanding requests, which become invalid when the request ends.

use std::collections::HashMap;

/// A table whose entries have names of 64 bits: index and generation. The other side of a bridge
/// may send any name; an old name never finds a later entry.
#[derive(Debug)]
pub(super) struct NameTable<T> {
    places: Vec<NamePlace<T>>,
    free: Vec<u32>,
    taken: usize,
}

#[derive(Debug)]
struct NamePlace<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T> Default for NameTable<T> {
    fn default() -> NameTable<T> {
        NameTable {
            places: Vec::new(),
            free: Vec::new(),
            taken: 0,
        }
    }
}

impl<T> NameTable<T> {
    /// Adds `entry` and returns its name, never 0.
    pub(super) fn insert(&mut self, entry: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(NamePlace {
                generation: 1,
                entry: None,
            });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.entry = Some(entry);
        self.taken += 1;
        u64::from(place.generation) << 32 | u64::from(index)
    }

    pub(super) fn len(&self) -> usize {
        self.taken
    }

    fn place(&mut self, name: u64) -> Option<&mut NamePlace<T>> {
        self.places
            .get_mut(name as u32 as usize)
            .filter(|place| place.generation == (name >> 32) as u32)
    }

    pub(super) fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        self.place(name)?.entry.as_mut()
    }

    pub(super) fn remove(&mut self, name: u64) -> Option<T> {
        let place = self.place(name)?;
        let entry = place.entry.take()?;
        // Never 0, so that no name is 0.
        place.generation = place.generation.wrapping_add(1).max(1);
        self.free.push(name as u32);
        self.taken -= 1;
        Some(entry)
    }

    /// Removes and returns all entries for which `chosen` returns true.
    pub(super) fn extract(&mut self, mut chosen: impl FnMut(&T) -> bool) -> Vec<T> {
        let is_chosen = |place: &NamePlace<T>| place.entry.as_ref().is_some_and(&mut chosen);
        let names: Vec<u64> = self
            .places
            .iter()
            .map(is_chosen)
            .enumerate()
            .filter(|(_, is_chosen)| *is_chosen)
            .map(|(index, _)| u64::from(self.places[index].generation) << 32 | index as u64)
            .collect();
        names
            .into_iter()
            .filter_map(|name| self.remove(name))
            .collect()
    }
}

/// A table whose entries have names of 32 bits, because a record has no room for more. Names are
/// consecutive numbers, so a name is reused only after all others.
#[derive(Debug)]
pub(super) struct NumberTable<T> {
    entries: HashMap<u32, T>,
    last: u32,
}

impl<T> Default for NumberTable<T> {
    fn default() -> NumberTable<T> {
        NumberTable {
            entries: HashMap::new(),
            last: 0,
        }
    }
}

impl<T> NumberTable<T> {
    /// Adds `entry` and returns its name.
    pub(super) fn insert(&mut self, entry: T) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.entries.contains_key(&self.last) {
                self.entries.insert(self.last, entry);
                return self.last;
            }
        }
    }

    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        self.entries.get_mut(&name)
    }

    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        self.entries.remove(&name)
    }

    /// Removes the entries for which `keep` returns false.
    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.entries.retain(|_, entry| keep(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_reused_soon_or_while_used() {
        let mut numbers = NumberTable::default();
        let first = numbers.insert('a');
        let second = numbers.insert('b');
        assert_eq!(numbers.remove(first), Some('a'));
        assert!(![first, second].contains(&numbers.insert('c')));
        assert_eq!(numbers.get_mut(first), None);
        numbers.last = second - 1;
        let after = numbers.insert('d');
        assert_ne!(after, second);
        assert_eq!(numbers.get_mut(second), Some(&mut 'b'));
        numbers.retain(|entry| *entry == 'd');
        assert_eq!(numbers.get_mut(second), None);
        assert_eq!(numbers.get_mut(after), Some(&mut 'd'));
    }

    #[test]
    fn a_name_is_good_for_one_entry() {
        let mut names = NameTable::default();
        let first = names.insert('a');
        assert_ne!(first, 0);
        assert_eq!(names.remove(first), Some('a'));
        let second = names.insert('b');
        assert_ne!(first, second);
        assert_eq!(names.get_mut(first), None);
        assert_eq!(names.remove(first), None);
        assert_eq!(names.get_mut(u64::MAX), None);
        names.insert('c');
        assert_eq!(names.extract(|entry| *entry == 'b'), ['b']);
        assert_eq!((names.len(), names.remove(second)), (1, None));
    }
}
