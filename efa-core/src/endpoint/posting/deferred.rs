//! Received packets that wait.
//!
//! A waiting packet (it arrived too early, or no receive matches it yet) stays in its device buffer
//! if only a few packets wait, so that nothing is copied. Further packets are copied to memory of
//! the engine, and their buffers return to the device: waiting packets must not block the packets
//! that they wait for.

use crate::nic::BufferId;

use crate::endpoint::base::ids::{Arena, Id, operation_id};
use crate::endpoint::memory::packet::{ReceivedPacket, Storage};

operation_id! {
    /// A packet that waits.
    pub(crate) DeferredPacketId
}

struct DeferredPacket {
    packet: ReceivedPacket,
    next: Option<DeferredPacketId>,
}

/// The packets that wait.
pub(crate) struct DeferredPackets {
    packets: Arena<DeferredPacket, DeferredPacketId>,
    /// The number of packets in device buffers, and its limit.
    in_buffers: usize,
    max_in_buffers: usize,
    /// Bytes of all copies, and their limit.
    copied_bytes: usize,
    max_copied_bytes: usize,
    /// Memory of earlier copies, by the sizes in [`CLASSES`].
    free: [Vec<Box<[u8]>>; CLASSES.len()],
}

/// Sizes of copies in bytes; larger packets have memory of exactly their size.
const CLASSES: [usize; 4] = [128, 512, 2048, 9216];

/// The memory in bytes that a packet uses, or would use, outside of a device buffer.
pub(crate) fn footprint(packet: &ReceivedPacket) -> usize {
    size_of_copy(packet.len())
}

/// The memory in bytes of a copy of `length` bytes.
fn size_of_copy(length: usize) -> usize {
    let class = CLASSES.into_iter().find(|size| length <= *size);
    class.unwrap_or(length)
}

/// The maximum number of unused copies in each class.
const MAX_FREE: usize = 1024;

impl DeferredPackets {
    /// At most `max_in_buffers` packets stay in device buffers, and `max_copied_bytes` bytes are
    /// used for copies.
    pub(crate) fn new(max_in_buffers: usize, max_copied_bytes: usize) -> Self {
        DeferredPackets {
            packets: Arena::new(usize::MAX),
            in_buffers: 0,
            max_in_buffers,
            copied_bytes: 0,
            max_copied_bytes,
            free: Default::default(),
        }
    }

    /// Makes a packet wait in front of the chain `next`. `contents` is the content of the device
    /// buffer, if the packet is in one. Returns that buffer if the packet was copied.
    ///
    /// # Errors
    /// Returns the packet if too many wait.
    pub(crate) fn defer(
        &mut self,
        packet: ReceivedPacket,
        contents: &[u8],
        next: Option<DeferredPacketId>,
    ) -> Result<(DeferredPacketId, Option<BufferId>), ReceivedPacket> {
        if self.packets.is_full() {
            return Err(packet);
        }
        let mut packet = packet;
        let mut freed = None;
        if let Some(buffer) = packet.buffer() {
            let length = packet.len();
            let copy = match self.in_buffers < self.max_in_buffers {
                true => None,
                false => self.copy(&contents[..length]),
            };
            match copy {
                Some(copy) => {
                    packet = ReceivedPacket::copied(copy, length);
                    freed = Some(buffer);
                }
                None => self.in_buffers += 1,
            }
        }
        match self.packets.insert(DeferredPacket { packet, next }) {
            Ok(id) => Ok((id, freed)),
            Err(deferred) => Err(deferred.packet),
        }
    }

    fn copy(&mut self, bytes: &[u8]) -> Option<Box<[u8]>> {
        let size = size_of_copy(bytes.len());
        let class = CLASSES.iter().position(|class| *class == size);
        if self.copied_bytes + size > self.max_copied_bytes {
            // The device runs out of buffers, and senders see receiver-not-ready.
            return None;
        }
        self.copied_bytes += size;
        let mut copy = class
            .and_then(|class| self.free[class].pop())
            .unwrap_or_else(|| vec![0; size].into_boxed_slice());
        copy[..bytes.len()].copy_from_slice(bytes);
        Some(copy)
    }

