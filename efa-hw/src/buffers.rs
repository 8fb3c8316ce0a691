//! Packet buffers: registered once, lent to the engine and to the device.

use crate::memory::UserMemory;
use efa_core::nic::{BufferId, NicError};

/// Who owns a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    /// Nobody: it is in the pool.
    Pool,
    /// The protocol engine.
    Engine,
    /// The device: it is in a queue of the queue pair that has this place in the domain.
    Device(u16),
}

/// What is known of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slot {
    owner: Owner,
    /// The context that the engine gave with the buffer, for when the device returns it.
    context: u64,
}

/// The packet buffers of a domain, in one registered piece of memory.
#[derive(Debug)]
pub(crate) struct PacketBuffers {
    memory: UserMemory,
    stride: usize,
    slots: Vec<Slot>,
    free: Vec<BufferId>,
}

impl PacketBuffers {
    /// Buffers start on cache lines.
    const ALIGNMENT: usize = 64;

    pub(crate) fn new(count: u32, packet_size: usize) -> Result<PacketBuffers, NicError> {
        let stride = packet_size.next_multiple_of(Self::ALIGNMENT);
        Ok(PacketBuffers {
            memory: UserMemory::new(stride * count as usize)?,
            stride,
            slots: vec![
                Slot {
                    owner: Owner::Pool,
                    context: 0,
                };
                count as usize
            ],
            free: (0..count).rev().map(BufferId).collect(),
        })
    }

    /// All the memory, to be registered.
    pub(crate) fn memory(&self) -> &UserMemory {
        &self.memory
    }

    /// Bytes of one buffer.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.stride
    }

    /// The number of buffers in the pool.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    #[inline]
    pub(crate) fn address(&self, buffer: BufferId) -> u64 {
        self.memory.slice().address + buffer.0 as u64 * self.stride as u64
    }

    #[inline]
    pub(crate) fn acquire(&mut self) -> Option<BufferId> {
        let buffer = self.free.pop()?;
        self.slots[buffer.0 as usize].owner = Owner::Engine;
        Some(buffer)
    }

    #[inline]
    fn of_engine(&mut self, buffer: BufferId) -> Option<&mut Slot> {
        self.slots
            .get_mut(buffer.0 as usize)
            .filter(|slot| slot.owner == Owner::Engine)
    }

    /// Puts a buffer of the engine back into the pool; does nothing with another owner's buffer.
    #[inline]
    pub(crate) fn release(&mut self, buffer: BufferId) {
        if let Some(slot) = self.of_engine(buffer) {
            slot.owner = Owner::Pool;
            self.free.push(buffer);
        }
    }

    #[inline]
    pub(crate) fn owned_by_engine(&self, buffer: BufferId) -> bool {
        let slot = self.slots.get(buffer.0 as usize);
        slot.is_some_and(|slot| slot.owner == Owner::Engine)
    }

    /// Hands a buffer of the engine to a queue pair of the device. [`Self::take_back`] returns `context`.
    #[inline]
    pub(crate) fn lend(
        &mut self,
        buffer: BufferId,
        queue_pair: u16,
        context: u64,
    ) -> Result<(), NicError> {
        let Some(slot) = self.of_engine(buffer) else {
            return Err(NicError::Invalid {
                what: "packet buffer",
                value: u64::from(buffer.0),
            });
        };
        *slot = Slot {
            owner: Owner::Device(queue_pair),
            context,
        };
        Ok(())
    }

    /// Takes a buffer back from the device, with its context. `None` if the device does not have it.
    #[inline]
    pub(crate) fn take_back(&mut self, buffer: BufferId) -> Option<u64> {
        let slot = self.slots.get_mut(buffer.0 as usize)?;
        if !matches!(slot.owner, Owner::Device(_)) {
            return None;
        }
        slot.owner = Owner::Engine;
        Some(slot.context)
    }

    /// Returns all buffers of a queue pair to the pool.
    pub(crate) fn reclaim(&mut self, queue_pair: u16) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.owner == Owner::Device(queue_pair) {
                slot.owner = Owner::Pool;
                self.free.push(BufferId(index as u32));
            }
        }
    }

    /// The bytes of a buffer of the engine; an empty slice for another owner's buffer.
    #[inline]
    pub(crate) fn bytes(&self, buffer: BufferId) -> &[u8] {
        if !self.owned_by_engine(buffer) {
            return &[];
        }
        let offset = buffer.0 as usize * self.stride;
        // SAFETY: buffer `n` is the `stride` bytes at `n * stride` of the memory, initialised when
        // it was allocated. The engine owns it, so the device does not write it, and `&self` keeps
        // `bytes_mut` away.
        unsafe { std::slice::from_raw_parts(self.memory.start().add(offset), self.stride) }
    }

    /// As [`Self::bytes`], for writing.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        if !self.owned_by_engine(buffer) {
            return &mut [];
        }
        let offset = buffer.0 as usize * self.stride;
        // SAFETY: as in `bytes`; `&mut self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().add(offset), self.stride) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_one_owner_at_a_time() {
        let mut buffers = PacketBuffers::new(2, 100).unwrap();
        assert_eq!(buffers.size(), 128);
        let first = buffers.acquire().unwrap();
        let second = buffers.acquire().unwrap();
        assert_eq!(buffers.acquire(), None);
        assert_eq!(buffers.address(second) - buffers.address(first), 128);
        buffers.bytes_mut(first).fill(1);
        assert!(buffers.bytes(second).iter().all(|byte| *byte == 0));

        buffers.lend(first, 0, 7).unwrap();
        assert!(buffers.bytes(first).is_empty());
        buffers.lend(first, 0, 8).unwrap_err();
        buffers.release(first);
        assert_eq!(buffers.acquire(), None, "a lent buffer cannot be released");
        assert_eq!(buffers.take_back(first), Some(7));
        assert_eq!(buffers.take_back(first), None, "it comes back once");
        buffers.release(first);
        buffers.release(first);
        assert_eq!(buffers.acquire(), Some(first));
        assert_eq!(buffers.acquire(), None, "a second release does nothing");
        assert!(buffers.bytes(BufferId(77)).is_empty());
    }

    #[test]
    fn the_buffers_of_a_closed_queue_pair_are_free_again() {
        let mut buffers = PacketBuffers::new(3, 100).unwrap();
        let ids: Vec<BufferId> = std::iter::from_fn(|| buffers.acquire()).collect();
        buffers.lend(ids[0], 4, 0).unwrap();
        buffers.lend(ids[1], 5, 0).unwrap();
        buffers.reclaim(4);
        assert_eq!(buffers.acquire(), Some(ids[0]), "the device had it for 4");
        assert_eq!(buffers.acquire(), None, "5 and the engine keep theirs");
        assert_eq!(buffers.take_back(ids[1]), Some(0));
    }
}
