//! The address vector, and the sender of a packet.
//!
//! An address is a GID, a queue pair number and a connection id (the Q-key). The device
//! distinguishes senders by GID and queue pair number only, so it cannot distinguish a queue pair
//! from an earlier one with the same number. The connection id in packets distinguishes these
//! *incarnations*: each address is a separate peer, and peers with the same AHN and QPN form a
//! chain, newest first. A packet belongs to the peer of the chain that has its connection id, so a
//! stale packet never reaches the successor.

use core::num::NonZeroU32;
use std::collections::VecDeque;

use hashbrown::HashTable;

use crate::address::{Ahn, Gid, Qpn, RawAddress};
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::{Arena, Id, PeerId};
use crate::nic::{Destination, Domain, Source};
use crate::wire::Connid;

use super::senders::{Sender, Senders};

/// An entry of the address vector. There may be a million, most of them idle, so it is small: the
/// GID is stored by AHN, and entries refer to each other by slot.
pub(super) struct Peer {
    destination: Destination,
    origin: Origin,
    /// The number of endpoints that keep state about it.
    users: u16,
    /// The slots of the next older and the next newer peer with the same AHN and QPN.
    older: Option<PeerSlot>,
    newer: Option<PeerSlot>,
}

/// The reason why a peer is in the address vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// The application inserted it.
    Inserted,
    /// A packet introduced it.
    Introduced,
    /// The application removed it. The conversation continues if either side sends more packets.
    Removed,
}

/// A peer's slot in the arena, for links that are removed with the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PeerSlot(NonZeroU32);

impl From<PeerId> for PeerSlot {
    fn from(id: PeerId) -> Self {
        // Ids have no slot with all bits set, so the next number is not 0.
        PeerSlot(NonZeroU32::MIN.saturating_add(id.index() as u32))
    }
}

impl PeerSlot {
    #[inline(always)]
    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The number of owners of one queue pair number that are remembered although the application did
/// not insert them. Packets of a former owner may arrive while they are in the network.
pub(super) const MAX_OWNERS: usize = 8;

/// The address vector. The endpoints of a domain may share it.
pub(crate) struct AddressVector {
    peers: Arena<Peer, PeerId>,
    by_address: HashTable<PeerSlot>,
    senders: Senders,
    /// The GID of each AHN in use, and the number of peers that use it.
    gids: Gids,
    /// The number of peers that the application did not insert, or has removed.
    implicit: usize,
    /// The number of them that it has removed.
    removed: usize,
    /// Peers that introduced themselves or were removed, in the order in which they are examined
    /// for eviction when the table is full. It may contain peers that were removed or inserted
    /// since.
    introduced: VecDeque<PeerId>,
    hasher: SeededHasher,
}

/// The GID of an AHN.
type Gids = Vec<Option<(Gid, usize)>>;

fn address_of(gids: &Gids, peer: &Peer) -> Option<RawAddress> {
    let Destination { ahn, qpn, qkey } = peer.destination;
    let (gid, _) = (*gids.get(usize::from(ahn.0))?)?;
    Some(RawAddress { gid, qpn, qkey })
}

impl AddressVector {
    pub(crate) fn new(hasher: SeededHasher) -> Self {
        AddressVector {
            peers: Arena::new(usize::MAX),
            by_address: HashTable::new(),
            senders: Senders::default(),
            gids: Vec::new(),
            implicit: 0,
            removed: 0,
            introduced: VecDeque::new(),
            hasher,
        }
    }

    /// Inserts an address for the application. An existing address keeps its id; a removed one
    /// keeps the id from [`AddressVector::retire`].
    ///
    /// # Errors
    /// The device's address book is full.
    pub(crate) fn insert_explicit(
        &mut self,
        nic: &mut impl Domain,
        address: RawAddress,
    ) -> Result<PeerId, EndpointError> {
        match self.find(&address) {
            Some(peer) => {
                self.make_explicit(peer);
                Ok(peer)
            }
            None => self.add(nic, address, true),
        }
    }

    /// Adds a new address, with an address handle of the device.
    ///
    /// # Errors
    /// The device's address book or this table is full.
    pub(crate) fn add(
        &mut self,
        nic: &mut impl Domain,
        address: RawAddress,
        explicit: bool,
    ) -> Result<PeerId, EndpointError> {
        let ahn = nic.create_address_handle(address.gid)?;
        match self.insert(address, ahn, explicit) {
            Some(peer) => Ok(peer),
            None => {
                nic.destroy_address_handle(ahn)?;
                Err(EndpointError::TryAgain)
            }
        }
    }

