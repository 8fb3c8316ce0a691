//! The operations of [`crate::endpoint::receiving::transfer`], found by their id.
//!
//! Posted receives, of which there may be very many, are smaller than transfers. So each kind has
//! memory of its own, and a match touches no more of it than it needs.

use slab::Slab;

use crate::endpoint::base::ids::{Arena, ReceiveId};
use crate::endpoint::receiving::matching::{PostedEntry, Receives};
use crate::endpoint::receiving::transfer::{Posted, Transfer};

/// A receive that the application posted, or an operation that a peer's data goes to: itself, or a
/// reference to it.
pub(crate) enum Inbound<P = Posted, T = Transfer> {
    /// Waits for a message.
    Posted(P),
    /// Takes data.
    Active(T),
}

/// There are as many operations as there may be.
#[derive(Debug)]
pub(crate) struct Full;

/// All of them.
pub(crate) struct InboundTable {
    ids: Arena<Inbound<Posted, u32>, ReceiveId>,
    transfers: Slab<Transfer>,
}

impl InboundTable {
    /// A table for at most `limit` operations of the application.
    pub(crate) fn new(limit: usize) -> Self {
        InboundTable {
            ids: Arena::new(limit),
            transfers: Slab::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no room for another operation of the application.
    pub(crate) fn is_full(&self) -> bool {
        self.ids.is_full()
    }

    /// Stores an operation that takes data. Those of peers do not count here: there are not more than
    /// [`EndpointConfig::remote_operations`](crate::endpoint::EndpointConfig::remote_operations).
    pub(crate) fn insert_active(&mut self, transfer: Transfer) -> Result<ReceiveId, Full> {
        if transfer.ending.is_remote() {
            self.ids.widen();
        } else if self.is_full() {
            return Err(Full);
        }
        let key = self.transfers.insert(transfer) as u32;
        self.ids.insert(Inbound::Active(key)).map_err(|_| Full)
    }

    /// Stores a receive that is about to be posted.
    #[inline]
    pub(crate) fn insert_posted(&mut self, posted: Posted) -> Result<ReceiveId, Full> {
        self.ids.insert(Inbound::Posted(posted)).map_err(|_| Full)
    }

    /// Takes out a posted receive.
    #[inline]
    pub(crate) fn remove_posted(&mut self, id: ReceiveId) -> Option<Posted> {
        if let Inbound::Active(_) = self.ids.get(id)? {
            return None;
        }
        match self.ids.remove(id)? {
            Inbound::Posted(posted) => Some(posted),
            Inbound::Active(_) => None,
        }
    }

    /// Ends a posted receive.
    #[inline]
    pub(crate) fn drop_posted(&mut self, id: ReceiveId) {
        self.ids.end(id, |inbound| {
            matches!(inbound, Inbound::Posted(_)).then_some(())
        });
    }

    /// A posted receive becomes a transfer and keeps its id.
    pub(crate) fn activate(&mut self, id: ReceiveId, transfer: Transfer) {
        if let Some(slot @ Inbound::Posted(_)) = self.ids.get_mut(id) {
            *slot = Inbound::Active(self.transfers.insert(transfer) as u32);
        }
    }

    /// Takes out an operation that takes data.
    pub(crate) fn remove_active(&mut self, id: ReceiveId) -> Option<Transfer> {
        let Inbound::Active(key) = *self.ids.get(id)? else {
            return None;
        };
        self.ids.remove(id);
        let transfer = self.transfers.remove(key as usize);
        if transfer.ending.is_remote() {
            self.ids.narrow();
        }
        Some(transfer)
    }

    #[inline]
    pub(crate) fn get(&self, id: ReceiveId) -> Option<Inbound<&Posted, &Transfer>> {
        Some(match self.ids.get(id)? {
            Inbound::Posted(posted) => Inbound::Posted(posted),
            Inbound::Active(key) => Inbound::Active(&self.transfers[*key as usize]),
        })
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ReceiveId) -> Option<Inbound<&mut Posted, &mut Transfer>> {
        Some(match self.ids.get_mut(id)? {
            Inbound::Posted(posted) => Inbound::Posted(posted),
            Inbound::Active(key) => Inbound::Active(&mut self.transfers[*key as usize]),
        })
    }

    /// The posted receives, in the order of their slots.
    pub(crate) fn posted(&self) -> impl Iterator<Item = (ReceiveId, &Posted)> {
        self.ids.iter().filter_map(|(id, inbound)| match inbound {
            Inbound::Posted(posted) => Some((id, posted)),
            Inbound::Active(_) => None,
        })
    }

    /// The transfers, in the order of their slots.
    pub(crate) fn transfers(&self) -> impl Iterator<Item = (ReceiveId, &Transfer)> {
        self.ids.iter().filter_map(|(id, inbound)| match inbound {
            Inbound::Posted(_) => None,
            Inbound::Active(key) => Some((id, &self.transfers[*key as usize])),
        })
    }
}

impl Receives for InboundTable {
    #[inline]
    fn id(&self, slot: u32) -> ReceiveId {
        match self.ids.at(slot as usize) {
            Some((id, _)) => id,
            None => not_posted(slot),
        }
    }

    #[inline]
    fn entry(&self, slot: u32) -> &PostedEntry {
        match self.ids.at(slot as usize) {
            Some((_, Inbound::Posted(posted))) => &posted.entry,
            _ => not_posted(slot),
        }
    }

    #[inline]
    fn entry_mut(&mut self, slot: u32) -> &mut PostedEntry {
        match self.ids.at_mut(slot as usize) {
            Some(Inbound::Posted(posted)) => &mut posted.entry,
            _ => not_posted(slot),
        }
    }
}

#[cold]
fn not_posted(slot: u32) -> ! {
    unreachable!("the matcher knows a receive in slot {slot} that is not posted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_posted_receive_takes_few_cache_lines() {
        let slot = size_of::<(u32, Inbound<Posted, u32>)>();
        assert!(slot <= 128, "{slot} bytes");
        assert!(size_of::<Transfer>() > 3 * slot / 2);
    }
}