    /// Links a packet to the chain of later packets.
    pub(crate) fn set_next(&mut self, id: DeferredPacketId, next: Option<DeferredPacketId>) {
        if let Some(deferred) = self.packets.get_mut(id) {
            deferred.next = next;
        }
    }

    /// The device buffers of the packets that wait.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = BufferId> {
        let packets = self.packets.iter();
        packets.filter_map(|(_, deferred)| deferred.packet.buffer())
    }

    /// Ends a packet's wait. Returns it, and the next one of its chain.
    pub(crate) fn take(
        &mut self,
        id: DeferredPacketId,
    ) -> Option<(ReceivedPacket, Option<DeferredPacketId>)> {
        let DeferredPacket { packet, next } = self.packets.remove(id)?;
        self.in_buffers -= usize::from(packet.buffer().is_some());
        Some((packet, next))
    }

    /// Releases a packet that does not wait. Returns its device buffer, if it is in one.
    #[inline(always)]
    pub(crate) fn release(&mut self, packet: ReceivedPacket) -> Option<BufferId> {
        match packet.into_storage() {
            Storage::Device(buffer) => Some(buffer),
            Storage::Copy(copy) => {
                self.release_copy(copy);
                None
            }
        }
    }

    #[inline(never)]
    fn release_copy(&mut self, copy: Box<[u8]>) {
        self.copied_bytes -= copy.len();
        if let Some(class) = CLASSES.iter().position(|size| copy.len() == *size)
            && self.free[class].len() < MAX_FREE
        {
            self.free[class].push(copy);
        }
    }

    /// Returns whether a packet can wait without a device buffer that the receive queue needs.
    pub(crate) fn has_memory_for(&self, packet: &ReceivedPacket) -> bool {
        self.in_buffers < self.max_in_buffers
            || self.copied_bytes + footprint(packet) <= self.max_copied_bytes
    }

    /// Packets that wait in device buffers.
    pub(crate) fn in_buffers(&self) -> usize {
        self.in_buffers
    }

    /// Packets that wait.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores a packet of 100 bytes in buffer `buffer`.
    fn defer(
        deferred: &mut DeferredPackets,
        buffer: u32,
        next: Option<DeferredPacketId>,
    ) -> Result<(DeferredPacketId, Option<BufferId>), ReceivedPacket> {
        let contents = [buffer as u8; 256];
        deferred.defer(
            ReceivedPacket::in_buffer(BufferId(buffer), 100),
            &contents,
            next,
        )
    }

    #[test]
    fn excess_packets_are_copied_while_memory_lasts() {
        let mut deferred = DeferredPackets::new(1, 128);
        let (first, freed) = defer(&mut deferred, 1, None).unwrap();
        assert_eq!(freed, None);
        let (second, freed) = defer(&mut deferred, 2, Some(first)).unwrap();
        assert_eq!(freed, Some(BufferId(2)));
        // The pool has no memory for another copy, so the packet stays in its buffer.
        let (third, freed) = defer(&mut deferred, 3, Some(second)).unwrap();
        assert_eq!((freed, deferred.in_buffers(), deferred.len()), (None, 2, 3));
        let probe = ReceivedPacket::in_buffer(BufferId(4), 100);
        assert!(!deferred.has_memory_for(&probe));

        let (packet, next) = deferred.take(third).unwrap();
        assert_eq!((packet.buffer(), next), (Some(BufferId(3)), Some(second)));
        assert_eq!(deferred.release(packet), Some(BufferId(3)));
        let (packet, next) = deferred.take(second).unwrap();
        assert_eq!((packet.copied_bytes(), next), (&[2; 100][..], Some(first)));
        assert_eq!(deferred.release(packet), None);
        assert!(deferred.take(second).is_none());
        assert!(deferred.has_memory_for(&probe));
        assert_eq!((deferred.in_buffers(), deferred.len()), (1, 1));
    }

    #[test]
    fn memory_is_counted_in_allocated_sizes() {
        for (length, size) in [(1, 128), (128, 128), (129, 512), (9216, 9216), (9217, 9217)] {
            let packet = ReceivedPacket::in_buffer(BufferId(0), length);
            assert_eq!(footprint(&packet), size, "{length}");
        }
    }
}
