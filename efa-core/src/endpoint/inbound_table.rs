//! The operations of [`super::inbound`], found by their id.
//!
//! Posted receives, of which there may be very many, are a quarter of the size of transfers. So each
//! kind has memory of its own, and a match touches no more of it than it needs.

use slab::Slab;

use super::ids::{Arena, ReceiveId};
use super::inbound::{Posted, Transfer};

/// A receive that the application posted, or an operation that a peer's data goes to: itself, or a
/// reference to it.
pub(super) enum Inbound<P = Posted, T = Transfer> {
    /// Waits for a message.
    Posted(P),
    /// Takes data.
    Active(T),
}

/// There are as many operations as there may be.
#[derive(Debug)]
pub(super) struct Full;

/// All of them.
pub(super) struct InboundTable {
    ids: Arena<Inbound<Posted, u32>, ReceiveId>,
    transfers: Slab<Transfer>,
}

impl InboundTable {
    /// A table for at most `limit` operations of the application.
    pub(super) fn new(limit: usize) -> Self {
        InboundTable {
            ids: Arena::new(limit),
            transfers: Slab::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no room for another operation of the application.
    pub(super) fn is_full(&self) -> bool {
        self.ids.is_full()
    }

    /// Stores an operation. Those of peers do not count here: there are not more than
    /// [`EndpointConfig::remote_operations`](super::EndpointConfig::remote_operations).
    #[inline]
    pub(super) fn insert(&mut self, inbound: Inbound) -> Result<ReceiveId, Full> {
        if let Inbound::Active(transfer) = &inbound
            && transfer.ending.is_remote()
        {
            self.ids.widen();
        } else if self.is_full() {
            return Err(Full);
        }
        let stored = match inbound {
            Inbound::Posted(posted) => Inbound::Posted(posted),
            Inbound::Active(transfer) => Inbound::Active(self.transfers.insert(transfer) as u32),
        };
        self.ids.insert(stored).map_err(|_| Full)
    }

    /// A posted receive becomes a transfer and keeps its id.
    pub(super) fn activate(&mut self, id: ReceiveId, transfer: Transfer) {
        if let Some(slot @ Inbound::Posted(_)) = self.ids.get_mut(id) {
            *slot = Inbound::Active(self.transfers.insert(transfer) as u32);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, id: ReceiveId) -> Option<Inbound> {
        Some(match self.ids.remove(id)? {
            Inbound::Posted(posted) => Inbound::Posted(posted),
            Inbound::Active(key) => {
                let transfer = self.transfers.remove(key as usize);
                if transfer.ending.is_remote() {
                    self.ids.narrow();
                }
                Inbound::Active(transfer)
            }
        })
    }

    #[inline]
    pub(super) fn get(&self, id: ReceiveId) -> Option<Inbound<&Posted, &Transfer>> {
        Some(match self.ids.get(id)? {
            Inbound::Posted(posted) => Inbound::Posted(posted),
            Inbound::Active(key) => Inbound::Active(&self.transfers[*key as usize]),
        })
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ReceiveId) -> Option<Inbound<&mut Posted, &mut Transfer>> {
        Some(match self.ids.get_mut(id)? {
            Inbound::Posted(posted) => Inbound::Posted(posted),
            Inbound::Active(key) => Inbound::Active(&mut self.transfers[*key as usize]),
        })
    }

    /// The transfers, in the order of their slots.
    pub(super) fn transfers(&self) -> impl Iterator<Item = (ReceiveId, &Transfer)> {
        self.ids.iter().filter_map(|(id, inbound)| match inbound {
            Inbound::Posted(_) => None,
            Inbound::Active(key) => Some((id, &self.transfers[*key as usize])),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_posted_receive_takes_few_cache_lines() {
        let slot = size_of::<(u32, Inbound<Posted, u32>)>();
        assert!(slot <= 96, "{slot} bytes");
        assert!(size_of::<Transfer>() > 2 * slot);
    }
}
