//! The reorder window: packets from a peer arrive in any order and are processed in the order of
//! `msg_id`.
//!
//! Messages and atomics of one peer share one sequence (spec section 3.2; stock libfabric since
//! 1.17 keeps it independent of the ordering that the application requested). Early packets are
//! stored. Ids wrap around from 2^32 - 1 to 0. Distances between ids are signed, so the wrap-around
//! needs no special case.
//!
//! Packets that are at most [`NEAR`] ids early, the normal case, are found by index; the others in
//! a hash table. So the memory is proportional to the number of stored packets, not to how far a
//! peer runs ahead. A peer that runs ahead by more than the window violates the protocol, which the
//! caller reports.

use hashbrown::HashTable;

use crate::wire::MsgId;

use crate::endpoint::posting::DeferredPacketId;

/// Ids beyond the expected one that are found by index. A power of two.
const NEAR: usize = 64;

/// The position of an id relative to the one that is processed next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// It is the next one.
    Expected,
    /// It must wait.
    Early,
    /// It, or at least its first packet, was already processed.
    Past,
    /// It is further ahead than the window allows.
    Beyond,
}

/// The packets of one peer that arrived too early. Packets with the same id form a chain; the
/// window stores its head.
pub(crate) struct ReorderWindow {
    expected: MsgId,
    near: Option<Box<[Option<DeferredPacketId>; NEAR]>>,
    near_deferred: usize,
    far: HashTable<(MsgId, DeferredPacketId)>,
    /// Ids that were processed before their turn: because order is not required, or because they
    /// were abandoned.
    done: HashTable<MsgId>,
}

impl ReorderWindow {
    /// An empty window that starts with `first`.
    pub(crate) fn new(first: MsgId) -> Self {
        ReorderWindow {
            expected: first,
            near: None,
            near_deferred: 0,
            far: HashTable::new(),
            done: HashTable::new(),
        }
    }

    /// The id that is processed next.
    pub(crate) fn expected(&self) -> MsgId {
        self.expected
    }

    /// The position of `id` in a window of `size` ids.
    #[inline]
    pub(crate) fn position(&self, id: MsgId, size: u32) -> Position {
        match id.distance_from(self.expected) {
            0 => Position::Expected,
            ..0 => Position::Past,
            distance if distance.unsigned_abs() < size => Position::Early,
            _ => Position::Beyond,
        }
    }

    /// Moves on beyond `id` if it is the next one and no later ids are known. Returns whether it
    /// did. It combines [`ReorderWindow::position`], [`ReorderWindow::advance`] and
    /// [`ReorderWindow::take_expected`] in one step.
    #[inline(always)]
    pub(crate) fn advance_past(&mut self, id: MsgId) -> bool {
        let is_alone = self.near_deferred == 0 && self.far.is_empty() && self.done.is_empty();
        if id != self.expected || !is_alone {
            return false;
        }
        self.expected = id.next();
        true
    }

    /// Stores a packet with an early id. `link` gets the current head of the chain, puts the packet
    /// in front of it and returns the new head.
    pub(crate) fn defer(
        &mut self,
        id: MsgId,
        link: impl FnOnce(Option<DeferredPacketId>) -> DeferredPacketId,
    ) {
        if (id.distance_from(self.expected) as u32 as usize) < NEAR {
            let near = self.near.get_or_insert_with(|| Box::new([None; NEAR]));
            let slot = &mut near[slot(id)];
            self.near_deferred += usize::from(slot.is_none());
            *slot = Some(link(*slot));
            return;
        }
        match self
            .far
            .find_mut(far_hash(id), |(deferred, _)| *deferred == id)
        {
            Some((_, head)) => *head = link(Some(*head)),
            None => {
                let head = link(None);
                self.far
                    .insert_unique(far_hash(id), (id, head), |(id, _)| far_hash(*id));
            }
        }
    }

