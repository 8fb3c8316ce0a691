//! The memory of a simulated host.
//!
//! A host has its own address space of separately allocated blocks. Every access, by the program or
//! by the device, names an address and a length, and must stay inside one block. Anything else is a
//! [`MemoryFault`], the simulation's equivalent of a segmentation fault.

use std::collections::BTreeMap;

/// An access outside of the allocated memory of a simulated host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("memory {address:#x} + {length} is not allocated on this host")]
pub struct MemoryFault {
    /// First byte of the access.
    pub address: u64,
    /// Length of the access in bytes.
    pub length: u64,
}

/// The host has less free memory than requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "cannot allocate {wanted} bytes: {free} of the host's {limit} are free (HostConfig::memory)"
)]
pub struct OutOfMemory {
    /// The number of requested bytes.
    pub wanted: u64,
    /// Bytes left.
    pub free: u64,
    /// All memory of the host in bytes.
    pub limit: u64,
}

/// Unmapped bytes between two blocks, so that a small overrun cannot reach a neighbour.
const GUARD: u64 = 4096;

/// Alignment of every block.
const ALIGNMENT: u64 = 4096;

/// The address space of one simulated host.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    blocks: BTreeMap<u64, Block>,
    next: u64,
    used: u64,
    limit: u64,
    /// Unused memory of packet buffers; the last used one is at the end.
    spare: Vec<Box<[u8]>>,
}

#[derive(Debug)]
enum Block {
    /// One allocation of a program.
    Plain(Box<[u8]>),
    /// Packet buffers side by side. A slot is only mapped while the device has its buffer.
    Slots { size: usize, slots: Vec<BufferSlot> },
}

/// The slot of a packet buffer.
#[derive(Clone, Debug)]
enum BufferSlot {
    /// Not mapped: the program owns the buffer, or it is in the pool.
    Unmapped,
    /// Mapped for the device to write, and not written yet. It occupies no memory.
    Blank,
    /// Mapped for the device, with these bytes.
    Filled(Box<[u8]>),
}

impl AddressSpace {
    /// An empty address space that starts at `base` and has at most `limit` bytes.
    pub(crate) fn new(base: u64, limit: u64) -> Self {
        AddressSpace {
            blocks: BTreeMap::new(),
            next: base + GUARD,
            used: 0,
            limit,
            spare: Vec::new(),
        }
    }

    /// An empty address space that shares no address with this one.
    pub(crate) fn successor(&self) -> Self {
        AddressSpace {
            blocks: BTreeMap::new(),
            next: self.next,
            used: 0,
            limit: self.limit,
            spare: Vec::new(),
        }
    }

    /// Allocates `length` zero bytes and returns their address.
    pub(crate) fn allocate(&mut self, length: usize) -> Result<u64, OutOfMemory> {
        let address = self.claim(length as u64)?;
        self.blocks
            .insert(address, Block::Plain(vec![0; length].into()));
        Ok(address)
    }

    /// Reserves addresses for `count` packet buffers, `size` bytes apart, none of them mapped yet.
    pub(crate) fn reserve_slots(&mut self, count: usize, size: usize) -> Result<u64, OutOfMemory> {
        let address = self.claim((count as u64).saturating_mul(size as u64))?;
        let slots = vec![BufferSlot::Unmapped; count];
        self.blocks.insert(address, Block::Slots { size, slots });
        Ok(address)
    }

    fn claim(&mut self, length: u64) -> Result<u64, OutOfMemory> {
        let free = self.limit - self.used;
        if length > free {
            return Err(OutOfMemory {
                wanted: length,
                free,
                limit: self.limit,
            });
        }
        let address = self.next;
        // The limit keeps this far below 2^64.
        self.next = (address + length + GUARD).next_multiple_of(ALIGNMENT);
        self.used += length;
        Ok(address)
    }

    /// Frees a block; `address` must be its first byte.
    pub(crate) fn free(&mut self, address: u64) -> Result<(), MemoryFault> {
        let block = self
            .blocks
            .remove(&address)
            .ok_or(MemoryFault { address, length: 0 })?;
        self.used -= block.length();
        Ok(())
    }

    /// Unused memory for a packet buffer of `size` bytes, if there is any. It still contains the
    /// bytes of an earlier use.
    pub(crate) fn take_spare(&mut self, size: usize) -> Option<Box<[u8]>> {
        take_spare(&mut self.spare, size)
    }

