//! Sets of bytes of a message that were sent.

use std::collections::BTreeMap;

/// Ranges of bytes that do not touch. Data sent in order is one range.
#[derive(Clone, Debug, Default)]
pub(super) struct ByteRanges {
    /// The only range, if there is one.
    only: (u64, u64),
    /// Several ranges: from start to end.
    ends: BTreeMap<u64, u64>,
    total: u64,
}

impl ByteRanges {
    /// Adds the bytes `start..end`. Returns `false`, and adds nothing, if any of them were added
    /// before.
    pub(super) fn add(&mut self, start: u64, end: u64) -> bool {
        if start >= end {
            return true;
        }
        if self.overlaps(start, end) {
            return false;
        }
        if self.ends.is_empty() {
            match self.only {
                _ if self.total == 0 => self.only = (start, end),
                (_, last) if last == start => self.only.1 = end,
                (first, _) if first == end => self.only.0 = start,
                (first, last) => self.ends.extend([(first, last), (start, end)]),
            }
        } else {
            let mut first = start;
            if let Some((&other, &other_end)) = self.ends.range(..end).next_back()
                && other_end == start
            {
                first = other;
            }
            let last = self.ends.remove(&end).unwrap_or(end);
            self.ends.insert(first, last);
        }
        self.total += end - start;
        true
    }

    /// Whether any of the bytes `start..end` were added.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        let (first, last) = self.only;
        if self.ends.is_empty() {
            return start < last && first < end && start < end;
        }
        let before = self.ends.range(..end).next_back();
        start < end && before.is_some_and(|(_, &other_end)| other_end > start)
    }

    /// The number of added bytes.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ByteRanges;

    proptest! {
        #[test]
        fn runs_are_sets_of_bytes(pieces in prop::collection::vec((0..40_u64, 0..12_u64), 0..30)) {
            let mut runs = ByteRanges::default();
            let mut bytes = [false; 64];
            for (start, length) in pieces {
                let piece = start as usize..(start + length) as usize;
                let is_new = !bytes[piece.clone()].contains(&true);
                prop_assert_eq!(runs.add(start, start + length), is_new);
                if is_new {
                    bytes[piece].fill(true);
                }
                let expected = bytes.iter().filter(|is_there| **is_there).count();
                prop_assert_eq!(runs.total(), expected as u64);
                let starts = (0..64).filter(|&at| bytes[at] && (at == 0 || !bytes[at - 1]));
                let count = match runs.ends.len() {
                    0 => usize::from(runs.total > 0),
                    count => count,
                };
                prop_assert_eq!(count, starts.count());
            }
        }
    }
}