    fn address_hash(&self, address: &RawAddress) -> u64 {
        address_hash(self.hasher, address)
    }

    /// The peer with an address.
    pub(crate) fn find(&self, address: &RawAddress) -> Option<PeerId> {
        let slot = self.by_address.find(self.address_hash(address), |slot| {
            let peer = self.peers.at(slot.index());
            peer.and_then(|(_, peer)| address_of(&self.gids, peer)) == Some(*address)
        })?;
        Some(self.peers.at(slot.index())?.0)
    }

    /// The sender of a packet: the incarnation of (AHN, QPN) with the packet's connection id, or
    /// the newest one if the packet has none. `None` if the sender is not in the address vector.
    #[inline(always)]
    pub(crate) fn identify(&self, source: &Source, connid: Option<Connid>) -> Option<PeerId> {
        // Nearly always it is the peer in the first place where it can be.
        if let (Some(ahn), Some(connid)) = (source.ahn, connid)
            && let Some(slot) = self.senders.first(Sender::new(ahn, source.qpn))
            && let Some((id, peer)) = self.peers.at(slot.index())
            && peer.destination.ahn == ahn
            && peer.destination.qpn == source.qpn
            && peer.destination.qkey.0 == connid.0
        {
            return Some(id);
        }
        self.search(source, connid)
    }

    #[inline(never)]
    fn search(&self, source: &Source, connid: Option<Connid>) -> Option<PeerId> {
        let Some(ahn) = source.ahn else {
            // The device did not know the sender when the packet arrived. The address may have been
            // inserted since. If the device reports the GID, the address vector can look it up.
            return self.find(&RawAddress::new(source.gid?, source.qpn, connid?.into()));
        };
        let mut candidate = self.current(ahn, source.qpn);
        let Some(connid) = connid else {
            return Some(self.peers.at(candidate?.index())?.0);
        };
        while let Some(slot) = candidate {
            let (id, peer) = self.peers.at(slot.index())?;
            if peer.destination.qkey.0 == connid.0 {
                return Some(id);
            }
            candidate = peer.older;
        }
        None
    }

    fn current(&self, ahn: Ahn, qpn: Qpn) -> Option<PeerSlot> {
        self.senders
            .get(Sender::new(ahn, qpn), |slot| sender_of(&self.peers, slot))
    }

    /// The oldest of the owners of a queue pair that introduced themselves, if there are
    /// [`MAX_OWNERS`] of them. `users` returns how many users of a peer are disregarded.
    pub(super) fn surplus_owner(
        &self,
        ahn: Ahn,
        qpn: Qpn,
        users: impl Fn(PeerId) -> u16,
    ) -> Option<PeerId> {
        let mut next = self.current(ahn, qpn);
        let (mut oldest, mut owners) = (None, 0);
        while let Some((id, peer)) = next.and_then(|slot| self.peers.at(slot.index())) {
            #[cfg(any(test, debug_assertions))]
            crate::endpoint::base::steps::step();
            if peer.origin != Origin::Inserted {
                if peer.users <= users(id) {
                    oldest = Some(id);
                }
                owners += 1;
            }
            next = peer.older;
        }
        oldest.filter(|_| owners >= MAX_OWNERS)
    }

    /// Returns whether the address in a packet can be that of its sender.
    pub(crate) fn is_plausible(&self, source: &Source, address: &RawAddress) -> bool {
        let known_gid = match source.ahn {
            Some(ahn) => self
                .gids
                .get(usize::from(ahn.0))
                .copied()
                .flatten()
                .map(|(gid, _)| gid),
            None => source.gid,
        };
        address.qpn == source.qpn && known_gid.is_none_or(|gid| gid == address.gid)
    }

