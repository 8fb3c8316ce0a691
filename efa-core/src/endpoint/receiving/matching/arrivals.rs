//! The unexpected messages in the order of their arrival.
//!
//! They lie behind each other with what a receive compares, so that going through them reads memory
//! in order. One that is taken leaves a hole; holes are closed when they outnumber the messages.

use std::collections::VecDeque;

use crate::endpoint::base::ids::PeerId;

/// Where a message stands. Closing holes moves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u64);

/// A message and its slot in the slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) source: PeerId,
    pub(super) tag: u64,
    pub(super) node: u32,
}

const HOLE: u32 = u32::MAX;
/// So few holes are not worth closing.
const FEW: usize = 64;

/// The messages that wait.
#[derive(Default)]
pub(super) struct Arrivals {
    arrivals: VecDeque<Arrival>,
    /// The place of the first of them.
    first: u64,
    messages: usize,
}

impl Arrivals {
    /// Puts a message behind all others.
    pub(super) fn push(&mut self, source: PeerId, tag: u64, node: u32) -> Place {
        let place = Place(self.first + self.arrivals.len() as u64);
        self.arrivals.push_back(Arrival { source, tag, node });
        self.messages += 1;
        place
    }

    /// Takes a message out; `moved` is told the new places of others.
    pub(super) fn remove(&mut self, place: Place, moved: impl FnMut(u32, Place)) {
        let index = (place.0 - self.first) as usize;
        self.arrivals[index].node = HOLE;
        self.messages -= 1;
        while let Some(Arrival { node: HOLE, .. }) = self.arrivals.front() {
            self.arrivals.pop_front();
            self.first += 1;
        }
        if self.arrivals.len() > 2 * self.messages + FEW {
            self.close_holes(moved);
        }
    }

    fn close_holes(&mut self, mut moved: impl FnMut(u32, Place)) {
        self.arrivals.retain(|arrival| arrival.node != HOLE);
        for (index, arrival) in self.arrivals.iter().enumerate() {
            moved(arrival.node, Place(self.first + index as u64));
        }
    }

    /// The messages, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arrival> {
        self.arrivals.iter().filter(|arrival| arrival.node != HOLE)
    }
}
