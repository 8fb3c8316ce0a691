//! Peers that introduce themselves: packets of senders that are not in the address vector.

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::Event;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::channel::{Conversation, SenderLookup, UnknownSender};
use crate::nic::{Nic, Source};

impl<N: Nic> Endpoint<N> {
    /// Finds the peer of a packet by the address in the packet, or adds it to the address vector.
    #[cold]
    pub(crate) fn introduce(
        &mut self,
        source: &Source,
        introduction: &UnknownSender,
    ) -> Option<PeerId> {
        let address = match self.channel.introduced(source, introduction) {
            SenderLookup::Peer(peer) => return Some(peer),
            SenderLookup::New(address) => address,
            SenderLookup::Unknown => return None,
        };
        // Of the remembered owners of a queue pair number, only the newest still exists. Without a
        // limit for them, one sender that makes up connection ids could use the room of all others.
        if let Some(ahn) = source.ahn
            && let Some(oldest) = self.channel.peers.surplus_owner(ahn, source.qpn)
        {
            // The only possible error concerns an address handle that is no longer needed.
            let _ = self.drop_address(oldest);
        }
        if self.channel.is_full_of_introduced() && !self.forget_idle_peer() {
            self.channel.refuse_introduced(introduction.packet_type);
            return None;
        }
        self.channel.add_introduced(address)
    }

    /// Makes room for a peer that introduces itself, by evicting an idle peer that introduced
    /// itself earlier. It examines a few peers and evicts the one that was silent longest. Returns
    /// whether it found one.
    #[cold]
    pub(crate) fn forget_idle_peer(&mut self) -> bool {
        /// The number of peers that are examined for one packet.
        const LOOKS: usize = 32;
        let mut candidate = None;
        for _ in 0..LOOKS.min(self.channel.peers.addresses().implicit_len()) {
            let Some(peer) = self.channel.peers.addresses_mut().next_introduced() else {
                break;
            };
            if self.is_idle(peer) {
                let state = self.channel.peers.state_mut(peer);
                if !state.is_some_and(|state| core::mem::take(&mut state.heard)) {
                    self.forget_introduced(peer);
                    return true;
                }
                candidate.get_or_insert(peer);
            }
            self.channel.peers.addresses_mut().remember_introduced(peer);
        }
        if let Some(peer) = candidate {
            self.forget_introduced(peer);
        }
        candidate.is_some()
    }

    /// Returns whether all endpoints are idle with respect to a peer.
    fn is_idle(&self, peer: PeerId) -> bool {
        !self.channel.peers.is_others(peer)
            && self
                .channel
                .peers
                .state(peer)
                .is_none_or(Conversation::is_idle)
            && self.channel.quota.is_idle(peer)
            && self.sending.has_none_with(peer)
            && self.receiving.has_none_of(peer)
    }

    fn forget_introduced(&mut self, peer: PeerId) {
        let addresses = self.channel.peers.addresses();
        if !addresses.is_removed(peer)
            && let Some(address) = addresses.address(peer)
        {
            self.channel
                .reports
                .event(Event::PeerForgotten { peer, address });
        }
        // The only possible error concerns an address handle that is no longer needed.
        let _ = self.drop_address(peer);
    }
}
