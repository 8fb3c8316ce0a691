//! Packet buffers: registered once, and owned in turn by the pool, the engine and the device.

use std::ptr::NonNull;

use crate::memory::UserMemory;
use efa_core::nic::{BufferId, LocalKey, NicError};

/// Owner of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BufferOwner {
    /// The pool.
    Pool,
    /// The protocol engine.
    Engine,
    /// The device: it is in a queue of the queue pair with this index in the domain.
    Device(u16),
}

/// State of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PacketBuffer {
    owner: BufferOwner,
    /// The key of the registration that covers the buffer.
    key: LocalKey,
    /// The engine's context for the buffer, returned with it.
    context: u64,
    /// The buffer: [`PacketBuffers::size`] initialised bytes in one of the memory blocks.
    start: NonNull<u8>,
}

/// The packet buffers of a domain, in registered memory blocks.
#[derive(Debug)]
pub(crate) struct PacketBuffers {
    /// The memory of the slots. It only grows.
    memory: Vec<UserMemory>,
    stride: usize,
    slots: Vec<PacketBuffer>,
    free: Vec<BufferId>,
}

impl PacketBuffers {
    /// Buffers start on cache lines.
    const ALIGNMENT: usize = 64;

    /// An empty pool for packets of this size.
    pub(crate) fn new(packet_size: usize) -> PacketBuffers {
        PacketBuffers {
            memory: Vec::new(),
            stride: packet_size.next_multiple_of(Self::ALIGNMENT),
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Memory for `count` more buffers, which has to be registered and [added](Self::add).
    ///
    /// # Errors
    /// [`NicError::Exhausted`] if there is no memory, or there would be more buffers than ids.
    pub(crate) fn allocate(&self, count: usize) -> Result<UserMemory, NicError> {
        const TOO_MANY: NicError = NicError::Exhausted("packet buffer");
        let total = self.slots.len().checked_add(count).ok_or(TOO_MANY)?;
        u32::try_from(total).map_err(|_| TOO_MANY)?;
        UserMemory::new(self.stride.checked_mul(count).ok_or(TOO_MANY)?)
    }

    /// Adds memory that is registered with this key to the pool, divided into buffers. Buffers that
    /// were added earlier are acquired first.
    pub(crate) fn add(&mut self, memory: UserMemory, key: LocalKey) {
        let start = memory.start();
        let first = self.slots.len();
        for number in 0..memory.slice().length / self.stride {
            self.slots.push(PacketBuffer {
                owner: BufferOwner::Pool,
                key,
                context: 0,
                // SAFETY: the memory is longer than that.
                start: unsafe { start.add(number * self.stride) },
            });
        }
        let added = (first as u32..self.slots.len() as u32).rev();
        self.free.splice(0..0, added.map(BufferId));
        self.memory.push(memory);
    }

    /// The number of buffers of all owners.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
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

    #[inline(always)]
    pub(crate) fn acquire(&mut self) -> Option<BufferId> {
        let buffer = self.free.pop()?;
        self.slots[buffer.0 as usize].owner = BufferOwner::Engine;
        Some(buffer)
    }

    #[inline]
    fn of_engine(&mut self, buffer: BufferId) -> Option<&mut PacketBuffer> {
        self.slots
            .get_mut(buffer.0 as usize)
            .filter(|slot| slot.owner == BufferOwner::Engine)
    }

    /// Puts a buffer of the engine back into the pool; does nothing with another owner's buffer.
    #[inline]
    pub(crate) fn release(&mut self, buffer: BufferId) {
        if let Some(slot) = self.of_engine(buffer) {
            slot.owner = BufferOwner::Pool;
            self.free.push(buffer);
        }
    }

    /// Passes a buffer from the engine to a queue pair of the device; returns its address and key.
    /// [`Self::take_back`] returns `context`.
    #[inline]
    pub(crate) fn lend(
        &mut self,
        buffer: BufferId,
        queue_pair: u16,
        context: u64,
    ) -> Result<(u64, LocalKey), NicError> {
        let Some(slot) = self.of_engine(buffer) else {
            return Err(NicError::invalid("packet buffer", buffer.0));
        };
        slot.owner = BufferOwner::Device(queue_pair);
        slot.context = context;
        Ok((slot.start.as_ptr() as u64, slot.key))
    }

    /// Marks a buffer as returned by the device, and returns its context. `None` if the device does
    /// not have it.
    #[inline]
    pub(crate) fn take_back(&mut self, buffer: BufferId) -> Option<u64> {
        let slot = self.slots.get_mut(buffer.0 as usize)?;
        if !matches!(slot.owner, BufferOwner::Device(_)) {
            return None;
        }
        slot.owner = BufferOwner::Engine;
        Some(slot.context)
    }

    /// Returns all buffers of a queue pair to the pool.
    pub(crate) fn reclaim(&mut self, queue_pair: u16) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.owner == BufferOwner::Device(queue_pair) {
                slot.owner = BufferOwner::Pool;
                self.free.push(BufferId(index as u32));
            }
        }
    }