    /// Keeps a packet buffer's memory, if it has any, for reuse.
    pub(crate) fn put_spare(&mut self, bytes: Option<Box<[u8]>>) {
        self.spare.extend(bytes);
    }

    /// Maps slot `index` of the slots at `base` with a buffer for the device to read.
    pub(crate) fn lend(&mut self, base: u64, index: usize, buffer: Box<[u8]>) {
        if let Some(slot) = self.slot(base, index) {
            *slot = BufferSlot::Filled(buffer);
        }
    }

    /// Maps slot `index` of the slots at `base` for the device to write. It is allocated when it is
    /// written, and cannot be read before.
    pub(crate) fn lend_blank(&mut self, base: u64, index: usize) {
        if let Some(slot) = self.slot(base, index) {
            *slot = BufferSlot::Blank;
        }
    }

    /// Unmaps slot `index` of the slots at `base`, and returns its buffer if it has memory.
    pub(crate) fn take_back(&mut self, base: u64, index: usize) -> Option<Box<[u8]>> {
        let Block::Slots { size, slots } = self.blocks.get_mut(&base)? else {
            return None;
        };
        match std::mem::replace(slots.get_mut(index)?, BufferSlot::Unmapped) {
            BufferSlot::Unmapped => None,
            BufferSlot::Blank => take_spare(&mut self.spare, *size),
            BufferSlot::Filled(buffer) => Some(buffer),
        }
    }

    fn slot(&mut self, base: u64, index: usize) -> Option<&mut BufferSlot> {
        match self.blocks.get_mut(&base)? {
            Block::Slots { slots, .. } => slots.get_mut(index),
            Block::Plain(_) => None,
        }
    }

    /// Whether every byte of the range belongs to one block.
    pub(crate) fn check(&self, address: u64, length: u64) -> Result<(), MemoryFault> {
        let fault = MemoryFault { address, length };
        let (start, block) = self.blocks.range(..=address).next_back().ok_or(fault)?;
        let offset = address - start;
        match block.length().checked_sub(offset) {
            Some(rest) if length <= rest => Ok(()),
            _ => Err(fault),
        }
    }

    /// The bytes of a range. A range of length 0 is valid at any address.
    pub(crate) fn bytes(&self, address: u64, length: usize) -> Result<&[u8], MemoryFault> {
        if length == 0 {
            return Ok(&[]);
        }
        let fault = MemoryFault {
            address,
            length: length as u64,
        };
        let (start, block) = self.blocks.range(..=address).next_back().ok_or(fault)?;
        let offset = usize::try_from(address - start).map_err(|_| fault)?;
        let (bytes, offset) = match block {
            Block::Plain(bytes) => (bytes, offset),
            Block::Slots { size, slots } => {
                let Some(BufferSlot::Filled(buffer)) = slots.get(offset / size) else {
                    return Err(fault);
                };
                (buffer, offset % size)
            }
        };
        offset
            .checked_add(length)
            .and_then(|end| bytes.get(offset..end))
            .ok_or(fault)
    }

    /// The bytes of a range, for writing. A range of length 0 is valid at any address.
    pub(crate) fn bytes_mut(
        &mut self,
        address: u64,
        length: usize,
    ) -> Result<&mut [u8], MemoryFault> {
        if length == 0 {
            return Ok(&mut []);
        }
        let fault = MemoryFault {
            address,
            length: length as u64,
        };
        let (start, block) = self.blocks.range_mut(..=address).next_back().ok_or(fault)?;
        let offset = usize::try_from(address - start).map_err(|_| fault)?;
        let (bytes, offset) = match block {
            Block::Plain(bytes) => (bytes, offset),
            Block::Slots { size, slots } => {
                let slot = slots.get_mut(offset / *size).ok_or(fault)?;
                if matches!(slot, BufferSlot::Blank) {
                    let buffer = take_spare(&mut self.spare, *size);
                    *slot = BufferSlot::Filled(buffer.unwrap_or_else(|| blank(*size)));
                }
                let BufferSlot::Filled(buffer) = slot else {
                    return Err(fault);
                };
                (buffer, offset % *size)
            }
        };
        offset
            .checked_add(length)
            .and_then(|end| bytes.get_mut(offset..end))
            .ok_or(fault)
    }
}

