//! The entries of address vectors.

use efa_core::endpoint::{Errno, PeerId};

use crate::ffi::result::Result;
use crate::ffi::{FI_ADDR_UNSPEC, fi_addr_t};

/// The entries of an address vector.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// By `fi_addr_t`.
    peers: Vec<Option<PeerId>>,
    /// Free entries of `peers`.
    free: Vec<fi_addr_t>,
    /// By [`PeerId::place`]: each peer, its entry, and the number of times that it was inserted.
    by_peer: Vec<Option<(PeerId, fi_addr_t, usize)>>,
}

impl Addresses {
    /// # Errors
    /// `FI_EINVAL` for an unknown entry.
    #[inline]
    pub(crate) fn peer(&self, address: fi_addr_t) -> Result<PeerId> {
        let index = usize::try_from(address).map_err(|_| Errno::EINVAL)?;
        self.peers
            .get(index)
            .copied()
            .flatten()
            .ok_or(Errno::EINVAL)
    }

    /// The entry of a peer; [`FI_ADDR_UNSPEC`] if it has none.
    #[inline]
    pub(crate) fn address(&self, peer: PeerId) -> fi_addr_t {
        match self.by_peer.get(peer.place()) {
            Some(Some((found, address, _))) if *found == peer => *address,
            _ => FI_ADDR_UNSPEC,
        }
    }

    pub(crate) fn contains(&self, peer: PeerId) -> bool {
        self.address(peer) != FI_ADDR_UNSPEC
    }

    /// All peers, each once.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().copied().flatten()
    }

    /// Adds a peer; an existing one keeps its entry.
    pub(crate) fn insert(&mut self, peer: PeerId) -> fi_addr_t {
        let place = peer.place();
        if self.by_peer.len() <= place {
            self.by_peer.resize(place + 1, None);
        }
        if let Some((found, address, uses)) = &mut self.by_peer[place]
            && *found == peer
        {
            *uses += 1;
            return *address;
        }
        let address = self.free.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() as fi_addr_t - 1
        });
        self.peers[address as usize] = Some(peer);
        self.by_peer[place] = Some((peer, address, 1));
        address
    }

    /// Undoes one insertion of an address. Returns the peer if that was the last one.
    ///
    /// # Errors
    /// `FI_EINVAL` for an unknown entry.
    pub(crate) fn remove(&mut self, address: fi_addr_t) -> Result<Option<PeerId>> {
        let peer = self.peer(address)?;
        if let Some(Some((_, _, uses))) = self.by_peer.get_mut(peer.place())
            && *uses > 1
        {
            *uses -= 1;
            return Ok(None);
        }
        self.by_peer[peer.place()] = None;
        self.peers[address as usize] = None;
        self.free.push(address);
        Ok(Some(peer))
    }
}
