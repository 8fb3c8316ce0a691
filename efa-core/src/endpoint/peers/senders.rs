//! The newest peer of each AHN and queue pair number.

use crate::address::{Ahn, Qpn};

use super::address_vector::PeerSlot;

/// The sender as the device reports it: its AHN and its queue pair number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sender(u32);

impl Sender {
    #[inline(always)]
    pub(super) fn new(ahn: Ahn, qpn: Qpn) -> Sender {
        Sender(u32::from(ahn.0) << 16 | u32::from(qpn.0))
    }

    /// The device chooses these numbers, so no seed is needed; a multiplication spreads them.
    #[inline(always)]
    fn hash(self) -> usize {
        (u64::from(self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
    }
}

/// A hash table with open addressing, at most half full. Each packet looks up its sender, nearly
/// always in the first place.
#[derive(Default)]
pub(super) struct Senders {
    /// Empty, or a power of two.
    places: Vec<Option<PeerSlot>>,
    used: usize,
}

/// Places of the table when the first sender is added.
const MIN_PLACES: usize = 16;

impl Senders {
    #[inline(always)]
    fn mask(&self) -> usize {
        self.places.len().wrapping_sub(1)
    }

    /// The peer in the first place where that of a sender can be.
    #[inline(always)]
    pub(super) fn first(&self, sender: Sender) -> Option<PeerSlot> {
        *self.places.get(sender.hash() & self.mask())?
    }

    /// The place of a sender, and its peer. `sender_of` returns whose peer is in a slot.
    fn locate(
        &self,
        sender: Sender,
        sender_of: impl Fn(PeerSlot) -> Sender,
    ) -> Option<(usize, PeerSlot)> {
        let mut place = sender.hash() & self.mask();
        loop {
            let slot = (*self.places.get(place)?)?;
            if sender_of(slot) == sender {
                return Some((place, slot));
            }
            place = (place + 1) & self.mask();
        }
    }

    /// The peer of a sender.
    pub(super) fn get(
        &self,
        sender: Sender,
        sender_of: impl Fn(PeerSlot) -> Sender,
    ) -> Option<PeerSlot> {
        self.locate(sender, sender_of).map(|(_, slot)| slot)
    }

    /// Sets the peer of a sender.
    pub(super) fn set(
        &mut self,
        sender: Sender,
        slot: PeerSlot,
        sender_of: impl Fn(PeerSlot) -> Sender,
    ) {
        if let Some((place, _)) = self.locate(sender, &sender_of) {
            self.places[place] = Some(slot);
            return;
        }
        if 2 * self.used >= self.places.len() {
            let count = (2 * self.places.len()).max(MIN_PLACES);
            let old = core::mem::replace(&mut self.places, vec![None; count]);
            for other in old.into_iter().flatten() {
                self.add(sender_of(other), other);
            }
        }
        self.add(sender, slot);
        self.used += 1;
    }

    /// Puts a sender that is not in the table into the first free place.
    fn add(&mut self, sender: Sender, slot: PeerSlot) {
        let mut place = sender.hash() & self.mask();
        while self.places[place].is_some() {
            place = (place + 1) & self.mask();
        }
        self.places[place] = Some(slot);
    }

    /// Removes a sender.
    pub(super) fn remove(&mut self, sender: Sender, sender_of: impl Fn(PeerSlot) -> Sender) {
        let Some((mut gap, _)) = self.locate(sender, &sender_of) else {
            return;
        };
        self.used -= 1;
        let mut place = gap;
        loop {
            self.places[gap] = None;
            // The next one that may be found in the gap, because its search begins there or
            // before.
            let moved = loop {
                place = (place + 1) & self.mask();
                let Some(other) = self.places[place] else {
                    return;
                };
                let first = sender_of(other).hash();
                let (way, gone) = (place.wrapping_sub(first), place.wrapping_sub(gap));
                if way & self.mask() >= gone & self.mask() {
                    break other;
                }
            };
            self.places[gap] = Some(moved);
            gap = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::endpoint::base::ids::{Id, PeerId};

    proptest! {
        #[test]
        fn behaves_as_a_map_does(
            steps in proptest::collection::vec((0..4_u16, 0..40_u16, any::<bool>()), 0..300),
        ) {
            let (mut senders, mut map, mut all) = (Senders::default(), HashMap::new(), Vec::new());
            for (ahn, qpn, is_set) in steps {
                let sender = Sender::new(Ahn(ahn), Qpn(qpn));
                match is_set {
                    true => {
                        let slot = PeerSlot::from(PeerId::new(all.len() as u32, 0));
                        all.push(sender);
                        senders.set(sender, slot, |slot| all[slot.index()]);
                        map.insert((ahn, qpn), slot);
                    }
                    false => {
                        senders.remove(sender, |slot| all[slot.index()]);
                        map.remove(&(ahn, qpn));
                    }
                }
                prop_assert_eq!(senders.used, map.len());
                for ahn in 0..4 {
                    for qpn in 0..40 {
                        let sender = Sender::new(Ahn(ahn), Qpn(qpn));
                        let found = senders.get(sender, |slot| all[slot.index()]);
                        prop_assert_eq!(found, map.get(&(ahn, qpn)).copied());
                    }
                }
            }
        }
    }
}
