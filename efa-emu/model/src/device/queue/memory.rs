//! The memory of a ring, and the doorbell that announces new entries.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapMut, MmapRaw};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
};
use zerocopy::FromZeros;

use super::RingError;
use super::lent::LentMemory;

/// The unit in which words are allocated.
#[derive(FromZeros)]
#[repr(C, align(64))]
struct CacheLine([AtomicU64; WORDS_PER_LINE]);

/// Words of 8 bytes in a cache line.
pub(super) const WORDS_PER_LINE: usize = 8;

/// A ring of at least this many bytes gets its own pages. An allocator may return memory that was
/// used before, and would have to zero all of it.
const OWN_PAGES: usize = 16 << 10;

/// Zeroed, cache-line aligned memory of a ring whose entries have `N` words of 64 bits, where `N`
/// is a power of two up to 8. It is accessed as atomics only.
pub struct RingMemory<const N: usize> {
    first: NonNull<[AtomicU64; N]>,
    /// The number of entries minus one; 0 also for a ring without entries.
    mask: u32,
    /// The number of cache lines that are allocated, with room for all entries and at least for
    /// one.
    lines: usize,
    entries: usize,
    owner: Allocation,
}

/// How the words are allocated.
enum Allocation {
    /// A `Box<[CacheLine]>`.
    Heap,
    /// Pages of the system, which are freed when the mapping is dropped.
    Pages(#[expect(dead_code, reason = "kept for its drop")] MmapRaw),
    Shared(SharedPages),
    /// Memory that the client has lent, for as long as the ring exists.
    Lent(#[expect(dead_code, reason = "kept for its drop")] LentMemory),
}

/// Pages that can be mapped more than once. They are freed when the last mapping is dropped.
pub struct SharedPages {
    first: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is not accessed through this type.
unsafe impl Send for SharedPages {}
// SAFETY: as above.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    fn new(length: usize) -> Result<SharedPages, RingError> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the system's choice.
        let first = unsafe { mmap_anonymous(null_mut(), length, access, flags) };
        SharedPages::of(first, length)
    }

    /// Maps the same pages again.
    fn again(&self) -> Result<SharedPages, RingError> {
        // SAFETY: with a length of 0 a shared mapping stays unchanged, and its pages are mapped a
        // second time.
        let first = unsafe {
            mremap(
                self.first.as_ptr().cast(),
                0,
                self.length,
                MremapFlags::MAYMOVE,
            )
        };
        SharedPages::of(first, self.length)
    }

    fn of(first: rustix::io::Result<*mut c_void>, length: usize) -> Result<SharedPages, RingError> {
        let first = first.ok().and_then(|first| NonNull::new(first.cast()));
        let first = first.ok_or(RingError::NoMemory)?;
        Ok(SharedPages { first, length })
    }

    /// The first byte of the mapping.
    pub fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// The number of used bytes. The last page is mapped completely.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Unmaps a page. The next access maps it again, or waits if the page is registered for that.
    pub fn unmap_page(&self, offset: usize) {
        let page = self.first.as_ptr().wrapping_add(offset);
        // SAFETY: the pages are shared, so the first mapping keeps their contents.
        let _ = unsafe { madvise(page.cast(), PAGE, Advice::LinuxDontNeed) };
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `of`; by its owner's contract it is no longer used.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.length) };
    }
}

// SAFETY: the words are owned, and are atomics.
unsafe impl<const N: usize> Send for RingMemory<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for RingMemory<N> {}

impl<const N: usize> RingMemory<N> {
    /// Allocates `entries` entries, a power of two or 0. Unused pages of a long ring occupy no
    /// memory.
    pub(super) fn new(entries: usize) -> Result<Self, RingError> {
        RingMemory::of(entries, |bytes| match bytes < OWN_PAGES {
            true => Ok((None, Allocation::Heap)),
            false => {
                let pages = MmapMut::map_anon(bytes).map_err(|_| RingError::NoMemory)?;
                let pages = MmapRaw::from(pages);
                Ok((Some(pages.as_mut_ptr()), Allocation::Pages(pages)))
            }
        })
    }

