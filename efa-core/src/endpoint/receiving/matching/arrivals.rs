//! The unexpected messages in the order of their arrival.
//!
//! They are stored contiguously with the values that a receive compares, so that a walk reads
//! memory in order. A removed message leaves a hole. Holes are closed when they outnumber the
//! messages.

use std::collections::VecDeque;

use crate::endpoint::base::ids::PeerId;

/// The place of a message. It changes when holes are closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ArrivalNumber(u64);

/// A message and its slot in the slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivedMessage {
    pub(super) source: PeerId,
    pub(super) tag: u64,
    pub(super) node: u32,
}

const HOLE: u32 = u32::MAX;
/// This many holes are not worth closing.
const FEW: usize = 64;

/// The messages that wait.
#[derive(Default)]
pub(super) struct Arrivals {
    arrivals: VecDeque<ArrivedMessage>,
    /// The place of the first entry.
    first: u64,
    messages: usize,
}

impl Arrivals {
    /// Appends a message.
    pub(super) fn push(&mut self, source: PeerId, tag: u64, node: u32) -> ArrivalNumber {
        let place = ArrivalNumber(self.first + self.arrivals.len() as u64);
        self.arrivals
            .push_back(ArrivedMessage { source, tag, node });
        self.messages += 1;
        place
    }

    /// Removes a message. `moved` is called with the new places of others.
    pub(super) fn remove(&mut self, place: ArrivalNumber, moved: impl FnMut(u32, ArrivalNumber)) {
        let index = (place.0 - self.first) as usize;
        self.arrivals[index].node = HOLE;
        self.messages -= 1;
        while let Some(ArrivedMessage { node: HOLE, .. }) = self.arrivals.front() {
            self.arrivals.pop_front();
            self.first += 1;
        }
        if self.arrivals.len() > 2 * self.messages + FEW {
            self.close_holes(moved);
        }
    }

    fn close_holes(&mut self, mut moved: impl FnMut(u32, ArrivalNumber)) {
        self.arrivals.retain(|arrival| arrival.node != HOLE);
        for (index, arrival) in self.arrivals.iter().enumerate() {
            moved(arrival.node, ArrivalNumber(self.first + index as u64));
        }
    }

    /// The messages, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ArrivedMessage> {
        self.arrivals.iter().filter(|arrival| arrival.node != HOLE)
    }
}
