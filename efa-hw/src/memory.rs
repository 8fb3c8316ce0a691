//! User memory: the memory that may be accessed for the protocol engine.
//!
//! The engine identifies user memory by address only. Before a byte is copied, the address is
//! looked up here, so that an unknown address is an error and not a crash.

use efa_core::nic::{NicError, UserSlice};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// Memory that was allocated for transfers: zeroed, page-aligned, and at a fixed address.
///
/// A [`HwDomain`](crate::HwDomain) owns the memory that it allocates, so that none is dropped too
/// early.
#[derive(Debug)]
pub struct UserMemory {
    start: NonNull<u8>,
    length: usize,
    allocated: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory has one owner, like a `Box<[u8]>`.
unsafe impl Send for UserMemory {}

impl UserMemory {
    const ALIGNMENT: usize = 4096;

    /// Allocates `length` bytes, at least one.
    pub(crate) fn new(length: usize) -> Result<UserMemory, NicError> {
        let invalid = NicError::invalid("memory length", length as u64);
        let length = length.max(1);
        let room = length.checked_add(Self::ALIGNMENT).ok_or(invalid)?;
        // The layout requests no alignment: the system's allocator writes zeroes to aligned memory,
        // while other memory is zero when the kernel maps it.
        let layout = Layout::from_size_align(room, 1).map_err(|_| invalid)?;
        // SAFETY: the layout's size is not zero.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) })
            .ok_or(NicError::Exhausted("memory region"))?;
        // SAFETY: the offset is at most the alignment, for which there is room.
        let start = unsafe { allocated.add(allocated.align_offset(Self::ALIGNMENT)) };
        Ok(UserMemory {
            start,
            length,
            allocated,
            layout,
        })
    }

    /// Its address and length.
    pub fn slice(&self) -> UserSlice {
        UserSlice::new(self.start.as_ptr() as u64, self.length)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for UserMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) };
    }
}

/// The ranges of this process's memory that may be read and written.
#[derive(Debug, Default)]
pub(crate) struct AddressSpace {
    /// Start of each range and its length; ranges do not overlap.
    ranges: BTreeMap<u64, usize>,
    /// The range that was found last, because most look-ups find the same again; empty if this
    /// range was removed.
    last: Cell<(u64, usize)>,
    /// Memory that the domain owns.
    owned: Vec<UserMemory>,
}

impl AddressSpace {
    /// Allocates memory that is freed when the domain is dropped.
    pub(crate) fn allocate(&mut self, length: usize) -> Result<UserSlice, NicError> {
        let memory = UserMemory::new(length)?;
        let slice = UserSlice {
            length,
            ..memory.slice()
        };
        self.ranges.insert(slice.address, memory.slice().length);
        self.owned.push(memory);
        Ok(slice)
    }

    /// Adds memory that has another owner.
    ///
    /// # Safety
    /// The memory is readable and writable, and stays so until `revoke` or the end of the domain.
    pub(crate) unsafe fn allow(&mut self, memory: UserSlice) -> Result<(), NicError> {
        let end = memory.address.checked_add(memory.length as u64);
        let overlaps = self
            .ranges
            .range(..end.unwrap_or(u64::MAX))
            .next_back()
            .is_some_and(|(&start, &length)| start + length as u64 > memory.address);
        if end.is_none() || memory.length == 0 || overlaps {
            return Err(NicError::MemoryFault {
                address: memory.address,
                length: memory.length,
            });
        }
        self.ranges.insert(memory.address, memory.length);
        Ok(())
    }

    /// The memory that `allow` added at `address`.
    pub(crate) fn foreign_at(&self, address: u64) -> Result<UserSlice, NicError> {
        let owned = self
            .owned
            .iter()
            .any(|memory| memory.slice().address == address);
        match self.ranges.get(&address) {
            Some(&length) if !owned => Ok(UserSlice { address, length }),
            _ => Err(NicError::invalid("address of memory to revoke", address)),
        }
    }

    /// Removes memory that `allow` added.
    pub(crate) fn revoke(&mut self, address: u64) {
        if self.foreign_at(address).is_ok() {
            self.ranges.remove(&address);
            self.last.take();
        }
    }

    /// Returns a pointer to the slice if all of it is known. Empty slices are valid at any address.
    #[inline(always)]
    pub(crate) fn resolve(&self, slice: UserSlice) -> Result<*mut u8, NicError> {
        if slice.length == 0 {
            return Ok(NonNull::dangling().as_ptr());
        }
        if !contains(self.last.get(), slice) {
            self.last.set(self.find(slice)?);
        }
        Ok(slice.address as usize as *mut u8)
    }

    /// Returns the range that contains all of a slice.
    #[cold]
    fn find(&self, slice: UserSlice) -> Result<(u64, usize), NicError> {
        let before = self.ranges.range(..=slice.address).next_back();
        before
            .map(|(&start, &length)| (start, length))
            .filter(|range| contains(*range, slice))
            .ok_or(NicError::MemoryFault {
                address: slice.address,
                length: slice.length,
            })
    }
}

/// Whether all of a slice is in the range of `length` bytes at `start`.
#[inline]
fn contains((start, length): (u64, usize), slice: UserSlice) -> bool {
    let offset = slice.address.wrapping_sub(start);
    // An address below the start yields an offset beyond any length.
    offset <= length as u64 && slice.length as u64 <= length as u64 - offset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_slices_of_known_memory_resolve() {
        let mut space = AddressSpace::default();
        let memory = space.allocate(100).unwrap();
        let at = |offset: u64, length| UserSlice::new(memory.address + offset, length);
        assert!(space.resolve(at(0, 100)).is_ok());
        assert!(space.resolve(at(99, 1)).is_ok());
        assert!(space.resolve(at(99, 2)).is_err());
        assert!(space.resolve(at(0, usize::MAX)).is_err());
        assert!(space.resolve(UserSlice::new(8, 1)).is_err());
        assert!(space.resolve(UserSlice::new(8, 0)).is_ok());
    }

    #[test]
    fn foreign_memory_is_known_from_allow_to_revoke() {
        let mut space = AddressSpace::default();
        let mut bytes = [0u8; 64];
        let slice = UserSlice::new(bytes.as_mut_ptr() as u64, bytes.len());
        // SAFETY: `bytes` outlives `space`.
        unsafe { space.allow(slice) }.unwrap();
        // SAFETY: refused, because it overlaps.
        unsafe { space.allow(slice) }.unwrap_err();
        assert!(space.resolve(slice).is_ok());
        let before = UserSlice {
            address: slice.address - 1,
            ..slice
        };
        assert!(space.resolve(before).is_err());
        space.revoke(slice.address);
        assert!(space.resolve(slice).is_err());
    }
}
