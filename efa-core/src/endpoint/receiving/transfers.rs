//! The transfers of an endpoint, by id and by peer.

use crate::endpoint::base::by_peer::{PeerLinks, PeerLists, PeerNodes};
use crate::endpoint::base::ids::{Arena, Id, InboundId, PeerId};
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::memory::registration::OwnRegions;
use crate::wire::{MsgId, RecvId};

use super::arrived::RangePool;
use super::transfer::Transfer;

/// The transfers in progress.
pub(crate) struct Transfers {
    transfers: Arena<Transfer, InboundId>,
    by_peer: PeerLists,
    ranges: RangePool,
    /// The number of those that peers [decided on](super::TransferEnding::is_remote).
    remote: usize,
}

impl Transfers {
    pub(super) fn new() -> Self {
        Transfers {
            transfers: Arena::new(InboundId::MAX_SLOTS),
            by_peer: PeerLists::default(),
            ranges: RangePool::default(),
            remote: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.transfers.len()
    }

    /// The number of transfers that this endpoint's application started.
    #[inline]
    pub(super) fn own_len(&self) -> usize {
        self.transfers.len() - self.remote
    }

    /// Adds a transfer. `None` if no more can be named.
    pub(super) fn insert(&mut self, mut transfer: Transfer) -> Option<InboundId> {
        self.ranges.lend(transfer.arrived_mut());
        let (peer, is_remote) = (transfer.peer, transfer.ending.is_remote());
        let id = self.transfers.insert(transfer).ok()?;
        self.remote += usize::from(is_remote);
        self.by_peer.push(&mut self.transfers, peer, id.slot());
        Some(id)
    }

    pub(super) fn remove(&mut self, id: InboundId) -> Option<Transfer> {
        let peer = self.transfers.get(id)?.peer;
        self.by_peer.remove(&mut self.transfers, peer, id.slot());
        let mut transfer = self.transfers.remove(id)?;
        self.ranges.take_back(transfer.arrived_mut());
        self.remote -= usize::from(transfer.ending.is_remote());
        Some(transfer)
    }

    pub(crate) fn get(&self, id: InboundId) -> Option<&Transfer> {
        self.transfers.get(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: InboundId) -> Option<&mut Transfer> {
        self.transfers.get_mut(id)
    }

    /// The transfer that a packet of a peer names, if it is with that peer.
    pub(crate) fn named_by(
        &mut self,
        peer: PeerId,
        id: RecvId,
    ) -> Option<(InboundId, &mut Transfer)> {
        let id = InboundId::from_wire(id.0);
        let transfer = self.transfers.get_mut(id)?;
        (transfer.peer == peer).then_some((id, transfer))
    }

    /// The transfer of a peer's message. Takes time in proportion to the transfers with the peer.
    pub(crate) fn of_message(&self, peer: PeerId, msg_id: MsgId) -> Option<InboundId> {
        self.with_peer(peer).into_iter().find(|id| {
            let transfer = self.get(*id);
            transfer.is_some_and(|transfer| transfer.message() == Some(msg_id))
        })
    }

    /// The transfers with a peer, in the order of their start.
    pub(crate) fn with_peer(&self, peer: PeerId) -> Vec<InboundId> {
        let slots = self.by_peer.of(&self.transfers, peer).into_iter();
        let found = slots.map(|slot| self.transfers.at(slot as usize));
        found.flatten().map(|(id, _)| id).collect()
    }

    /// Returns whether there is no transfer with a peer.
    pub(super) fn has_none_with(&self, peer: PeerId) -> bool {
        self.by_peer.is_empty(peer)
    }

    /// The writes of peers to targets that `pick` accepts.
    pub(crate) fn peers_writes(&self, pick: impl Fn(&Iov) -> bool) -> Vec<InboundId> {
        let picked = self
            .transfers
            .iter()
            .filter(|(_, transfer)| transfer.ending.is_peers() && pick(transfer.target()));
        picked.map(|(id, _)| id).collect()
    }

    /// Removes and returns the registrations of all transfers, when the endpoint is closed.
    pub(crate) fn take_registrations(&mut self) -> Vec<OwnRegions> {
        let transfers = self.transfers.iter_mut();
        transfers.map(Transfer::take_registrations).collect()
    }
}

impl PeerNodes for Arena<Transfer, InboundId> {
    fn links(&self, slot: u32) -> &PeerLinks {
        &self[slot].links
    }

    fn links_mut(&mut self, slot: u32) -> &mut PeerLinks {
        &mut self[slot].links
    }
}