    /// Adds a new address as the newest peer of its AHN and QPN. Returns `None` if the table is
    /// full, or if the AHN belongs to another GID.
    pub(crate) fn insert(
        &mut self,
        address: RawAddress,
        ahn: Ahn,
        explicit: bool,
    ) -> Option<PeerId> {
        let index = usize::from(ahn.0);
        if self.gids.len() <= index {
            self.gids.resize(index + 1, None);
        }
        let uses = match self.gids[index] {
            Some((gid, _)) if gid != address.gid => return None,
            Some((_, uses)) => uses + 1,
            None => 1,
        };
        let RawAddress { gid, qpn, qkey } = address;
        let current = self.current(ahn, qpn);
        let peer = Peer {
            destination: Destination { ahn, qpn, qkey },
            origin: match explicit {
                true => Origin::Inserted,
                false => Origin::Introduced,
            },
            users: 0,
            older: current,
            newer: None,
        };
        let id = self.peers.insert(peer).ok()?;
        let slot = PeerSlot::from(id);
        if let Some(current) = current.and_then(|current| self.peers.at_mut(current.index())) {
            current.newer = Some(slot);
        }
        self.gids[index] = Some((gid, uses));
        let (peers, gids, hasher) = (&self.peers, &self.gids, self.hasher);
        self.senders
            .set(Sender::new(ahn, qpn), slot, |slot| sender_of(peers, slot));
        let hash = address_hash(hasher, &address);
        self.by_address.insert_unique(hash, slot, |slot| {
            let peer = peers.at(slot.index());
            peer.and_then(|(_, peer)| address_of(gids, peer))
                .map_or(0, |address| address_hash(hasher, &address))
        });
        if !explicit {
            self.implicit += 1;
            self.remember_introduced(id);
        }
        Some(id)
    }

    /// Appends a peer that introduced itself to the list for [`AddressVector::next_introduced`].
    pub(crate) fn remember_introduced(&mut self, id: PeerId) {
        self.introduced.push_back(id);
        // Entries of removed peers must not outnumber the valid ones.
        if self.introduced.len() > 2 * self.implicit + 64 {
            let peers = &self.peers;
            self.introduced.retain(|id| is_implicit(peers, *id));
        }
    }

    /// Removes and returns the first of the peers that introduced themselves; see
    /// [`AddressVector::remember_introduced`].
    pub(crate) fn next_introduced(&mut self) -> Option<PeerId> {
        loop {
            let id = self.introduced.pop_front()?;
            if is_implicit(&self.peers, id) {
                return Some(id);
            }
        }
    }

    /// The number of endpoints that keep state about a peer.
    pub(super) fn users(&self, id: PeerId) -> u16 {
        self.peers.get(id).map_or(0, |peer| peer.users)
    }

    /// Records that an endpoint keeps state about a peer from now on. Returns `None` for an unknown
    /// peer.
    pub(super) fn begin_use(&mut self, id: PeerId) -> Option<()> {
        self.peers.get_mut(id)?.users += 1;
        Some(())
    }

    /// Records that an endpoint of [`AddressVector::begin_use`] has dropped its state about the
    /// peer.
    pub(super) fn end_use(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.users -= 1;
        }
    }

    /// Records that the application inserted a peer that had introduced itself, or was removed.
    pub(crate) fn make_explicit(&mut self, id: PeerId) {
        self.set_origin(id, Origin::Inserted);
    }

    /// Removes a peer for the application. Its packets are still accepted: the conversation with it
    /// does not end. Returns the peer's new id.
    pub(crate) fn retire(&mut self, id: PeerId) -> Option<PeerId> {
        let retired = self.peers.renew(id)?;
        self.set_origin(retired, Origin::Removed);
        self.remember_introduced(retired);
        Some(retired)
    }

    fn set_origin(&mut self, id: PeerId, origin: Origin) {
        if let Some(peer) = self.peers.get_mut(id) {
            let before = core::mem::replace(&mut peer.origin, origin);
            self.uncount(before);
            self.implicit += usize::from(origin != Origin::Inserted);
            self.removed += usize::from(origin == Origin::Removed);
        }
    }

    fn uncount(&mut self, origin: Origin) {
        self.implicit -= usize::from(origin != Origin::Inserted);
        self.removed -= usize::from(origin == Origin::Removed);
    }

    /// Returns whether the application has removed a peer and not inserted it again.
    pub(crate) fn is_removed(&self, id: PeerId) -> bool {
        let peer = self.peers.get(id);
        peer.is_some_and(|peer| peer.origin == Origin::Removed)
    }

    /// Removes a peer. Returns its AHN, so that the caller releases one reference to it in the
    /// device.
    pub(crate) fn remove(&mut self, id: PeerId) -> Option<Ahn> {
        let peer = self.peers.get(id)?;
        let Destination { ahn, qpn, .. } = peer.destination;
        let (older, newer) = (peer.older, peer.newer);
        let slot = PeerSlot::from(id);
        if let Some(address) = self.address(id)
            && let Ok(entry) = self
                .by_address
                .find_entry(self.address_hash(&address), |other| *other == slot)
        {
            entry.remove();
        }
        if let Some(older) = older.and_then(|older| self.peers.at_mut(older.index())) {
            older.newer = newer;
        }
        match newer.and_then(|newer| self.peers.at_mut(newer.index())) {
            Some(newer) => newer.older = older,
            None => {
                let (sender, peers) = (Sender::new(ahn, qpn), &self.peers);
                let sender_of = |slot| sender_of(peers, slot);
                match older {
                    Some(older) => self.senders.set(sender, older, sender_of),
                    None => self.senders.remove(sender, sender_of),
                }
            }
        }
        let gid = &mut self.gids[usize::from(ahn.0)];
        *gid = gid.and_then(|(gid, uses)| (uses > 1).then_some((gid, uses - 1)));
        let peer = self.peers.remove(id)?;
        self.uncount(peer.origin);
        Some(ahn)
    }

