//! A calendar queue of future events.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Nanoseconds of a slice, as a power of two: short enough that a slice contains a few dozen events
/// in a fabric of some hundred hosts.
const SLICE_BITS: u32 = 6;
/// Slices of the near future: 65 µs, several times the latency of a network.
const SLICES: usize = 1024;
const WORDS: usize = SLICES / 64;

/// Events ordered by time; events with the same time are in the order of their insertion. Times are
/// nanoseconds since the start of the link's clock, up to 584 years.
///
/// A simulated network has many events, nearly all within the next few microseconds. So the near
/// future is divided into slices, and only the events of the current slice are sorted: the cost of
/// an event does not depend on their number. Events further away are in a heap.
#[derive(Debug)]
pub struct EventQueue<E> {
    /// The events of the current and earlier slices, the next one last. Empty only if the queue is.
    current: Vec<QueuedEvent<E>>,
    /// The number of the current slice.
    slice: u64,
    /// The events of the following slices, indexed by the lowest bits of the slice's number.
    near: Vec<Vec<QueuedEvent<E>>>,
    /// Bitmap of the slices with events.
    occupied: [u64; WORDS],
    /// The events of slices that were too far away when they were added.
    far: BinaryHeap<QueuedEvent<E>>,
    added: u64,
    added_ahead: u64,
}

#[derive(Debug)]
struct QueuedEvent<E> {
    /// Nanoseconds.
    at: u64,
    number: u64,
    event: E,
}

/// Bit in the numbers of events added by [`EventQueue::add`].
const BEHIND: u64 = 1 << 63;

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue {
            current: Vec::new(),
            slice: 0,
            near: Vec::new(),
            occupied: [0; WORDS],
            far: BinaryHeap::new(),
            added: 0,
            added_ahead: 0,
        }
    }
}

impl<E> EventQueue<E> {
    /// Adds an event after those with the same time.
    pub fn add(&mut self, at: Duration, event: E) {
        let number = BEHIND | self.added;
        self.added += 1;
        self.insert(at, number, event);
    }

    /// Adds an event before those with the same time that were added by [`EventQueue::add`]: for
    /// consequences of the event that is being handled.
    pub fn add_ahead(&mut self, at: Duration, event: E) {
        let number = self.added_ahead;
        self.added_ahead += 1;
        self.insert(at, number, event);
    }

    fn insert(&mut self, at: Duration, number: u64, event: E) {
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let entry = QueuedEvent { at, number, event };
        let slice = entry.slice();
        if slice <= self.slice {
            let place = self.current.partition_point(|other| *other < entry);
            self.current.insert(place, entry);
            return;
        }
        if slice - self.slice < SLICES as u64 {
            if self.near.is_empty() {
                self.near.resize_with(SLICES, Vec::new);
            }
            let index = slice as usize % SLICES;
            self.near[index].push(entry);
            self.occupied[index / 64] |= 1 << (index % 64);
        } else {
            self.far.push(entry);
        }
        if self.current.is_empty() {
            self.advance();
        }
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.current.is_empty()
    }

    /// The time of the next event.
    pub fn next_time(&self) -> Option<Duration> {
        let next = self.current.last()?;
        Some(Duration::from_nanos(next.at))
    }

    /// The event `behind` positions after the next one, if it is in a sorted slice.
    pub fn upcoming(&self, behind: usize) -> Option<&E> {
        let place = self.current.len().checked_sub(behind + 1)?;
        Some(&self.current[place].event)
    }

    /// Removes and returns the next event.
    pub fn pop(&mut self) -> Option<(Duration, E)> {
        let entry = self.current.pop()?;
        if self.current.is_empty() {
            self.advance();
        }
        Some((Duration::from_nanos(entry.at), entry.event))
    }

    /// Removes and returns the next event if it is due.
    pub fn pop_due(&mut self, now: Duration) -> Option<E> {
        if self.next_time()? > now {
            return None;
        }
        self.pop().map(|(_, event)| event)
    }

