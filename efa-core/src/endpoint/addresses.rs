//! The address vector of an endpoint, and the end of a peer.

use crate::address::RawAddress;
use crate::nic::{Domain, Nic, PolledNic};

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::{EndpointError, Failure};
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::subprotocols::receive_calls::CompleteMessages;

impl<N: PolledNic> Endpoint<N> {
    /// Removes an address from the address vector. Operations with the peer fail with
    /// `FI_ECANCELED`, as soon as the device no longer uses their memory. Unmatched messages of the
    /// peer are dropped.
    ///
    /// The peer is not notified, and the conversation with it continues. Later packets of the peer
    /// are handled as those of a peer that was never inserted. If the address is inserted again,
    /// the conversation resumes where it stopped. The endpoint therefore remembers a removed peer
    /// like a peer that introduced itself
    /// ([`EndpointConfig::max_implicit_peers`](crate::endpoint::EndpointConfig::max_implicit_peers)),
    /// unless it gave up the peer.
    ///
    /// # Errors
    /// The peer is not in the address vector.
    pub fn remove_address(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        if !self.channel.peers.addresses().contains(peer) {
            return Err(EndpointError::UnknownPeer(peer));
        }
        if !self.can_retire(peer) {
            return self.drop_address(peer);
        }
        self.leave_peer(peer, true);
        if let Some(retired) = self.channel.peers.addresses_mut().retire(peer) {
            self.channel.peers.follow(peer, retired);
        }
        self.do_pending_work();
        Ok(())
    }
}

impl<N: Nic> Endpoint<N> {
    /// Puts an address into the address vector. An address that is already there keeps its id, even
    /// if only a packet introduced it.
    ///
    /// # Errors
    /// The device's address book is full.
    pub fn insert_address(&mut self, address: RawAddress) -> Result<PeerId, EndpointError> {
        let nic = self.channel.posting.nic_mut();
        self.channel
            .peers
            .addresses_mut()
            .insert_explicit(&mut **nic, address)
    }

    /// Ends all operations with a peer that is about to leave the address vector, and drops its
    /// state unless the conversation continues.
    pub(crate) fn leave_peer(&mut self, peer: PeerId, goes_on: bool) {
        let goes_on = goes_on && self.channel.peers.outlives_removal(peer);
        self.end_operations_with(peer, Failure::CANCELED);
        match goes_on {
            true => self.channel.keep_conversation(peer),
            false => self.channel.forget_conversation(peer),
        }
    }

    /// Returns whether the conversation with a peer continues after its removal. If so, the table
    /// needs room for it.
    pub(crate) fn can_retire(&mut self, peer: PeerId) -> bool {
        self.channel.peers.outlives_removal(peer)
            && (!self.channel.is_full_of_introduced() || self.forget_idle_peer())
    }

    /// Removes an address from the address vector, and drops the conversation.
    ///
    /// # Errors
    /// The peer is not in the address vector.
    pub(crate) fn drop_address(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        if !self.channel.peers.addresses().contains(peer) {
            return Err(EndpointError::UnknownPeer(peer));
        }
        self.leave_peer(peer, false);
        if let Some(ahn) = self.channel.peers.addresses_mut().remove(peer) {
            self.channel.posting.nic_mut().destroy_address_handle(ahn)?;
        }
        self.do_pending_work();
        Ok(())
    }

    /// The address of a peer.
    pub fn lookup_address(&self, peer: PeerId) -> Option<RawAddress> {
        self.channel.peers.addresses().address(peer)
    }

    /// The peer with an address, whether it was inserted or introduced itself.
    pub fn find_address(&self, address: &RawAddress) -> Option<PeerId> {
        self.channel.peers.addresses().find(address)
    }

    /// Ends all operations with a peer, and drops its waiting messages and packets.
    pub(crate) fn end_operations_with(&mut self, peer: PeerId, failure: Failure) {
        if let Some(state) = self.channel.peers.state_mut(peer) {
            state.failure.get_or_insert(failure);
        }
        for id in self.sending.with_peer(peer) {
            self.send_side().fail_outbound(id, failure);
        }
        for id in self.receiving.transfers.with_peer(peer) {
            self.receive_side().fail_inbound(id, failure);
        }
        for id in self.receiving.posted.naming(peer) {
            self.receive_side().withdraw_posted(id, failure);
        }
        for message in self.receiving.unexpected.take_all_of(peer) {
            self.receive_side().drop_unexpected(peer, message);
        }
        self.receive_side()
            .drop_held_operations(peer, failure, CompleteMessages::Dropped);
        if let Some(state) = self.channel.peers.state_mut(peer) {
            for head in state.window.drain() {
                self.channel.drop_deferred(peer, head);
            }
        }
        self.channel.drop_pending_aborts(peer, failure);
    }
}
