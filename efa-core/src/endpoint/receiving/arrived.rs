//! Tracks the bytes of a message that have arrived. Duplicates count once.
//!
//! SRD delivers segments in any order. A segment in order advances an offset. Other segments are
//! kept as ranges until the gap before them is closed. Messages reuse the memory of these ranges
//! ([`RangePool`]).

use core::ops::Range;

/// The maximum number of ranges of one message. A sender has no more packets in flight than its
/// send queue has entries (`max_sq_wr` of the device, at most 4096), so no order of delivery causes
/// more ranges; a peer that causes more sends its data with gaps.
const MAX_RANGES: usize = 4096;

/// The maximum number of ranges whose memory is kept for reuse.
const KEPT: usize = 512;

/// The bytes of one message that have arrived.
#[derive(Debug, Default)]
pub(crate) struct ReceivedRanges {
    /// All bytes before this one have arrived.
    front: u64,
    /// The number of bytes in `ranges`.
    beyond: u64,
    /// The data after `front`, in order. No two ranges touch, and none touches `front`.
    ranges: Vec<Range<u64>>,
}

/// How a piece of data relates to the data that arrived before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Insertion {
    /// None of it had arrived. It counts now.
    New,
    /// All of it had arrived before: it is a duplicate.
    Repeated,
    /// The segment overlaps earlier ones in part, or is outside of the message.
    Misfit,
}

impl ReceivedRanges {
    /// The number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.front + self.beyond
    }

    /// The end of the last byte.
    pub(super) fn end(&self) -> u64 {
        self.ranges.last().map_or(self.front, |last| last.end)
    }

    /// Returns whether all bytes of a piece have arrived; always false for an empty piece.
    pub(super) fn has(&self, offset: u64, length: u64) -> bool {
        let Some(end) = offset.checked_add(length).filter(|_| length > 0) else {
            return false;
        };
        let at = self.first_behind(offset);
        end <= self.front
            || (self.ranges.get(at)).is_some_and(|range| range.start <= offset && end <= range.end)
    }

    /// Adds a piece that must end at or before byte `limit`. Only [`Insertion::New`] has an effect.
    #[inline]
    pub(super) fn add(&mut self, offset: u64, length: u64, limit: u64) -> Insertion {
        match offset.checked_add(length) {
            Some(end) if end <= limit => {
                if offset == self.front && self.beyond == 0 {
                    self.front = end;
                    return Insertion::New;
                }
                self.add_out_of_order(offset..end)
            }
            _ => Insertion::Misfit,
        }
    }

    #[inline(never)]
    fn add_out_of_order(&mut self, piece: Range<u64>) -> Insertion {
        if piece.is_empty() {
            return Insertion::New;
        }
        let at = self.first_behind(piece.start);
        let next = self.ranges.get(at);
        if piece.start < self.front || next.is_some_and(|next| next.start < piece.end) {
            let length = piece.end - piece.start;
            return match self.has(piece.start, length) {
                true => Insertion::Repeated,
                false => Insertion::Misfit,
            };
        }
        let touches_next = next.is_some_and(|next| next.start == piece.end);
        let touches_previous = at > 0 && self.ranges[at - 1].end == piece.start;
        let length = piece.end - piece.start;
        if piece.start == self.front {
            self.front = piece.end;
            if touches_next {
                let next = self.ranges.remove(at);
                self.front = next.end;
                self.beyond -= next.end - next.start;
            }
            return Insertion::New;
        }
        match (touches_previous, touches_next) {
            (true, false) => self.ranges[at - 1].end = piece.end,
            (true, true) => {
                let next = self.ranges.remove(at);
                self.ranges[at - 1].end = next.end;
            }
            (false, true) => self.ranges[at].start = piece.start,
            (false, false) if self.ranges.len() >= MAX_RANGES => return Insertion::Misfit,
            (false, false) => self.ranges.insert(at, piece),
        }
        self.beyond += length;
        Insertion::New
    }

    /// The first range that ends after a byte.
    fn first_behind(&self, offset: u64) -> usize {
        self.ranges.partition_point(|range| range.end <= offset)
    }
}

/// Memory for the ranges of messages that arrive out of order, to avoid an allocation for each. The
/// pool has at most [`KEPT`] ranges (8 KiB) for each of the messages that ever arrived
/// concurrently.
#[derive(Debug, Default)]
pub(super) struct RangePool(Vec<Vec<Range<u64>>>);

impl RangePool {
    /// Moves memory from the pool to a message that has received nothing yet.
    #[inline]
    pub(super) fn lend(&mut self, arrived: &mut ReceivedRanges) {
        if let Some(ranges) = self.0.pop() {
            arrived.ranges = ranges;
        }
    }