    /// The number of peers that the application did not insert, or has removed.
    pub(crate) fn implicit_len(&self) -> usize {
        self.implicit
    }

    /// The number of peers, without those that were removed.
    pub(crate) fn len(&self) -> usize {
        self.peers.len() - self.removed
    }

    pub(crate) fn contains(&self, id: PeerId) -> bool {
        self.peers.get(id).is_some()
    }

    pub(crate) fn address(&self, id: PeerId) -> Option<RawAddress> {
        address_of(&self.gids, self.peers.get(id)?)
    }

    /// The destination of packets to a peer.
    #[inline]
    pub(crate) fn destination(&self, id: PeerId) -> Option<Destination> {
        self.peers.get(id).map(|peer| peer.destination)
    }

    /// All peers.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().map(|(id, _)| id)
    }

    /// The AHN of a peer.
    pub(crate) fn ahn(&self, id: PeerId) -> Option<Ahn> {
        self.peers.get(id).map(|peer| peer.destination.ahn)
    }
}

fn is_implicit(peers: &Arena<Peer, PeerId>, id: PeerId) -> bool {
    let peer = peers.get(id);
    peer.is_some_and(|peer| peer.origin != Origin::Inserted)
}

/// Whose peer is in a slot.
#[inline(always)]
fn sender_of(peers: &Arena<Peer, PeerId>, slot: PeerSlot) -> Sender {
    match peers.at(slot.index()) {
        Some((_, peer)) => Sender::new(peer.destination.ahn, peer.destination.qpn),
        None => unreachable!("the table of senders names peers that exist"),
    }
}

