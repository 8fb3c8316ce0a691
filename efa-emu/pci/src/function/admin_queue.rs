//! The admin queue and its completion queue: position and phase of the next entry.

use super::registers::QueueShape;
use crate::admin::ENTRY;
use crate::memory::{GuestMemory, NotMemory};

/// A queue of entries in the guest's memory, and the device's position.
#[derive(Clone, Copy)]
pub(super) struct AdminRing {
    base: u64,
    depth: u16,
    next: u16,
}

impl AdminRing {
    /// A queue at this address, if that is memory of the guest.
    pub(super) fn new(
        memory: &GuestMemory,
        base: u64,
        shape: QueueShape,
    ) -> Result<AdminRing, NotMemory> {
        memory.lend(base, shape.bytes())?;
        Ok(AdminRing {
            base,
            depth: shape.depth,
            next: 0,
        })
    }

    /// The number of entries before this counter; `None` if it exceeds the queue's depth.
    pub(super) fn waiting(&self, producer: u16) -> Option<u16> {
        let waiting = producer.wrapping_sub(self.next);
        (waiting <= self.depth).then_some(waiting)
    }

    /// The phase of the next entry: 1 in the first lap.
    pub(super) fn phase(&self) -> bool {
        self.next & self.depth == 0
    }

    fn address(&self) -> u64 {
        self.base + u64::from(self.next & (self.depth - 1)) * ENTRY as u64
    }

    /// Reads the next entry.
    pub(super) fn take(&mut self, memory: &GuestMemory) -> Result<[u8; ENTRY], NotMemory> {
        let mut entry = [0; ENTRY];
        memory.read(self.address(), &mut entry)?;
        self.next = self.next.wrapping_add(1);
        Ok(entry)
    }

    /// Writes the next entry. Its first word publishes it.
    pub(super) fn put(
        &mut self,
        memory: &GuestMemory,
        entry: &[u8; ENTRY],
    ) -> Result<(), NotMemory> {
        memory.publish(self.address(), entry, 0)?;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }
}