    /// Returns the memory of a message that has ended to the pool. Memory beyond [`KEPT`] ranges is
    /// freed: a peer could have left gaps on purpose.
    #[inline]
    pub(super) fn take_back(&mut self, arrived: &mut ReceivedRanges) {
        let mut ranges = core::mem::take(&mut arrived.ranges);
        if (1..=KEPT).contains(&ranges.capacity()) {
            ranges.clear();
            self.0.push(ranges);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn duplicates_are_ignored_and_partial_overlaps_refused() {
        let mut arrived = ReceivedRanges::default();
        let mut add = |offset, length| arrived.add(offset, length, 100);
        assert_eq!(add(0, 10), Insertion::New);
        assert_eq!(add(0, 10), Insertion::Repeated);
        assert_eq!(add(3, 4), Insertion::Repeated);
        assert_eq!(add(5, 10), Insertion::Misfit);
        assert_eq!(add(20, 10), Insertion::New);
        for (offset, length) in [(20, 10), (22, 8), (20, 1)] {
            assert_eq!(add(offset, length), Insertion::Repeated);
        }
        for (offset, length) in [(15, 6), (29, 2), (10, 30), (9, 1), (0, 100)] {
            let expected = match offset {
                9 => Insertion::Repeated,
                _ => Insertion::Misfit,
            };
            assert_eq!(add(offset, length), expected, "{offset} {length}");
        }
        assert_eq!(add(99, 2), Insertion::Misfit);
        assert_eq!(add(u64::MAX, 2), Insertion::Misfit);
        assert_eq!(add(50, 0), Insertion::New);
        assert_eq!((arrived.bytes(), arrived.end()), (20, 30));
        // The hole is closed.
        assert_eq!(arrived.add(10, 10, 100), Insertion::New);
        assert_eq!((arrived.bytes(), arrived.end()), (30, 30));
        assert_eq!(arrived.ranges, []);
    }

    #[test]
    fn a_peer_that_leaves_gaps_is_stopped() {
        let mut arrived = ReceivedRanges::default();
        let most = MAX_RANGES as u64;
        for number in 1..=most {
            assert_eq!(arrived.add(2 * number, 1, u64::MAX), Insertion::New);
        }
        assert_eq!(arrived.add(2 * most + 2, 1, u64::MAX), Insertion::Misfit);
        // A segment that closes a gap is accepted.
        assert_eq!(arrived.add(3, 1, u64::MAX), Insertion::New);
        assert_eq!(arrived.add(2 * most + 2, 1, u64::MAX), Insertion::New);
        assert_eq!(arrived.bytes(), most + 2);
    }

    #[test]
    fn range_memory_is_reused_empty() {
        let mut pool = RangePool::default();
        let mut arrived = ReceivedRanges::default();
        assert_eq!(arrived.add(5, 5, 10), Insertion::New);
        let place = arrived.ranges.as_ptr();
        pool.take_back(&mut arrived);
        pool.take_back(&mut ReceivedRanges::default());
        assert_eq!(pool.0.len(), 1);
        let mut next = ReceivedRanges::default();
        pool.lend(&mut next);
        assert_eq!((next.bytes(), next.ranges.as_ptr()), (0, place));
        assert_eq!(pool.0.len(), 0);
    }

    #[test]
    fn memory_of_messages_with_gaps_is_freed() {
        let mut pool = RangePool::default();
        for (gaps, kept) in [(KEPT, 1), (KEPT + 1, 1), (MAX_RANGES, 1), (1, 2)] {
            let mut arrived = ReceivedRanges::default();
            for number in 1..=gaps as u64 {
                assert_eq!(arrived.add(2 * number, 1, u64::MAX), Insertion::New);
            }
            pool.take_back(&mut arrived);
            assert_eq!(arrived.ranges.capacity(), 0);
            assert_eq!(pool.0.len(), kept, "{gaps} gaps");
        }
        let kept: usize = pool.0.iter().map(Vec::capacity).sum();
        assert!(kept <= 2 * KEPT, "{kept}");
    }

    proptest! {
        /// Compares the ranges with a model of one bit per byte.
        #[test]
        fn each_byte_counts_once(
            pieces in proptest::collection::vec((0..70_u64, 0..12_u64), 0..60)
        ) {
            let mut arrived = ReceivedRanges::default();
            let mut model = [false; 64];
            for (offset, length) in pieces {
                let piece = offset as usize..(offset + length) as usize;
                let expected = match model.get(piece.clone()) {
                    None => Insertion::Misfit,
                    Some(bytes) if !bytes.contains(&true) => Insertion::New,
                    Some(bytes) if !bytes.contains(&false) => Insertion::Repeated,
                    Some(_) => Insertion::Misfit,
                };
                prop_assert_eq!(arrived.add(offset, length, 64), expected);
                if expected == Insertion::New {
                    model[piece.clone()].fill(true);
                }
                let has = model.get(piece).is_some_and(|of| !of.is_empty() && !of.contains(&false));
                prop_assert_eq!(arrived.has(offset, length), has);
                let count = model.iter().filter(|here| **here).count() as u64;
                let end = model.iter().rposition(|here| *here).map_or(0, |last| last as u64 + 1);
                prop_assert_eq!((arrived.bytes(), arrived.end()), (count, end));
                for pair in arrived.ranges.windows(2) {
                    prop_assert!(pair[0].end < pair[1].start);
                }
                let first = arrived.ranges.first();
                prop_assert!(first.is_none_or(|first| first.start > arrived.front));
            }
        }
    }
}
