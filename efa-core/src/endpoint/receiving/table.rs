//! The table of posted receives and [transfers](crate::endpoint::receiving::transfer), by id.
//!
//! There may be very many posted receives. They are smaller than transfers, so each kind has memory
//! of its own, and a match reads no more than it needs.

use slab::Slab;

use crate::endpoint::base::by_peer::{ByPeer, OfPeers, PeerLinks};
use crate::endpoint::base::ids::{Arena, PeerId, ReceiveId};
use crate::endpoint::receiving::matching::{PostedEntry, Receives};
use crate::endpoint::receiving::transfer::{Posted, Transfer};

/// A posted receive or a transfer, or a reference to one.
pub(crate) enum Inbound<P = Posted, T = Transfer> {
    /// A receive that waits for a message.
    Posted(P),
    /// A transfer.
    Active(T),
}

/// The error that there is no room for another operation.
#[derive(Debug)]
pub(crate) struct Full;

/// The posted receives and the transfers.
pub(crate) struct InboundTable {
    ids: Ids,
    transfers: Slab<Active>,
    /// The posted receives that name a source, by peer; each by its slot.
    posted_by_peer: ByPeer,
    /// The transfers by peer; each by its key.
    transfers_by_peer: ByPeer,
}

type Ids = Arena<Inbound<Posted, u32>, ReceiveId>;

/// A transfer, and its links among those with the same peer.
struct Active {
    transfer: Transfer,
    id: ReceiveId,
    links: PeerLinks,
}

