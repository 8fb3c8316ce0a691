//! Requests that the link refused, in a queue for each destination.
//!
//! A busy destination delays only its own requests. The queues are chained through the requests'
//! own slots, so that waiting costs no memory.

use efa_core::address::Ahn;

use super::flight::{FlightTable, InFlightRequest, RequestPlace};

/// The first and the last request of a destination's queue.
#[derive(Clone, Copy)]
struct QueueEnds {
    first: u32,
    last: u32,
}

#[derive(Default)]
pub(super) struct Backlogs {
    /// By address handle number.
    queues: Vec<Option<QueueEnds>>,
    /// The numbers whose queue is not empty.
    waiting: Vec<Ahn>,
}

impl Backlogs {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    #[inline(always)]
    pub(super) fn has(&self, ahn: Ahn) -> bool {
        !self.waiting.is_empty()
            && self
                .queues
                .get(usize::from(ahn.0))
                .is_some_and(Option::is_some)
    }

    /// The destination at `position` in the list of those with waiting requests.
    pub(super) fn destination(&self, position: usize) -> Option<Ahn> {
        self.waiting.get(position).copied()
    }

    /// Appends a request to its destination's queue.
    pub(super) fn push(&mut self, index: u32, flight: &mut FlightTable) {
        let Some(request) = flight.get_mut(index) else {
            return;
        };
        request.place = RequestPlace::Backlog { next: None };
        let ahn = request.ahn();
        let position = usize::from(ahn.0);
        if self.queues.len() <= position {
            self.queues.resize(position + 1, None);
        }
        match &mut self.queues[position] {
            Some(ends) => {
                if let Some(last) = flight.get_mut(ends.last) {
                    last.place = RequestPlace::Backlog { next: Some(index) };
                }
                ends.last = index;
            }
            empty => {
                *empty = Some(QueueEnds {
                    first: index,
                    last: index,
                });
                self.waiting.push(ahn);
            }
        }
    }

    /// The oldest request for a destination.
    pub(super) fn first(&self, ahn: Ahn) -> Option<u32> {
        let ends = self.queues.get(usize::from(ahn.0))?.as_ref()?;
        Some(ends.first)
    }

    /// Removes and returns the oldest request for a destination.
    pub(super) fn pop(&mut self, ahn: Ahn, flight: &FlightTable) -> Option<u32> {
        let queue = self.queues.get_mut(usize::from(ahn.0))?;
        let QueueEnds { first, last } = (*queue)?;
        let next = match flight.get(first).map(|request| request.place) {
            Some(RequestPlace::Backlog { next }) => next,
            _ => None,
        };
        *queue = next.map(|next| QueueEnds { first: next, last });
        if queue.is_none() {
            self.waiting.retain(|other| *other != ahn);
        }
        Some(first)
    }

    /// Removes every request for which `take` returns true. The others keep their order.
    pub(super) fn remove_if(
        &mut self,
        flight: &mut FlightTable,
        mut take: impl FnMut(&InFlightRequest) -> bool,
    ) {
        let mut kept = Vec::new();
        while let Some(ahn) = self.destination(0) {
            while let Some(index) = self.pop(ahn, flight) {
                if flight.get(index).is_some_and(|request| !take(request)) {
                    kept.push(index);
                }
            }
        }
        for index in kept {
            self.push(index, flight);
        }
    }
}
