//! Packet buffers in the receive queue, and received packets that wait.

use crate::endpoint::memory::packet::ReceivedPacket;
use crate::nic::{BufferId, Domain, Nic, NicError};
use crate::wire::Packet;

use super::Posting;
use super::deferred::DeferredPacketId;

// Packet buffers.
impl<N: Nic> Posting<N> {
    /// Returns a buffer to the receive queue if that lacks one, otherwise to the pool.
    #[inline(always)]
    pub(crate) fn recycle(&mut self, buffer: BufferId) {
        if self.receives.lacks(self.deferred.in_buffers()) {
            self.receives.push(buffer);
        } else {
            self.nic.release_buffer(buffer);
        }
    }

    /// Records that the device returned a receive buffer.
    #[inline]
    pub(crate) fn receive_returned(&mut self) {
        self.receives.returned();
    }

    /// Releases a buffer that the device refused to receive into.
    pub(crate) fn retire(&mut self, buffer: BufferId) {
        self.receives.give_one_up();
        self.nic.release_buffer(buffer);
    }

    /// Posts receive buffers as far as there is room.
    ///
    /// # Errors
    /// The device refused a buffer, which is not used any more. Others may remain to be posted.
    pub(crate) fn post_receives(&mut self) -> Result<(), NicError> {
        let nic = &mut self.nic;
        match self.receives.post(|buffers| nic.post_recvs(buffers)) {
            Ok(()) | Err(NicError::QueueFull) => Ok(()),
            Err(error) => {
                if let Some(refused) = self.receives.pop() {
                    self.retire(refused);
                }
                Err(error)
            }
        }
    }
}

// Received packets.
impl<N: Nic> Posting<N> {
    /// Releases a packet that does not wait.
    #[inline(always)]
    pub(crate) fn release(&mut self, packet: ReceivedPacket) {
        if let Some(buffer) = self.deferred.release(packet) {
            self.recycle(buffer);
        }
    }

    /// Makes a packet wait in front of the chain `next`.
    ///
    /// # Errors
    /// Returns the packet if too many wait.
    pub(crate) fn defer(
        &mut self,
        packet: ReceivedPacket,
        next: Option<DeferredPacketId>,
    ) -> Result<DeferredPacketId, ReceivedPacket> {
        let contents = match packet.buffer() {
            Some(buffer) => self.nic.buffer(buffer),
            None => &[],
        };
        let (id, freed) = self.deferred.defer(packet, contents, next)?;
        if let Some(buffer) = freed {
            self.recycle(buffer);
        }
        Ok(id)
    }

    /// Links a packet that waits to the chain of later packets.
    pub(crate) fn link_deferred(&mut self, id: DeferredPacketId, next: Option<DeferredPacketId>) {
        self.deferred.set_next(id, next);
    }

    /// Ends a packet's wait. Returns it, and the next one of its chain.
    pub(crate) fn take_deferred(
        &mut self,
        id: DeferredPacketId,
    ) -> Option<(ReceivedPacket, Option<DeferredPacketId>)> {
        self.deferred.take(id)
    }

    /// Returns whether a packet can wait without a device buffer that the receive queue needs.
    pub(crate) fn has_memory_for(&self, packet: &ReceivedPacket) -> bool {
        self.deferred.has_memory_for(packet)
    }

    /// The number of packets that wait.
    pub(crate) fn deferred_len(&self) -> usize {
        self.deferred.len()
    }

    /// Parses a packet that waited. It was parsed before.
    pub(crate) fn parse_again(&self, packet: &ReceivedPacket) -> Option<Packet> {
        Packet::parse(packet.bytes(&self.nic)).ok()
    }
}
