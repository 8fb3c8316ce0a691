//! Peers: the address vector, and the state that an endpoint keeps about each peer.

mod address_vector;
pub(crate) mod handshake;
mod senders;

use crate::address::{Ahn, Qpn};
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::{Id, PeerId};
use crate::nic::Destination;
use crate::wire::MsgId;

pub(crate) use address_vector::AddressVector;

/// The address vector, and the state that one endpoint keeps about each peer. `S` is the state; it
/// is made from the first message id, with the first packet to or from the peer.
pub(crate) struct Peers<S> {
    addresses: AddressVector,
    /// By slot of the peer.
    states: Vec<Option<Box<PeerState<S>>>>,
    first_msg_id: MsgId,
}

/// The state of the peer `id`.
struct PeerState<S> {
    id: PeerId,
    /// The peer's id when the state was made. Each removal changes the id.
    first: PeerId,
    state: S,
}

impl<S: From<MsgId>> Peers<S> {
    pub(crate) fn new(hasher: SeededHasher, first_msg_id: MsgId) -> Self {
        Peers {
            addresses: AddressVector::new(hasher),
            states: Vec::new(),
            first_msg_id,
        }
    }

    /// The id of the first message in each direction.
    pub(crate) fn first_msg_id(&self) -> MsgId {
        self.first_msg_id
    }

    /// The address vector.
    #[inline(always)]
    pub(crate) fn addresses(&self) -> &AddressVector {
        &self.addresses
    }

    /// The address vector, to change it.
    pub(crate) fn addresses_mut(&mut self) -> &mut AddressVector {
        &mut self.addresses
    }

    /// The oldest of the owners of a queue pair that introduced themselves, if there are
    /// [`MAX_OWNERS`] of them. Peers about which another endpoint keeps state are excluded.
    pub(crate) fn surplus_owner(&self, ahn: Ahn, qpn: Qpn) -> Option<PeerId> {
        let own = |id| u16::from(self.state(id).is_some());
        self.addresses.surplus_owner(ahn, qpn, own)
    }

    /// The destination of packets to a peer, and the peer's state if it exists. `None` for an
    /// unknown peer.
    #[inline]
    pub(crate) fn lookup(&self, id: PeerId) -> Option<(Destination, Option<&S>)> {
        Some((self.addresses.destination(id)?, self.state(id)))
    }

    /// Returns whether another endpoint keeps state about a peer.
    pub(crate) fn is_others(&self, id: PeerId) -> bool {
        self.addresses.users(id) > u16::from(self.state(id).is_some())
    }

    /// The state of a peer. `None` if there was never a packet to or from it.
    #[inline]
    pub(crate) fn state(&self, id: PeerId) -> Option<&S> {
        let known = self.states.get(id.index())?.as_deref()?;
        (known.id == id).then_some(&known.state)
    }

    /// The state of a peer, created on first use. `None` for an unknown peer.
    #[inline]
    pub(crate) fn state_mut(&mut self, id: PeerId) -> Option<&mut S> {
        if self.state(id).is_none() {
            self.make_state(id)?;
        }
        self.existing_state_mut(id)
    }

    /// The state of a peer. `None` if there was never a packet to or from it.
    #[inline]
    pub(crate) fn existing_state_mut(&mut self, id: PeerId) -> Option<&mut S> {
        let known = self.states.get_mut(id.index())?.as_deref_mut()?;
        (known.id == id).then_some(&mut known.state)
    }

    #[cold]
    fn make_state(&mut self, id: PeerId) -> Option<()> {
        self.addresses.begin_use(id)?;
        let slot = id.index();
        if self.states.len() <= slot {
            self.states.resize_with(slot + 1, || None);
        }
        let state = self.first_msg_id.into();
        let first = id;
        self.states[slot] = Some(Box::new(PeerState { id, first, state }));
        Some(())
    }

    /// Records that a peer's id has changed because it was [retired](AddressVector::retire).
    pub(crate) fn follow(&mut self, old: PeerId, new: PeerId) {
        if let Some(Some(known)) = self.states.get_mut(old.index())
            && known.id == old
        {
            known.id = new;
        }
    }

    /// The current id of a peer, if it was removed since it had this id, and the state was kept.
    #[cold]
    pub(crate) fn current_id(&self, id: PeerId) -> PeerId {
        match self.states.get(id.index()) {
            Some(Some(known)) if is_between(id, known.first, known.id) => known.id,
            _ => id,
        }
    }

    /// Removes the state of a peer.
    pub(crate) fn forget(&mut self, id: PeerId) -> Option<S> {
        self.state(id)?;
        let known = self.states.get_mut(id.index())?.take()?;
        self.addresses.end_use(id);
        Some(known.state)
    }
}

