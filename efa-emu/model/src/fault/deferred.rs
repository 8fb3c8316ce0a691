//! Deferred frames and requests.

use std::collections::VecDeque;

use efa_core::address::{Gid, Qpn};

use super::event::{Frame, Stage};
use super::table::FaultId;

/// Frames of one direction between two queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    stage: Stage,
    initiator: (Gid, Qpn),
    responder: (Gid, Qpn),
}

impl From<&Frame<'_>> for Flow {
    fn from(frame: &Frame<'_>) -> Self {
        Flow {
            stage: frame.stage,
            initiator: (frame.initiator, frame.header.source_qpn),
            responder: (frame.responder, frame.header.destination_qpn),
        }
    }
}

#[derive(Debug)]
struct DeferredItem<T> {
    fault: FaultId,
    flow: Flow,
    /// The number of further frames of the flow until it is released.
    packets: Option<u32>,
    item: T,
}

/// Items that fault rules defer, oldest first.
#[derive(Debug)]
pub struct Deferred<T>(VecDeque<DeferredItem<T>>);

impl<T> Default for Deferred<T> {
    fn default() -> Self {
        Deferred(VecDeque::new())
    }
}

impl<T> Deferred<T> {
    /// Whether nothing is deferred.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of deferred items.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of items that a fault defers.
    pub fn count(&self, fault: FaultId) -> usize {
        self.0.iter().filter(|entry| entry.fault == fault).count()
    }

    /// Defers an item until the fault is released or `packets` later frames of its flow have
    /// passed.
    pub fn defer(&mut self, fault: FaultId, flow: Flow, packets: Option<u32>, item: T) {
        self.0.push_back(DeferredItem {
            fault,
            flow,
            packets,
            item,
        });
    }

    /// Counts a frame of a flow that has passed. Returns the items that are released by it.
    pub fn passed(&mut self, flow: Flow) -> Vec<(FaultId, T)> {
        for entry in &mut self.0 {
            if entry.flow == flow
                && let Some(packets) = &mut entry.packets
            {
                *packets = packets.saturating_sub(1);
            }
        }
        if !self.0.iter().any(|entry| entry.packets == Some(0)) {
            return Vec::new();
        }
        self.take(usize::MAX, |entry| entry.packets == Some(0))
    }

    /// Releases the oldest `count` items that a fault defers.
    pub fn release(&mut self, fault: FaultId, count: usize) -> Vec<T> {
        let taken = self.take(count, |entry| entry.fault == fault);
        taken.into_iter().map(|(_, item)| item).collect()
    }

    /// Releases all items whose fault is not in `armed`.
    pub fn release_others(&mut self, armed: impl Fn(FaultId) -> bool) -> Vec<T> {
        let taken = self.take(usize::MAX, |entry| !armed(entry.fault));
        taken.into_iter().map(|(_, item)| item).collect()
    }

    /// Drops the items for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.0.retain(|entry| keep(&entry.item));
    }

    fn take(&mut self, count: usize, goes: impl Fn(&DeferredItem<T>) -> bool) -> Vec<(FaultId, T)> {
        let mut taken = Vec::new();
        for entry in std::mem::take(&mut self.0) {
            if taken.len() < count && goes(&entry) {
                taken.push((entry.fault, entry.item));
            } else {
                self.0.push_back(entry);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(qpn: u16) -> Flow {
        Flow {
            stage: Stage::Request,
            initiator: (Gid([1; 16]), Qpn(qpn)),
            responder: (Gid([2; 16]), Qpn(9)),
        }
    }

    #[test]
    fn later_packets_of_the_same_flow_release() {
        let mut deferred = Deferred::default();
        deferred.defer(FaultId(1), flow(1), Some(2), 'a');
        deferred.defer(FaultId(1), flow(2), Some(1), 'b');
        deferred.defer(FaultId(2), flow(1), None, 'c');
        assert_eq!(deferred.passed(flow(1)), []);
        assert_eq!(deferred.passed(flow(1)), [(FaultId(1), 'a')]);
        assert_eq!(deferred.passed(flow(2)), [(FaultId(1), 'b')]);
        assert_eq!(deferred.len(), 1);
    }

    #[test]
    fn release_is_oldest_first_and_by_fault() {
        let mut deferred = Deferred::default();
        for (fault, item) in [(1, 'a'), (2, 'x'), (1, 'b'), (1, 'c')] {
            deferred.defer(FaultId(fault), flow(1), None, item);
        }
        assert_eq!(deferred.release(FaultId(1), 2), ['a', 'b']);
        assert_eq!(deferred.count(FaultId(1)), 1);
        assert_eq!(deferred.release_others(|fault| fault == FaultId(2)), ['c']);
        deferred.retain(|item| *item != 'x');
        assert!(deferred.is_empty());
    }
}
