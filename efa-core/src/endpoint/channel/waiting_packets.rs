//! Waiting packets of peers. Each peer has a share of the memory for them.

use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::posting::{DeferredPacketId, footprint};
use crate::nic::Nic;
use crate::wire::PacketType;

use super::Channel;

impl<N: Nic> Channel<N> {
    /// Stores a waiting packet of a peer, in front of the chain `next`.
    ///
    /// # Errors
    /// Returns the packet if too many packets wait, of all peers or of this one.
    pub(crate) fn defer(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        next: Option<DeferredPacketId>,
    ) -> Result<DeferredPacketId, ReceivedPacket> {
        let bytes = footprint(&packet);
        if !self
            .peers
            .take_share(peer, bytes, self.config.peer_deferred_bytes)
        {
            return Err(packet);
        }
        self.posting
            .defer(packet, next)
            .inspect_err(|_| self.peers.give_share_back(peer, bytes))
    }

    /// Stores the first packet of an operation that must wait. Returns `None` if the peer has no
    /// room left: the channel gave it up.
    pub(crate) fn make_wait(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        packet_type: PacketType,
    ) -> Option<DeferredPacketId> {
        // In one of the last device buffers, the packet would block the packets that it waits for.
        let deferred = match self.posting.has_memory_for(&packet) {
            true => self.defer(peer, packet, None),
            false => Err(packet),
        };
        deferred
            .inspect_err(|_| self.give_up(peer, packet_type))
            .map_err(|packet| self.posting.release(packet))
            .ok()
    }

    /// Removes a waiting packet of a peer. Returns it, and the next packet of its chain.
    pub(crate) fn take_deferred(
        &mut self,
        peer: PeerId,
        id: DeferredPacketId,
    ) -> Option<(ReceivedPacket, Option<DeferredPacketId>)> {
        #[cfg(any(test, debug_assertions))]
        crate::endpoint::base::steps::step();
        let (packet, next) = self.posting.take_deferred(id)?;
        self.peers.give_share_back(peer, footprint(&packet));
        Some((packet, next))
    }

    /// Releases a chain of waiting packets of a peer.
    pub(crate) fn drop_deferred(&mut self, peer: PeerId, head: DeferredPacketId) {
        let mut next = Some(head);
        while let Some((packet, behind)) =
            next.and_then(|deferred| self.take_deferred(peer, deferred))
        {
            next = behind;
            self.posting.release(packet);
        }
    }
}