impl InboundTable {
    /// A table for at most `limit` operations of the application.
    pub(crate) fn new(limit: usize) -> Self {
        InboundTable {
            ids: Arena::new(limit),
            transfers: Slab::new(),
            posted_by_peer: ByPeer::default(),
            transfers_by_peer: ByPeer::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there is no room for another operation of the application.
    pub(crate) fn is_full(&self) -> bool {
        self.ids.is_full()
    }

    /// Adds a transfer. Those of peers do not count here: there are at most
    /// [`EndpointConfig::remote_operations`](crate::endpoint::EndpointConfig::remote_operations).
    pub(crate) fn insert_active(&mut self, transfer: Transfer) -> Result<ReceiveId, Full> {
        if transfer.ending.is_remote() {
            self.ids.widen();
        } else if self.is_full() {
            return Err(Full);
        }
        let key = self.transfers.vacant_key() as u32;
        let id = self.ids.insert(Inbound::Active(key)).map_err(|_| Full)?;
        self.store(id, transfer);
        Ok(id)
    }

    /// Stores the transfer of an operation under a new key.
    fn store(&mut self, id: ReceiveId, transfer: Transfer) {
        let peer = transfer.peer;
        let links = PeerLinks::NONE;
        let key = self.transfers.insert(Active {
            transfer,
            id,
            links,
        });
        self.transfers_by_peer
            .push(&mut self.transfers, peer, key as u32);
    }

    /// Stores a receive that is about to be posted.
    #[inline]
    pub(crate) fn insert_posted(&mut self, posted: Posted) -> Result<ReceiveId, Full> {
        let source = posted.entry.source();
        let id = self.ids.insert(Inbound::Posted(posted)).map_err(|_| Full)?;
        if let Some(peer) = source {
            self.posted_by_peer.push(&mut self.ids, peer, id.slot());
        }
        Ok(id)
    }

    /// Removes a posted receive from the list of its source.
    #[inline]
    fn unlink_posted(&mut self, id: ReceiveId) {
        if let Some(Inbound::Posted(posted)) = self.ids.get(id)
            && let Some(peer) = posted.entry.source()
        {
            self.posted_by_peer.remove(&mut self.ids, peer, id.slot());
        }
    }

    /// Takes out a posted receive.
    #[inline(never)]
    pub(crate) fn remove_posted(&mut self, id: ReceiveId) -> Option<Posted> {
        if let Inbound::Active(_) = self.ids.get(id)? {
            return None;
        }
        self.unlink_posted(id);
        match self.ids.remove(id)? {
            Inbound::Posted(posted) => Some(posted),
            Inbound::Active(_) => None,
        }
    }

    /// Ends a posted receive.
    #[inline(always)]
    pub(crate) fn drop_posted(&mut self, id: ReceiveId) {
        let ended = self.ids.end(id, |inbound| match inbound {
            Inbound::Posted(posted) if posted.entry.source().is_none() => Some(()),
            _ => None,
        });
        if ended.is_none() {
            self.remove_posted(id);
        }
    }

    /// Turns a posted receive into a transfer with the same id.
    pub(crate) fn activate(&mut self, id: ReceiveId, transfer: Transfer) {
        self.unlink_posted(id);
        if let Some(slot @ Inbound::Posted(_)) = self.ids.get_mut(id) {
            *slot = Inbound::Active(self.transfers.vacant_key() as u32);
            self.store(id, transfer);
        }
    }

    /// Takes out an operation that takes data.
    pub(crate) fn remove_active(&mut self, id: ReceiveId) -> Option<Transfer> {
        let Inbound::Active(key) = *self.ids.get(id)? else {
            return None;
        };
        self.ids.remove(id);
        let peer = self.transfers[key as usize].transfer.peer;
        self.transfers_by_peer
            .remove(&mut self.transfers, peer, key);
        let Active { transfer, .. } = self.transfers.remove(key as usize);
        if transfer.ending.is_remote() {
            self.ids.narrow();
        }
        Some(transfer)
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: ReceiveId) -> Option<Inbound<&Posted, &Transfer>> {
        Some(match self.ids.get(id)? {
            Inbound::Posted(posted) => Inbound::Posted(posted),
            Inbound::Active(key) => Inbound::Active(&self.transfers[*key as usize].transfer),
        })
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ReceiveId) -> Option<Inbound<&mut Posted, &mut Transfer>> {
        Some(match self.ids.get_mut(id)? {
            Inbound::Posted(posted) => Inbound::Posted(posted),
            Inbound::Active(key) => Inbound::Active(&mut self.transfers[*key as usize].transfer),
        })
    }

    /// The posted receives, in the order of their slots.
    pub(crate) fn posted(&self) -> impl Iterator<Item = (ReceiveId, &Posted)> {
        self.ids.iter().filter_map(|(id, inbound)| match inbound {
            Inbound::Posted(posted) => Some((id, posted)),
            Inbound::Active(_) => None,
        })
    }

    /// The posted receives that name a peer as their source, in the order in which they were posted.
    pub(crate) fn posted_for(&self, peer: PeerId) -> Vec<ReceiveId> {
        let slots = self.posted_by_peer.of(&self.ids, peer);
        slots.into_iter().map(|slot| self.id(slot)).collect()
    }

    /// Returns whether there is no transfer with a peer, and no receive that names it.
    pub(crate) fn has_none_with(&self, peer: PeerId) -> bool {
        self.posted_by_peer.is_empty(peer) && self.transfers_by_peer.is_empty(peer)
    }

    /// The transfers with a peer.
    pub(crate) fn transfers_with(&self, peer: PeerId) -> Vec<ReceiveId> {
        let keys = self.transfers_by_peer.of(&self.transfers, peer);
        let transfers = keys.into_iter().map(|key| &self.transfers[key as usize]);
        transfers.map(|active| active.id).collect()
    }

    /// All transfers.
    pub(crate) fn transfers(&self) -> impl Iterator<Item = (ReceiveId, &Transfer)> {
        let transfers = self.transfers.iter();
        transfers.map(|(_, active)| (active.id, &active.transfer))
    }
}

impl OfPeers for Ids {
    fn links(&self, slot: u32) -> &PeerLinks {
        match self.at(slot as usize) {
            Some((_, Inbound::Posted(posted))) => &posted.links,
            _ => not_posted(slot),
        }
    }

    fn links_mut(&mut self, slot: u32) -> &mut PeerLinks {
        match self.at_mut(slot as usize) {
            Some(Inbound::Posted(posted)) => &mut posted.links,
            _ => not_posted(slot),
        }
    }
}

impl OfPeers for Slab<Active> {
    fn links(&self, key: u32) -> &PeerLinks {
        &self[key as usize].links
    }

    fn links_mut(&mut self, key: u32) -> &mut PeerLinks {
        &mut self[key as usize].links
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
    unreachable!("there is a link to a receive in slot {slot} that is not posted")
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