impl Block {
    fn length(&self) -> u64 {
        match self {
            Block::Plain(bytes) => bytes.len() as u64,
            Block::Slots { size, slots } => (*size as u64) * (slots.len() as u64),
        }
    }
}

fn take_spare(spare: &mut Vec<Box<[u8]>>, size: usize) -> Option<Box<[u8]>> {
    spare.pop().filter(|bytes| bytes.len() == size)
}

/// The memory of a packet buffer at its first use.
pub(crate) fn blank(size: usize) -> Box<[u8]> {
    vec![0; size].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x10_0000_0000;

    #[test]
    fn an_access_must_stay_inside_one_block() {
        let mut memory = AddressSpace::new(BASE, 1 << 20);
        let first = memory.allocate(100).unwrap();
        let second = memory.allocate(100).unwrap();
        assert!(memory.bytes(first, 100).is_ok());
        assert!(memory.bytes(first + 99, 1).is_ok());
        assert!(memory.bytes(first, 101).is_err());
        assert!(memory.bytes(first + 100, 1).is_err());
        assert!(memory.bytes(first - 1, 1).is_err());
        assert!(memory.bytes(first, (second - first) as usize + 1).is_err());
        assert!(memory.bytes_mut(second + 50, 51).is_err());
        assert!(memory.bytes(u64::MAX, 2).is_err());
        assert!(memory.bytes(0, usize::MAX).is_err());
        assert!(memory.check(first, 100).is_ok());
        assert!(memory.check(first + 1, 100).is_err());
        assert!(memory.check(u64::MAX, u64::MAX).is_err());
    }

    #[test]
    fn no_bytes_can_be_reached_anywhere() {
        let mut memory = AddressSpace::new(BASE, 0);
        assert_eq!(memory.bytes(0, 0), Ok(&[][..]));
        assert_eq!(memory.bytes_mut(u64::MAX, 0), Ok(&mut [][..]));
    }

    #[test]
    fn freed_memory_is_invalid_and_can_be_reallocated() {
        let mut memory = AddressSpace::new(BASE, 100);
        let address = memory.allocate(60).unwrap();
        assert_eq!(memory.allocate(60).unwrap_err().free, 40);
        memory.bytes_mut(address, 60).unwrap().fill(7);
        assert!(memory.free(address + 1).is_err());
        memory.free(address).unwrap();
        assert!(memory.bytes(address, 1).is_err());
        assert!(memory.free(address).is_err());
        let again = memory.allocate(100).unwrap();
        assert_ne!(again, address, "a stale address must not become valid");
        assert_eq!(memory.bytes(again, 100).unwrap(), [0; 100]);
    }

    #[test]
    fn slots_are_mapped_only_while_lent() {
        let mut memory = AddressSpace::new(BASE, 1 << 20);
        let base = memory.reserve_slots(4, 64).unwrap();
        assert!(memory.bytes(base + 64, 1).is_err());
        memory.lend(base, 1, vec![5; 64].into());
        assert_eq!(memory.bytes(base + 64, 64).unwrap(), [5; 64]);
        assert!(memory.bytes(base + 63, 2).is_err());
        assert!(memory.bytes(base + 64, 65).is_err());
        assert_eq!(memory.take_back(base, 1).unwrap().len(), 64);
        assert!(memory.bytes(base + 64, 1).is_err());
        assert!(memory.take_back(base, 9).is_none());
    }

    #[test]
    fn blank_slots_take_memory_when_written() {
        let mut memory = AddressSpace::new(BASE, 1 << 20);
        let base = memory.reserve_slots(3, 64).unwrap();
        memory.put_spare(Some(vec![9; 64].into()));
        memory.lend_blank(base, 0);
        memory.lend_blank(base, 1);
        assert_eq!(memory.spare.len(), 1, "nothing is written yet");
        assert!(memory.bytes(base, 1).is_err());
        memory.bytes_mut(base + 64, 2).unwrap().fill(1);
        assert_eq!(memory.spare.len(), 0);
        let written = memory.take_back(base, 1).unwrap();
        assert_eq!(written[..3], [1, 1, 9]);
        memory.put_spare(Some(written));
        // A buffer that is returned unwritten has bytes too.
        assert_eq!(memory.take_back(base, 0).unwrap().len(), 64);
        assert!(memory.take_back(base, 0).is_none());
        assert!(memory.bytes_mut(base, 1).is_err());
    }
}