    /// The bytes of a buffer of the engine; an empty slice for another owner's buffer.
    #[inline]
    pub(crate) fn bytes(&self, buffer: BufferId) -> &[u8] {
        match self.slots.get(buffer.0 as usize) {
            // SAFETY: `add` pointed the slot to that many bytes of the memory, which is valid as
            // long as `self` and which no other slot shares. The engine owns the buffer, so the
            // device does not write to it, and `&self` excludes `bytes_mut`.
            Some(slot) if slot.owner == BufferOwner::Engine => unsafe {
                std::slice::from_raw_parts(slot.start.as_ptr(), self.stride)
            },
            _ => &[],
        }
    }

    /// As [`Self::bytes`], for writing.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        let stride = self.stride;
        match self.of_engine(buffer) {
            // SAFETY: as in `bytes`; `&mut self` makes the slice the only one.
            Some(slot) => unsafe { std::slice::from_raw_parts_mut(slot.start.as_ptr(), stride) },
            None => &mut [],
        }
    }
}

// SAFETY: the slots point to memory that the buffers own.
unsafe impl Send for PacketBuffers {}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: LocalKey = LocalKey(9);

    /// Buffers for packets of 100 bytes.
    fn with(count: usize) -> PacketBuffers {
        let mut buffers = PacketBuffers::new(100);
        let memory = buffers.allocate(count).unwrap();
        buffers.add(memory, KEY);
        buffers
    }

    #[test]
    fn a_buffer_has_one_owner_at_a_time() {
        let mut buffers = with(2);
        assert_eq!(buffers.size(), 128);
        let first = buffers.acquire().unwrap();
        let second = buffers.acquire().unwrap();
        assert_eq!(buffers.acquire(), None);
        buffers.bytes_mut(first).fill(1);
        assert!(buffers.bytes(second).iter().all(|byte| *byte == 0));

        let bytes = buffers.bytes(first).as_ptr() as u64;
        assert_eq!(buffers.lend(first, 0, 7), Ok((bytes, KEY)));
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
    fn closed_queue_pairs_free_their_buffers() {
        let mut buffers = with(3);
        let ids: Vec<BufferId> = std::iter::from_fn(|| buffers.acquire()).collect();
        buffers.lend(ids[0], 4, 0).unwrap();
        buffers.lend(ids[1], 5, 0).unwrap();
        buffers.reclaim(4);
        assert_eq!(buffers.acquire(), Some(ids[0]), "the device had it for 4");
        assert_eq!(buffers.acquire(), None, "5 and the engine keep theirs");
        assert_eq!(buffers.take_back(ids[1]), Some(0));
    }

    #[test]
    fn added_buffers_are_separate_and_used_last() {
        let mut buffers = with(2);
        let memory = buffers.allocate(2).unwrap();
        let range = memory.slice();
        buffers.add(memory, LocalKey(10));
        assert_eq!((buffers.len(), buffers.free()), (4, 4));
        let ids: Vec<BufferId> = std::iter::from_fn(|| buffers.acquire()).collect();
        assert_eq!(ids, [0, 1, 2, 3].map(BufferId));
        for id in &ids {
            buffers.bytes_mut(*id).fill(id.0 as u8);
        }
        let lent: Vec<(u64, LocalKey)> = ids
            .iter()
            .map(|id| {
                assert_eq!(buffers.bytes(*id), [id.0 as u8; 128]);
                buffers.lend(*id, 0, 0).unwrap()
            })
            .collect();
        assert_eq!(lent[1].0 - lent[0].0, 128);
        assert_eq!(lent[1].1, KEY);
        assert_eq!(
            lent[2..],
            [0, 128].map(|at| (range.address + at, LocalKey(10)))
        );
        assert!(buffers.allocate(usize::MAX).is_err());
    }
}