    /// Moves on to the next id that was not processed.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.expected = self.expected.next();
        while !self.done.is_empty() {
            let expected = self.expected;
            match self
                .done
                .find_entry(far_hash(expected), |id| *id == expected)
            {
                Ok(entry) => entry.remove(),
                Err(_) => return,
            };
            self.expected = expected.next();
        }
    }

    /// Returns whether an early id was processed before its turn.
    pub(crate) fn has_passed(&self, id: MsgId) -> bool {
        let mut entry = self.done.iter_hash(far_hash(id));
        entry.any(|other| *other == id)
    }

    /// Records that an early id is processed before its turn. Returns false if it was processed
    /// already.
    pub(crate) fn pass(&mut self, id: MsgId) -> bool {
        let hash = far_hash(id);
        let known = self.done.find(hash, |other| *other == id).is_some();
        if !known {
            self.done.insert_unique(hash, id, |id| far_hash(*id));
        }
        !known
    }

    /// Removes and returns the packets stored for the expected id: up to two chains, one of packets
    /// that arrived while the id was beyond [`NEAR`], and one of later packets.
    #[inline]
    pub(crate) fn take_expected(&mut self) -> [Option<DeferredPacketId>; 2] {
        self.take(self.expected)
    }

    /// Removes and returns the packets stored for an early id.
    #[inline(always)]
    pub(crate) fn take(&mut self, id: MsgId) -> [Option<DeferredPacketId>; 2] {
        if self.near_deferred == 0 && self.far.is_empty() {
            return [None; 2];
        }
        let is_near = (id.distance_from(self.expected) as u32 as usize) < NEAR;
        let near = match &mut self.near {
            Some(near) if is_near => near[slot(id)].take(),
            _ => None,
        };
        self.near_deferred -= usize::from(near.is_some());
        [near, self.take_far(id)]
    }

    fn take_far(&mut self, id: MsgId) -> Option<DeferredPacketId> {
        if self.far.is_empty() {
            return None;
        }
        let entry = self
            .far
            .find_entry(far_hash(id), |(deferred, _)| *deferred == id);
        entry.ok().map(|entry| entry.remove().0.1)
    }

    /// Removes and returns all chains, so that their packets can be dropped. Their ids are skipped
    /// when their turn comes.
    pub(crate) fn drain(&mut self) -> Vec<DeferredPacketId> {
        let mut deferred: Vec<(MsgId, DeferredPacketId)> = self.far.drain().collect();
        let expected = self.expected;
        let taken = self
            .near
            .iter_mut()
            .flat_map(|near| near.iter_mut().enumerate());
        deferred.extend(taken.filter_map(|(index, head)| {
            let ahead = (index as u32).wrapping_sub(expected.0) % NEAR as u32;
            Some((MsgId(expected.0.wrapping_add(ahead)), head.take()?))
        }));
        self.near_deferred = 0;
        deferred.iter().for_each(|(id, _)| _ = self.pass(*id));
        deferred.into_iter().map(|(_, head)| head).collect()
    }
}

/// Ids less than [`NEAR`] apart have different slots.
fn slot(id: MsgId) -> usize {
    id.0 as usize % NEAR
}

