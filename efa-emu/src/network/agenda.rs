//! The queue of future events.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Events ordered by time; events of one time come in the order in which they were added. Times count
/// from wherever the clock of the link starts, to the nanosecond and for 584 years.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    added: u64,
    added_ahead: u64,
}

#[derive(Debug)]
struct Entry<E> {
    /// Nanoseconds.
    at: u64,
    number: u64,
    event: E,
}

/// Set in the numbers of events that come behind.
const BEHIND: u64 = 1 << 63;

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Agenda {
            heap: BinaryHeap::new(),
            added: 0,
            added_ahead: 0,
        }
    }
}

impl<E> Agenda<E> {
    /// Adds an event behind those of the same time.
    pub(crate) fn add(&mut self, at: Duration, event: E) {
        let number = BEHIND | self.added;
        self.added += 1;
        self.push(at, number, event);
    }

    /// Adds an event ahead of those of the same time that were added by [`Agenda::add`]: what follows
    /// from the event that takes place at this moment.
    pub(crate) fn add_ahead(&mut self, at: Duration, event: E) {
        let number = self.added_ahead;
        self.added_ahead += 1;
        self.push(at, number, event);
    }

    fn push(&mut self, at: Duration, number: u64, event: E) {
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.heap.push(Entry { at, number, event });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// When the next event is due.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        self.heap.peek().map(|entry| Duration::from_nanos(entry.at))
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<(Duration, E)> {
        let entry = self.heap.pop()?;
        Some((Duration::from_nanos(entry.at), entry.event))
    }

    /// Takes the next event if its time has come.
    pub(crate) fn pop_due(&mut self, now: Duration) -> Option<E> {
        if self.next_time()? > now {
            return None;
        }
        self.pop().map(|(_, event)| event)
    }

    /// Drops events.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        self.heap.retain(|entry| keep(&entry.event));
    }
}

impl<E> Ord for Entry<E> {
    /// The heap has its greatest entry on top: the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_age() {
        let at = Duration::from_nanos;
        let mut agenda = Agenda::default();
        for (time, name) in [(5, 'c'), (3, 'a'), (5, 'x'), (5, 'd'), (3, 'b')] {
            agenda.add(at(time), name);
        }
        assert_eq!(agenda.next_time(), Some(at(3)));
        assert_eq!(agenda.pop_due(at(2)), None);
        agenda.add_ahead(at(5), 'y');
        agenda.add_ahead(at(5), 'z');
        assert_eq!(agenda.pop_due(at(3)), Some('a'));
        agenda.retain(|name| *name != 'x');
        let order: String = std::iter::from_fn(|| agenda.pop())
            .map(|(_, name)| name)
            .collect();
        assert_eq!(order, "byzcd");
        assert!(agenda.is_empty() && agenda.next_time().is_none());
    }
}
