//! A list of entries with tags and masks, in order of insertion, that finds the first entry which
//! accepts a tag without a linear search.
//!
//! Entries with the same mask form a group, in which the masked tag is a key. Programs use few
//! masks, so the cost of a match hardly depends on the number of entries.

use std::collections::{BTreeMap, BTreeSet};

/// The tags that an entry accepts: those that equal `tag` in the bits of `mask`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Filter {
    tag: u64,
    mask: u64,
}

/// The entries with one mask: pairs of tag and number.
struct Group {
    mask: u64,
    members: BTreeSet<(u64, u64)>,
}

/// See the module documentation. Each entry has a number; later entries have larger numbers.
pub(crate) struct MatchList<T> {
    entries: BTreeMap<u64, (Filter, T)>,
    groups: Vec<Group>,
}

impl<T> MatchList<T> {
    pub(crate) fn new() -> MatchList<T> {
        MatchList {
            entries: BTreeMap::new(),
            groups: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Appends an entry. `number` must be larger than all earlier ones.
    pub(crate) fn insert(&mut self, number: u64, tag: u64, mask: u64, value: T) {
        let filter = Filter { tag, mask };
        self.entries.insert(number, (filter, value));
        let known = self.groups.iter_mut().find(|group| group.mask == mask);
        if let Some(group) = known {
            group.members.insert((tag, number));
        } else {
            let members = BTreeSet::from([(tag, number)]);
            self.groups.push(Group { mask, members });
        }
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let (Filter { tag, mask }, value) = self.entries.remove(&number)?;
        let position = self.groups.iter().position(|group| group.mask == mask)?;
        let members = &mut self.groups[position].members;
        members.remove(&(tag, number));
        if members.is_empty() {
            self.groups.swap_remove(position);
        }
        Some(value)
    }

    /// The number of the first entry that accepts this tag, of those below `end`.
    pub(crate) fn first(&self, tag: u64, end: u64) -> Option<u64> {
        let of_group = |group: &Group| {
            let key = tag & group.mask;
            let mut members = group.members.range((key, 0)..(key, end));
            members.next().map(|(_, number)| *number)
        };
        self.groups.iter().filter_map(of_group).min()
    }

    /// The first entry with a number of at least `start`.
    pub(crate) fn from(&mut self, start: u64) -> Option<(u64, &mut T)> {
        let mut rest = self.entries.range_mut(start..);
        rest.next().map(|(number, (_, value))| (*number, value))
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.entries.get(&number).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_is_first_across_masks() {
        let mut list = MatchList::new();
        list.insert(1, 0x10, 0xf0, "group");
        list.insert(2, 0x12, 0xff, "exact");
        list.insert(3, 0, 0, "any");
        assert_eq!(list.first(0x12, 4), Some(1));
        assert_eq!(list.remove(1), Some("group"));
        assert_eq!(list.first(0x12, 4), Some(2));
        assert_eq!(list.first(0x12, 2), None);
        assert_eq!(list.first(0x13, 4), Some(3));
        // No tag matches an entry whose tag has bits outside of its mask.
        list.insert(4, 0x21, 0xf0, "odd");
        assert_eq!(list.remove(3), Some("any"));
        assert_eq!(list.first(0x21, 5), None);
        assert_eq!(list.len(), 2);
    }

    proptest! {
        /// The same result as a linear search.
        #[test]
        fn a_match_is_that_of_a_walk(
            steps in prop::collection::vec((0..3u8, 0..8u64, 0..8u64), 1..60), end in 0..60u64,
        ) {
            let mut list = MatchList::new();
            let mut plain: Vec<(u64, u64, u64)> = Vec::new();
            for (number, (step, tag, mask)) in (0u64..).zip(steps) {
                if step > 0 {
                    list.insert(number, tag, mask, number);
                    plain.push((number, tag, mask));
                } else if !plain.is_empty() {
                    let (gone, ..) = plain.remove(tag as usize % plain.len());
                    prop_assert_eq!(list.remove(gone), Some(gone));
                }
                for wanted in 0..8 {
                    let accepts = |(number, tag, mask): &&(u64, u64, u64)| {
                        *number < end && wanted & mask == *tag
                    };
                    let walked = plain.iter().find(accepts).map(|(number, ..)| *number);
                    prop_assert_eq!(list.first(wanted, end), walked);
                }
            }
            prop_assert_eq!(list.len(), plain.len());
        }
    }
}
