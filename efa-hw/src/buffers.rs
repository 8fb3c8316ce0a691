//! Packet buffers: registered once, lent to the engine and to the device.

use crate::memory::UserMemory;
use efa_core::nic::{BufferId, NicError};

/// Who may touch a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    /// Nobody: it is in the pool.
    Pool,
    /// The protocol engine.
    Engine,
    /// The device: it is in a queue.
    Device,
}

/// The packet buffers of one queue pair, in one registered piece of memory.
#[derive(Debug)]
pub(crate) struct PacketBuffers {
    memory: UserMemory,
    stride: usize,
    owners: Vec<Owner>,
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
            owners: vec![Owner::Pool; count as usize],
            free: (0..count).rev().map(BufferId).collect(),
        })
    }

    /// All the memory, to be registered.
    pub(crate) fn memory(&self) -> &UserMemory {
        &self.memory
    }

    /// Bytes of one buffer.
    pub(crate) fn size(&self) -> usize {
        self.stride
    }

    pub(crate) fn address(&self, buffer: BufferId) -> u64 {
        self.memory.slice().address + buffer.0 as u64 * self.stride as u64
    }

    pub(crate) fn acquire(&mut self) -> Option<BufferId> {
        let buffer = self.free.pop()?;
        self.owners[buffer.0 as usize] = Owner::Engine;
        Some(buffer)
    }

    /// Puts a buffer of the engine back; others are left as they are.
    pub(crate) fn release(&mut self, buffer: BufferId) {
        if self.owned_by_engine(buffer) {
            self.owners[buffer.0 as usize] = Owner::Pool;
            self.free.push(buffer);
        }
    }

    pub(crate) fn owned_by_engine(&self, buffer: BufferId) -> bool {
        self.owners.get(buffer.0 as usize) == Some(&Owner::Engine)
    }

    /// Hands a buffer of the engine to the device.
    pub(crate) fn lend(&mut self, buffer: BufferId) -> Result<(), NicError> {
        if !self.owned_by_engine(buffer) {
            return Err(NicError::Invalid {
                what: "packet buffer",
                value: u64::from(buffer.0),
            });
        }
        self.owners[buffer.0 as usize] = Owner::Device;
        Ok(())
    }

    /// Takes a buffer back from the device.
    pub(crate) fn take_back(&mut self, buffer: BufferId) {
        if let Some(owner) = self.owners.get_mut(buffer.0 as usize) {
            *owner = Owner::Engine;
        }
    }

    /// A buffer of the engine; nothing of any other.
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

    /// A buffer of the engine; nothing of any other.
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

        buffers.lend(first).unwrap();
        assert!(buffers.bytes(first).is_empty());
        buffers.lend(first).unwrap_err();
        buffers.release(first);
        assert_eq!(buffers.acquire(), None, "a lent buffer cannot be released");
        buffers.take_back(first);
        buffers.release(first);
        buffers.release(first);
        assert_eq!(buffers.acquire(), Some(first));
        assert_eq!(buffers.acquire(), None, "a second release does nothing");
        assert!(buffers.bytes(BufferId(77)).is_empty());
    }
}