fn address_hash(hasher: SeededHasher, address: &RawAddress) -> u64 {
    let gid = u128::from_le_bytes(address.gid.0);
    let endpoint = u64::from(address.qpn.0) << 32 | u64::from(address.qkey.0);
    hasher.hash(gid as u64 ^ endpoint.rotate_left(24), (gid >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Qkey;

    fn address(host: u8, qpn: u16, qkey: u32) -> RawAddress {
        let mut gid = [0; 16];
        gid[15] = host;
        RawAddress::new(Gid(gid), Qpn(qpn), Qkey(qkey))
    }

    fn from(ahn: u16, qpn: u16) -> Source {
        Source {
            ahn: Some(Ahn(ahn)),
            qpn: Qpn(qpn),
            gid: None,
        }
    }

    fn peers() -> AddressVector {
        AddressVector::new(SeededHasher::new(3))
    }

    #[test]
    fn connid_distinguishes_incarnations_of_a_queue_pair() {
        let mut peers = peers();
        let old = peers.insert(address(1, 7, 100), Ahn(4), true).unwrap();
        let new = peers.insert(address(1, 7, 200), Ahn(4), true).unwrap();
        assert_eq!(peers.identify(&from(4, 7), Some(Connid(100))), Some(old));
        assert_eq!(peers.identify(&from(4, 7), Some(Connid(200))), Some(new));
        assert_eq!(peers.identify(&from(4, 7), None), Some(new));
        assert_eq!(peers.identify(&from(4, 7), Some(Connid(300))), None);
        assert_eq!(peers.identify(&from(4, 8), Some(Connid(100))), None);
        assert_eq!(peers.identify(&from(5, 7), None), None);
    }

    #[test]
    fn any_incarnation_can_be_removed() {
        for victim in 0..3 {
            let mut peers = peers();
            let ids: Vec<PeerId> = (0..3)
                .map(|qkey| peers.insert(address(1, 7, qkey), Ahn(4), false).unwrap())
                .collect();
            let ahn = peers.remove(ids[victim]).unwrap();
            assert_eq!(ahn, Ahn(4));
            for (qkey, id) in ids.iter().enumerate() {
                let expected = (qkey != victim).then_some(*id);
                let found = peers.identify(&from(4, 7), Some(Connid(qkey as u32)));
                assert_eq!(found, expected, "qkey {qkey} without {victim}");
                assert_eq!(peers.find(&address(1, 7, qkey as u32)), expected);
            }
            let newest = if victim == 2 { ids[1] } else { ids[2] };
            assert_eq!(peers.identify(&from(4, 7), None), Some(newest));
            assert_eq!(peers.implicit_len(), 2);
            assert!(peers.remove(ids[victim]).is_none());
        }
    }

    #[test]
    fn queue_pair_owners_are_removed_in_any_order() {
        const OWNERS: u32 = 97;
        let orders: [fn(u32) -> u32; 3] = [
            |index| index,
            |index| OWNERS - 1 - index,
            |index| index * 41 % OWNERS,
        ];
        for order in orders {
            let mut peers = peers();
            let mut left: Vec<(u32, PeerId)> = (0..OWNERS)
                .map(|qkey| {
                    (
                        qkey,
                        peers.insert(address(1, 7, qkey), Ahn(4), true).unwrap(),
                    )
                })
                .collect();
            for victim in (0..OWNERS).map(order) {
                let place = left.iter().position(|(qkey, _)| *qkey == victim).unwrap();
                assert_eq!(peers.remove(left.remove(place).1), Some(Ahn(4)));
                let newest = left.last().map(|(_, id)| *id);
                assert_eq!(peers.identify(&from(4, 7), None), newest);
                for (qkey, id) in &left {
                    let found = peers.identify(&from(4, 7), Some(Connid(*qkey)));
                    assert_eq!(found, Some(*id));
                }
            }
            assert_eq!(peers.len(), 0);
        }
    }

    #[test]
    fn an_ahn_of_another_gid_is_not_taken() {
        let mut peers = peers();
        let first = peers.insert(address(1, 7, 100), Ahn(4), true).unwrap();
        assert_eq!(peers.insert(address(2, 7, 100), Ahn(4), true), None);
        assert_eq!(peers.len(), 1);
        peers.remove(first).unwrap();
        // After its last peer was removed, the AHN may belong to another GID.
        let second = peers.insert(address(2, 7, 100), Ahn(4), true).unwrap();
        assert_eq!(peers.address(second), Some(address(2, 7, 100)));
    }

    #[test]
    fn a_retired_peer_is_found_until_forgotten() {
        let mut peers = peers();
        let old = peers.insert(address(1, 7, 100), Ahn(4), true).unwrap();
        let retired = peers.retire(old).unwrap();
        assert_eq!((peers.len(), peers.implicit_len()), (0, 1));
        assert!(!peers.contains(old) && peers.is_removed(retired));
        assert_eq!(
            peers.identify(&from(4, 7), Some(Connid(100))),
            Some(retired)
        );
        assert_eq!(peers.find(&address(1, 7, 100)), Some(retired));
        peers.make_explicit(retired);
        assert_eq!((peers.len(), peers.implicit_len()), (1, 0));
        let retired = peers.retire(retired).unwrap();
        assert_eq!(peers.next_introduced(), Some(retired));
        assert_eq!(peers.remove(retired), Some(Ahn(4)));
        assert_eq!((peers.len(), peers.implicit_len()), (0, 0));
    }

    #[test]
    fn gid_and_connid_find_a_sender_without_ahn() {
        let mut peers = peers();
        let id = peers.insert(address(1, 7, 100), Ahn(0), true).unwrap();
        let source = Source {
            ahn: None,
            qpn: Qpn(7),
            gid: Some(address(1, 0, 0).gid),
        };
        assert_eq!(peers.identify(&source, Some(Connid(100))), Some(id));
        assert_eq!(peers.identify(&source, Some(Connid(101))), None);
        assert_eq!(peers.identify(&source, None), None);
        let anonymous = Source {
            gid: None,
            ..source
        };
        assert_eq!(peers.identify(&anonymous, Some(Connid(100))), None);
    }

    #[test]
    fn an_address_contradicting_the_device_is_implausible() {
        let mut peers = peers();
        peers.insert(address(1, 7, 100), Ahn(4), true).unwrap();
        assert!(peers.is_plausible(&from(4, 8), &address(1, 8, 5)));
        assert!(!peers.is_plausible(&from(4, 8), &address(1, 9, 5)));
        assert!(!peers.is_plausible(&from(4, 8), &address(2, 8, 5)));
        let unknown = Source {
            ahn: None,
            qpn: Qpn(8),
            gid: None,
        };
        assert!(peers.is_plausible(&unknown, &address(2, 8, 5)));
    }
}
