//! The bytes of a ring and the words that are written to announce new entries.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapMut, MmapRaw};
use zerocopy::FromZeros;

use crate::device::Error;

/// What the words are allocated in.
#[derive(FromZeros)]
#[repr(C, align(64))]
struct CacheLine([AtomicU64; WORDS_PER_LINE]);

/// Words of 8 bytes in a cache line.
pub(super) const WORDS_PER_LINE: usize = 8;

/// Bytes from which on a ring gets pages of its own. An allocator may hand out memory that was used
/// before, and would touch all of it to make it zero.
const OWN_PAGES: usize = 16 << 10;

/// Zeroed, cache-line aligned memory that is only ever accessed as 64-bit atomics.
pub struct RingMemory {
    /// Whole cache lines.
    words: NonNull<[AtomicU64]>,
    owner: Owner,
}

/// What the words lie in.
enum Owner {
    /// A `Box<[CacheLine]>`.
    Heap,
    /// Pages of the system, given back when the mapping is dropped.
    Pages(#[expect(dead_code, reason = "kept for its drop")] MmapRaw),
}

// SAFETY: the words are owned, and are atomics.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Allocates `entries * entry_size` bytes. Pages of a long ring that are never used cost no
    /// memory.
    pub(super) fn new(entries: usize, entry_size: usize) -> Result<Self, Error> {
        let exhausted = Error::Exhausted("queue");
        let count = entries
            .checked_mul(entry_size)
            .ok_or(exhausted)?
            .div_ceil(size_of::<CacheLine>());
        let bytes = count * size_of::<CacheLine>();
        if bytes < OWN_PAGES {
            let lines = <[CacheLine]>::new_box_zeroed_with_elems(count).map_err(|_| exhausted)?;
            let first = NonNull::from(Box::leak(lines)).cast();
            return Ok(RingMemory {
                words: NonNull::slice_from_raw_parts(first, count * WORDS_PER_LINE),
                owner: Owner::Heap,
            });
        }
        let pages = MmapRaw::from(MmapMut::map_anon(bytes).map_err(|_| exhausted)?);
        let first = NonNull::new(pages.as_mut_ptr().cast()).ok_or(exhausted)?;
        Ok(RingMemory {
            words: NonNull::slice_from_raw_parts(first, count * WORDS_PER_LINE),
            owner: Owner::Pages(pages),
        })
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the words live as long as `self`, are aligned (to a page, if not by a box), and any
        // bytes are valid atomics.
        unsafe { self.words.as_ref() }
    }

    /// The word at `index`, counted in 8 bytes.
    ///
    /// # Panics
    /// Beyond the end of the memory.
    #[cfg(test)]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        &self.words()[index]
    }

    /// The words of entry `index` of a ring whose entries have `N` words: 2, 4, 8 or 16.
    ///
    /// # Panics
    /// Beyond the end of the memory.
    #[inline(always)]
    pub(super) fn entry<const N: usize>(&self, index: usize) -> &[AtomicU64; N] {
        let (entries, _) = self.words().as_chunks();
        &entries[index]
    }

    /// The first byte, aligned to 64. The memory lives as long as the ring that it belongs to, and
    /// may be written through this pointer in aligned words of up to 8 bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        self.words.as_ptr().cast()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        (range.start..range.end)
            .map(|byte| self.word(byte / 8).load(Ordering::Relaxed).to_le_bytes()[byte % 8])
            .collect()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        size_of_val(self.words())
    }

    /// Whether there is no memory at all.
    pub fn is_empty(&self) -> bool {
        self.words().is_empty()
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        if let Owner::Heap = self.owner {
            let count = self.words.len() / WORDS_PER_LINE;
            let lines = NonNull::slice_from_raw_parts(self.words.cast::<CacheLine>(), count);
            // SAFETY: leaked from a box when this was made, and nobody has a reference any more.
            drop(unsafe { Box::from_raw(lines.as_ptr()) });
        }
    }
}

/// A 32-bit doorbell register, alone in its cache line.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Doorbell(AtomicU32);

impl Doorbell {
    /// Writes the register. Everything written before is visible to who sees the value.
    #[inline]
    pub fn write(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }

    /// The last value written.
    #[inline]
    pub fn read(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// The register's address, for clients that write it by themselves with 32-bit stores.
    pub fn as_ptr(&self) -> *mut u32 {
        self.0.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_aligned_and_doorbells_have_their_own_cache_lines() {
        let memory = RingMemory::new(3, 32).unwrap();
        assert_eq!((memory.len(), memory.as_ptr().addr() % 64), (128, 0));
        assert_eq!(memory.bytes(0..128), [0; 128]);
        assert_eq!((size_of::<Doorbell>(), align_of::<Doorbell>()), (64, 64));
    }

    #[test]
    fn of_a_long_ring_only_used_pages_take_memory() {
        /// Pages of this process's memory at `address` and behind it that the system has provided.
        fn resident(memory: &RingMemory) -> usize {
            let mut pages = vec![0u8; memory.len() / 4096];
            // SAFETY: the range is mapped and starts at a page; there is a byte for each page.
            let result =
                unsafe { libc::mincore(memory.as_ptr().cast(), memory.len(), pages.as_mut_ptr()) };
            assert_eq!(result, 0);
            pages.iter().filter(|page| **page & 1 != 0).count()
        }
        // Memory that was used before must not be taken for it.
        drop(vec![7u8; 1 << 20]);
        let memory = RingMemory::new(1 << 14, 64).unwrap();
        assert_eq!((memory.len(), memory.as_ptr().addr() % 4096), (1 << 20, 0));
        assert_eq!(resident(&memory), 0);
        memory.word(0).store(1, Ordering::Relaxed);
        memory
            .word(memory.len() / 8 - 1)
            .store(1, Ordering::Relaxed);
        // Two, or as many as the system provides at a time.
        let touched = resident(&memory);
        assert!((2..=64).contains(&touched), "{touched} of 256 pages");
    }

    #[test]
    fn a_queue_without_entries_has_no_memory() {
        assert!(RingMemory::new(0, 64).unwrap().is_empty());
    }

    #[test]
    fn memory_that_cannot_be_had_is_enomem() {
        for entries in [usize::MAX, usize::MAX / 64, usize::MAX / 128] {
            assert_eq!(
                RingMemory::new(entries, 64).err(),
                Some(Error::Exhausted("queue"))
            );
        }
    }
}