    /// Drops the events for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        self.current.retain(|entry| keep(&entry.event));
        self.far.retain(|entry| keep(&entry.event));
        for (index, slice) in self.near.iter_mut().enumerate() {
            slice.retain(|entry| keep(&entry.event));
            if slice.is_empty() {
                self.occupied[index / 64] &= !(1 << (index % 64));
            }
        }
        if self.current.is_empty() {
            self.advance();
        }
    }

    /// Moves to the next slice with events. The current one is empty.
    fn advance(&mut self) {
        let near = self.next_near();
        let far = self.far.peek().map(QueuedEvent::slice);
        let Some(next) = near.into_iter().chain(far).min() else {
            return;
        };
        self.slice = next;
        if near == Some(next) {
            let index = next as usize % SLICES;
            std::mem::swap(&mut self.current, &mut self.near[index]);
            self.occupied[index / 64] &= !(1 << (index % 64));
        }
        while self.far.peek().is_some_and(|entry| entry.slice() == next) {
            self.current.extend(self.far.pop());
        }
        self.current.sort_unstable();
    }

    /// The next slice of the near future with events.
    fn next_near(&self) -> Option<u64> {
        let first = self.slice as usize % SLICES;
        (0..=WORDS).find_map(|turn| {
            let word = (first / 64 + turn) % WORDS;
            let mut bits = self.occupied[word];
            // The word of the current slice is checked first and last: first the slices after it,
            // then those before it, which have wrapped around to later times.
            match turn {
                0 => bits &= !0 << (first % 64),
                WORDS => bits &= !(!0 << (first % 64)),
                _ => {}
            }
            (bits != 0).then(|| {
                let index = 64 * word + bits.trailing_zeros() as usize;
                self.slice + ((index + SLICES - first) % SLICES) as u64
            })
        })
    }
}

impl<E> QueuedEvent<E> {
    fn slice(&self) -> u64 {
        self.at >> SLICE_BITS
    }
}

impl<E> Ord for QueuedEvent<E> {
    /// The next event is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for QueuedEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for QueuedEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for QueuedEvent<E> {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn events_are_ordered_by_time_and_age() {
        let at = Duration::from_nanos;
        let mut queue = EventQueue::default();
        for (time, name) in [(5, 'c'), (3, 'a'), (5, 'x'), (5, 'd'), (3, 'b')] {
            queue.add(at(time), name);
        }
        assert_eq!(queue.next_time(), Some(at(3)));
        assert_eq!(queue.pop_due(at(2)), None);
        queue.add_ahead(at(5), 'y');
        queue.add_ahead(at(5), 'z');
        assert_eq!(queue.pop_due(at(3)), Some('a'));
        queue.retain(|name| *name != 'x');
        let order: String = std::iter::from_fn(|| queue.pop())
            .map(|(_, name)| name)
            .collect();
        assert_eq!(order, "byzcd");
        assert!(queue.is_empty() && queue.next_time().is_none());
    }

    proptest! {
        /// Compared with an ordered map, with events that are due immediately, soon, and far away,
        /// and with a clock that stops or jumps.
        #[test]
        fn events_are_ordered_by_time_then_age(
            steps in prop::collection::vec((0u8..10, 0u64..200_000, any::<bool>()), 1..400),
        ) {
            let at = Duration::from_nanos;
            let mut queue = EventQueue::default();
            let mut model = BTreeMap::new();
            let mut now = 0;
            for (number, (what, distance, is_ahead)) in steps.into_iter().enumerate() {
                match what {
                    0..=5 => {
                        let time = now + match what {
                            0 => 0,
                            1 => distance % 100,
                            2 | 3 => distance % 20_000,
                            4 => distance,
                            _ => distance * 1_000_000,
                        };
                        match is_ahead {
                            true => queue.add_ahead(at(time), number),
                            false => queue.add(at(time), number),
                        }
                        model.insert((time, !is_ahead, number), number);
                    }
                    6 => {
                        queue.retain(|number| number % 7 != 3);
                        model.retain(|_, number| *number % 7 != 3);
                    }
                    _ => {
                        let next = model.pop_first();
                        let next = next.map(|((time, ..), number)| (time, number));
                        prop_assert_eq!(queue.pop(), next.map(|(time, number)| (at(time), number)));
                        now = next.map_or(now, |(time, _)| time);
                    }
                }
                prop_assert_eq!(queue.is_empty(), model.is_empty());
                let next = model.first_key_value().map(|((time, ..), _)| at(*time));
                prop_assert_eq!(queue.next_time(), next);
                for (behind, number) in model.values().enumerate().take(4) {
                    let upcoming = queue.upcoming(behind);
                    prop_assert!(upcoming.is_none_or(|upcoming| upcoming == number));
                    prop_assert!(behind > 0 || upcoming.is_some());
                }
            }
        }
    }
}