/// Returns whether an id of the same slot is not older than `first` and not newer than `last`.
fn is_between(id: PeerId, first: PeerId, last: PeerId) -> bool {
    let since_first = |id: PeerId| id.generation().wrapping_sub(first.generation());
    since_first(id) <= since_first(last)
}

#[cfg(test)]
mod tests {
    use super::address_vector::{MAX_OWNERS, Peer};
    use super::*;
    use crate::address::{Gid, Qkey, RawAddress};

    fn address(qpn: u16, qkey: u32) -> RawAddress {
        RawAddress::new(Gid([1; 16]), Qpn(qpn), Qkey(qkey))
    }

    #[test]
    fn peer_state_begins_and_ends_with_the_peer() {
        let mut peers = Peers::<MsgId>::new(SeededHasher::new(3), MsgId(5));
        let addresses = peers.addresses_mut();
        let id = addresses.insert(address(7, 100), Ahn(4), true).unwrap();
        assert_eq!(peers.lookup(id).unwrap().1, None);
        *peers.state_mut(id).unwrap() = MsgId(6);
        assert_eq!(peers.lookup(id).unwrap().1, Some(&MsgId(6)));
        assert_eq!(peers.forget(id), Some(MsgId(6)));
        assert_eq!(peers.forget(id), None);
        assert_eq!(peers.lookup(id).unwrap().1, None);
        assert_eq!(peers.addresses_mut().remove(id), Some(Ahn(4)));
        assert_eq!(peers.lookup(id), None);
        assert_eq!(peers.state_mut(id), None);
    }

    #[test]
    fn peer_state_does_not_outlive_its_slot() {
        let mut peers = Peers::<MsgId>::new(SeededHasher::new(3), MsgId(5));
        let addresses = peers.addresses_mut();
        let old = addresses.insert(address(7, 100), Ahn(4), true).unwrap();
        *peers.state_mut(old).unwrap() = MsgId(6);
        // Another endpoint of the domain removed the peer without notifying this endpoint.
        let addresses = peers.addresses_mut();
        addresses.remove(old).unwrap();
        let new = addresses.insert(address(8, 200), Ahn(4), true).unwrap();
        assert_eq!(old.index(), new.index());
        assert_eq!(peers.lookup(new).unwrap().1, None);
        assert_eq!(peers.state_mut(new), Some(&mut MsgId(5)));
        assert_eq!(peers.state(old), None);
    }

    #[test]
    fn earlier_ids_lead_to_kept_state_only() {
        let mut peers = Peers::<MsgId>::new(SeededHasher::new(3), MsgId(5));
        let addresses = peers.addresses_mut();
        let before = addresses.insert(address(6, 100), Ahn(4), true).unwrap();
        addresses.remove(before).unwrap();
        let first = addresses.insert(address(7, 100), Ahn(4), true).unwrap();
        *peers.state_mut(first).unwrap() = MsgId(6);
        let second = peers.addresses_mut().retire(first).unwrap();
        peers.follow(first, second);
        let third = peers.addresses_mut().retire(second).unwrap();
        peers.follow(second, third);
        assert_eq!(before.index(), third.index());
        assert_eq!(
            [first, second, third].map(|id| peers.current_id(id)),
            [third; 3]
        );
        assert_eq!(peers.current_id(before), before, "another peer's");
        assert_eq!(
            (peers.state(second), peers.state(third)),
            (None, Some(&MsgId(6)))
        );
        assert_eq!(peers.forget(third), Some(MsgId(6)));
        assert_eq!(peers.current_id(first), first);
    }

    #[test]
    fn surplus_owners_in_use_elsewhere_are_spared() {
        let mut shared = AddressVector::new(SeededHasher::new(3));
        let ids: Vec<PeerId> = (0..MAX_OWNERS as u32)
            .map(|qkey| shared.insert(address(7, qkey), Ahn(4), false).unwrap())
            .collect();
        let mut one = Peers::<MsgId>::new(SeededHasher::new(3), MsgId(0));
        let mut other = Peers::<MsgId>::new(SeededHasher::new(3), MsgId(0));
        core::mem::swap(&mut shared, one.addresses_mut());
        one.state_mut(ids[0]).unwrap();
        assert_eq!(one.surplus_owner(Ahn(4), Qpn(7)), Some(ids[0]));
        core::mem::swap(one.addresses_mut(), other.addresses_mut());
        assert_eq!(other.surplus_owner(Ahn(4), Qpn(7)), Some(ids[1]));
    }

    #[test]
    fn idle_peers_are_small() {
        let slot = size_of::<(u32, Peer)>() + size_of::<Option<Box<PeerState<MsgId>>>>();
        assert!(slot <= 32, "{slot} bytes");
    }
}