/// Ids in a window are consecutive, so a multiplication spreads them.
fn far_hash(id: MsgId) -> u64 {
    u64::from(id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::endpoint::base::ids::Id;

    #[test]
    fn positions_are_right_across_the_wrap_around() {
        let window = ReorderWindow::new(MsgId(u32::MAX - 1));
        let position = |id| window.position(MsgId(id), 16);
        assert_eq!(position(u32::MAX - 1), Position::Expected);
        assert_eq!(position(u32::MAX), Position::Early);
        assert_eq!(position(0), Position::Early);
        assert_eq!(position(13), Position::Early);
        assert_eq!(position(14), Position::Beyond);
        assert_eq!(position(u32::MAX - 2), Position::Past);
    }

    #[test]
    fn one_step_takes_the_next_id_alone() {
        let first = MsgId(u32::MAX);
        let known: [fn(&mut ReorderWindow); 4] = [
            |_| (),
            |window| window.defer(MsgId(0), |_| DeferredPacketId::new(1, 0)),
            |window| window.defer(MsgId(NEAR as u32), |_| DeferredPacketId::new(1, 0)),
            |window| assert!(window.pass(MsgId(0))),
        ];
        for (number, know) in known.into_iter().enumerate() {
            let mut window = ReorderWindow::new(first);
            know(&mut window);
            assert!(!window.advance_past(MsgId(0)));
            assert_eq!(window.advance_past(first), number == 0);
            let expected = if number == 0 { MsgId(0) } else { first };
            assert_eq!(window.expected(), expected);
        }
    }

    #[test]
    fn passed_ids_are_skipped_across_wraparound() {
        let mut window = ReorderWindow::new(MsgId(u32::MAX - 1));
        for id in [u32::MAX, 0, 2] {
            assert!(window.pass(MsgId(id)));
            assert!(!window.pass(MsgId(id)));
        }
        window.advance();
        assert_eq!(window.expected(), MsgId(1));
        window.advance();
        assert_eq!(window.expected(), MsgId(3));
        window.advance();
        assert_eq!(window.expected(), MsgId(4));
    }

    #[test]
    fn dropped_ids_are_passed_over_in_their_turn() {
        let first = u32::MAX - 70;
        let mut window = ReorderWindow::new(MsgId(first));
        let id = |ahead: u32| MsgId(first.wrapping_add(ahead));
        for ahead in [1, 3, 65, 200] {
            window.defer(id(ahead), |_| DeferredPacketId::new(ahead, 0));
        }
        window.advance();
        assert_eq!(window.take_expected()[0], Some(DeferredPacketId::new(1, 0)));
        assert_eq!(window.drain().len(), 3);
        assert_eq!(window.drain(), []);
        for expected in [2, 4] {
            window.advance();
            assert_eq!(window.expected(), id(expected));
        }
        for ahead in 4..199 {
            assert_eq!(window.has_passed(id(ahead)), ahead == 65, "{ahead}");
        }
        assert!(window.has_passed(id(200)));
    }

    proptest! {
        /// Ids arrive in any order, each as one to three packets; every packet is returned once, in
        /// the order of the ids.
        #[test]
        fn each_packet_is_returned_once_and_in_order(
            first in prop_oneof![Just(0), Just(u32::MAX - 100), any::<u32>()],
            mut order in Just((0..300_u32).collect::<Vec<_>>()).prop_shuffle(),
            copies in proptest::collection::vec(1..4_u32, 300),
            keep in 0..300_usize,
        ) {
            // Some runs are nearly in order, as real traffic is.
            order[keep..].sort_unstable();
            let mut window = ReorderWindow::new(MsgId(first));
            let mut next_held = 0;
            let mut links: HashMap<u32, Option<DeferredPacketId>> = HashMap::new();
            let mut expected = 0;
            for id in order {
                let msg_id = MsgId(first.wrapping_add(id));
                match window.position(msg_id, 1024) {
                    Position::Expected => {
                        prop_assert_eq!(id, expected);
                        expected += 1;
                        window.advance();
                        loop {
                            let mut count = 0;
                            for mut head in window.take_expected() {
                                while let Some(deferred) = head {
                                    head = links.remove(&(deferred.index() as u32)).unwrap();
                                    count += 1;
                                }
                            }
                            if count == 0 {
                                break;
                            }
                            prop_assert_eq!(count, copies[expected as usize]);
                            expected += 1;
                            window.advance();
                        }
                    }
                    Position::Early => {
                        for _ in 0..copies[id as usize] {
                            window.defer(msg_id, |next| {
                                links.insert(next_held, next);
                                next_held += 1;
                                DeferredPacketId::new(next_held - 1, 0)
                            });
                        }
                    }
                    other => prop_assert!(false, "{id} is {other:?}"),
                }
            }
            prop_assert_eq!(expected, 300);
            prop_assert!(links.is_empty());
            prop_assert!(window.drain().is_empty());
        }
    }
}