    /// As [`RingMemory::new`], of pages that can be mapped again.
    pub(super) fn shared(entries: usize) -> Result<Self, RingError> {
        RingMemory::of(entries, |bytes| {
            let pages = SharedPages::new(bytes)?;
            Ok((Some(pages.as_ptr()), Allocation::Shared(pages)))
        })
    }

    /// As [`RingMemory::new`], in memory that the client has lent. Its content is kept.
    pub(super) fn over(lent: LentMemory, entries: usize) -> Result<Self, RingError> {
        // A short ring need not fill a cache line.
        let bytes = entries.max(1).saturating_mul(N * size_of::<AtomicU64>());
        RingMemory::of(entries, |_| {
            let first = lent.ring_of(bytes).ok_or(RingError::Lent)?;
            Ok((Some(first.as_ptr()), Allocation::Lent(lent)))
        })
    }

    /// Whether the client has lent the memory.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self.owner, Allocation::Lent(_))
    }

    /// Maps the pages of shared memory again.
    pub(super) fn map_again(&self) -> Result<SharedPages, RingError> {
        match &self.owner {
            Allocation::Shared(pages) => pages.again(),
            Allocation::Heap | Allocation::Pages(_) | Allocation::Lent(_) => {
                Err(RingError::NoMemory)
            }
        }
    }

    fn of(
        entries: usize,
        allocate: impl FnOnce(usize) -> Result<(Option<*mut u8>, Allocation), RingError>,
    ) -> Result<Self, RingError> {
        const { assert!(N.is_power_of_two() && N <= WORDS_PER_LINE) };
        let exhausted = RingError::NoMemory;
        let mask = u32::try_from(entries.saturating_sub(1)).map_err(|_| exhausted)?;
        assert!(entries == 0 || entries.is_power_of_two());
        let lines = (entries.max(1) * N).div_ceil(WORDS_PER_LINE);
        let bytes = lines * size_of::<CacheLine>();
        let (first, owner) = match allocate(bytes)? {
            (None, owner) => {
                let lines = <[CacheLine]>::new_box_zeroed_with_elems(lines);
                let lines = lines.map_err(|_| exhausted)?;
                (NonNull::from(Box::leak(lines)).cast(), owner)
            }
            (Some(pages), owner) => (NonNull::new(pages.cast()).ok_or(exhausted)?, owner),
        };
        Ok(RingMemory {
            first,
            mask,
            lines,
            entries,
            owner,
        })
    }

    /// The word at `index`, counted in 8 bytes.
    ///
    /// # Panics
    /// Beyond the end of the memory.
    #[cfg(test)]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.entries * N);
        &self.entry((index / N) as u32)[index % N]
    }

    /// The words of the entry at a counter; counters wrap around at the end of the ring. A ring
    /// without entries returns unused memory.
    #[inline(always)]
    pub(super) fn entry(&self, counter: u32) -> &[AtomicU64; N] {
        let index = (counter & self.mask) as usize;
        // SAFETY: there are `mask + 1` entries, aligned (to a page, if not by a box), which are
        // valid as long as `self`, and any bytes are valid atomics.
        unsafe { self.first.add(index).as_ref() }
    }

    /// The first byte, aligned to 64. The memory exists as long as its ring, and may be written
    /// through this pointer in aligned words of up to 8 bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr().cast()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        (range.start..range.end)
            .map(|byte| self.word(byte / 8).load(Ordering::Relaxed).to_le_bytes()[byte % 8])
            .collect()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.entries * N * size_of::<AtomicU64>()
    }

    /// Returns whether there is no memory.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }
}

impl<const N: usize> Drop for RingMemory<N> {
    fn drop(&mut self) {
        if let Allocation::Heap = self.owner {
            let lines = NonNull::slice_from_raw_parts(self.first.cast::<CacheLine>(), self.lines);
            // SAFETY: the pointer was leaked from a box in `of`, and no references to it exist.
            drop(unsafe { Box::from_raw(lines.as_ptr()) });
        }
    }
}

/// A 32-bit doorbell register, alone in its cache line.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Doorbell(AtomicU32);

impl Doorbell {
    /// Writes the register. A reader of the value sees all earlier writes.
    #[inline]
    pub fn write(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }

    /// The last value written.
    #[inline]
    pub fn read(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// The register's address, for clients that write it with 32-bit stores and without a call.
    pub fn as_ptr(&self) -> *mut u32 {
        self.0.as_ptr()
    }
}

/// A doorbell in a separate page, so that the system can protect it.
pub struct DoorbellPage(MmapRaw);

/// The smallest unit of protection on the machines that EFA clients run on. With larger pages, a
/// mapping uses a whole one.
const PAGE: usize = 4096;

impl DoorbellPage {
    /// Bytes of the page.
    pub const LENGTH: usize = PAGE;

    /// A page whose doorbell has this value.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(value: u32) -> Result<DoorbellPage, RingError> {
        let page = MmapMut::map_anon(PAGE).map_err(|_| RingError::NoMemory)?;
        let page = DoorbellPage(MmapRaw::from(page));
        page.doorbell().write(value);
        Ok(page)
    }

    /// The doorbell. A write may wait until the device has read the queue.
    pub fn doorbell(&self) -> &Doorbell {
        // SAFETY: a page is long enough, aligned, and valid as long as `self`; any bytes are a
        // valid atomic.
        unsafe { &*self.0.as_ptr().cast::<Doorbell>() }
    }

    /// The page's address.
    pub fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_doorbells_have_own_cachelines() {
        let memory = RingMemory::<4>::new(4).unwrap();
        assert_eq!((memory.len(), memory.as_ptr().addr() % 64), (128, 0));
        assert_eq!(memory.bytes(0..128), [0; 128]);
        assert_eq!((size_of::<Doorbell>(), align_of::<Doorbell>()), (64, 64));
    }

    #[test]
    fn only_used_pages_of_rings_take_memory() {
        /// The number of pages of the memory that the system has provided.
        fn resident(memory: &RingMemory<8>) -> usize {
            let mut pages = vec![0u8; memory.len() / 4096];
            // SAFETY: the range is mapped and starts at a page; there is a byte for each page.
            let result =
                unsafe { libc::mincore(memory.as_ptr().cast(), memory.len(), pages.as_mut_ptr()) };
            assert_eq!(result, 0);
            pages.iter().filter(|page| **page & 1 != 0).count()
        }
        // Frees used memory to the allocator. The ring must not reuse that memory.
        drop(vec![7u8; 1 << 20]);
        let memory = RingMemory::<8>::new(1 << 14).unwrap();
        assert_eq!((memory.len(), memory.as_ptr().addr() % 4096), (1 << 20, 0));
        assert_eq!(resident(&memory), 0);
        memory.word(0).store(1, Ordering::Relaxed);
        memory
            .word(memory.len() / 8 - 1)
            .store(1, Ordering::Relaxed);
        // Two pages, or the number that the system provides at once.
        let touched = resident(&memory);
        assert!((2..=64).contains(&touched), "{touched} of 256 pages");
    }

    #[test]
    fn counters_go_round() {
        fn check<const N: usize>() {
            for entries in [1u32, 2, 4, 64] {
                let memory = RingMemory::<N>::new(entries as usize).unwrap();
                for counter in 0..2 * entries {
                    let word = &memory.entry(counter)[N - 1];
                    assert_eq!(word.load(Ordering::Relaxed) != 0, counter >= entries);
                    word.store(1, Ordering::Relaxed);
                }
                let last = memory.entry(u32::MAX).as_ptr().addr() + 8 * N;
                assert_eq!(last - memory.as_ptr().addr(), memory.len());
            }
        }
        check::<2>();
        check::<4>();
        check::<8>();
    }

    #[test]
    fn a_queue_without_entries_has_no_memory() {
        let memory = RingMemory::<8>::new(0).unwrap();
        assert_eq!((memory.is_empty(), memory.len()), (true, 0));
        // A client that reads beyond the end does not get the memory of other clients.
        assert_eq!(memory.entry(7)[7].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_that_cannot_be_had_is_enomem() {
        for entries in [1 << 63, 1 << 33] {
            assert_eq!(
                RingMemory::<8>::new(entries).err(),
                Some(RingError::NoMemory)
            );
        }
    }
}
