//! The queue of future events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Events ordered by virtual time; events of one time run in the order in which they were added.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Agenda {
            heap: BinaryHeap::new(),
            added: 0,
        }
    }

    pub(crate) fn add(&mut self, at: Duration, event: E) {
        let number = self.added;
        self.added += 1;
        self.heap.push(Reverse(Entry { at, number, event }));
    }

    /// When the next event is due.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        self.heap.peek().map(|entry| entry.0.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Duration, E)> {
        self.heap
            .pop()
            .map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl<E> Entry<E> {
    fn key(&self) -> (Duration, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_run_by_time_and_then_by_age() {
        let mut agenda = Agenda::new();
        for (at, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            agenda.add(Duration::from_nanos(at), name);
        }
        assert_eq!(agenda.next_time(), Some(Duration::from_nanos(3)));
        let order: String = std::iter::from_fn(|| agenda.pop())
            .map(|(_, name)| name)
            .collect();
        assert_eq!(order, "abcd");
    }
}
