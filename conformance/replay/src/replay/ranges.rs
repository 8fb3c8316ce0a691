//! Sets of byte offsets.

use std::ops::Range;

/// A set of offsets, as ranges that neither touch nor overlap, in ascending order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds a range. Returns the number of its offsets that were in the set already.
    pub(super) fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mut joined = range.clone();
        let mut known = 0;
        let mut kept = Vec::with_capacity(self.0.len() + 1);
        for old in self.0.drain(..) {
            if old.end < range.start || old.start > range.end {
                kept.push(old);
                continue;
            }
            let start = old.start.max(range.start);
            known += old.end.min(range.end).saturating_sub(start);
            joined = joined.start.min(old.start)..joined.end.max(old.end);
        }
        let place = kept.partition_point(|old| old.end < joined.start);
        kept.insert(place, joined);
        self.0 = kept;
        known
    }

    pub(super) fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self
                .0
                .iter()
                .any(|known| known.start <= range.start && range.end <= known.end)
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// The first part of this set that is not in `other`, within one range.
    pub(super) fn first_outside(&self, other: &Ranges) -> Option<Range<u64>> {
        for range in &self.0 {
            let mut at = range.start;
            for known in &other.0 {
                if known.end <= at || known.start >= range.end {
                    continue;
                }
                if known.start > at {
                    return Some(at..known.start);
                }
                at = known.end;
            }
            if at < range.end {
                return Some(at..range.end);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &[(u64, u64)]) -> Ranges {
        let mut ranges = Ranges::default();
        for &(start, end) in list {
            ranges.insert(start..end);
        }
        ranges
    }

    #[test]
    fn ranges_join_and_count_known_offsets() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.insert(10..20), 0);
        assert_eq!(ranges.insert(30..40), 0);
        assert_eq!(ranges.insert(20..25), 0);
        assert_eq!(ranges.insert(15..35), 15);
        assert_eq!(ranges, set(&[(10, 40)]));
        assert_eq!((ranges.count(), ranges.insert(5..5)), (30, 0));
        assert!(ranges.contains(&(10..40)) && ranges.contains(&(50..50)));
        assert!(!ranges.contains(&(9..11)) && !ranges.contains(&(39..41)));
    }

    #[test]
    fn the_first_missing_range_is_found() {
        let whole = set(&[(0, 100)]);
        let missing = |list| whole.first_outside(&set(list));
        assert_eq!(missing(&[(0, 40), (60, 100)]), Some(40..60));
        assert_eq!(missing(&[(10, 100)]), Some(0..10));
        assert_eq!(missing(&[(0, 90)]), Some(90..100));
        assert_eq!(missing(&[(0, 100)]), None);
        assert_eq!(set(&[]).first_outside(&whole), None);
    }
}
