//! Regions of pages that are scattered in the guest, as one range of this process.
//!
//! The device and its link use regions by an address of the process. So the pages of a region are
//! mapped a second time, contiguously. A run of pages that are adjacent in the guest needs one
//! mapping.

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::guest::{GuestMemory, Mapping, NotMemory, access};

/// The most runs of all regions of this process. The system allows 65530 mappings per process, and
/// a process at the limit cannot allocate memory.
const MAX_RUNS: usize = 49_152;

/// The number of mapped runs.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The reason why a region cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum StitchError {
    /// A page is not memory of the guest, or not writable.
    #[error(transparent)]
    NotMemory(#[from] NotMemory),
    /// The pages are too scattered.
    #[error("the regions have more than {MAX_RUNS} runs of pages")]
    TooManyRuns,
    /// The system call failed.
    #[error("cannot map the pages of the region: {0}")]
    System(#[from] std::io::Error),
}

/// Adjacent pages in a mapping.
struct PageRun {
    map: Arc<Mapping>,
    offset: usize,
    length: usize,
}

/// Collects pages in order.
#[derive(Default)]
pub(super) struct PageRuns {
    runs: Vec<PageRun>,
    length: usize,
}

impl PageRuns {
    /// Adds a page of `length` bytes of the guest.
    pub(super) fn add(
        &mut self,
        memory: &GuestMemory,
        mut address: u64,
        mut length: u64,
        is_writable: bool,
    ) -> Result<(), StitchError> {
        let missing = NotMemory { address, length };
        while length > 0 {
            let (map, offset) = memory.find(address).ok_or(missing)?;
            if is_writable && !map.is_writable() {
                return Err(missing.into());
            }
            let count = map.rest(offset).min(length as usize);
            self.push(map, offset, count)?;
            length -= count as u64;
            address = address.checked_add(count as u64).ok_or(missing)?;
        }
        Ok(())
    }

    fn push(&mut self, map: Arc<Mapping>, offset: usize, length: usize) -> Result<(), StitchError> {
        self.length += length;
        if let Some(last) = self.runs.last_mut()
            && last.map.is_same(&map)
            && last.offset + last.length == offset
        {
            last.length += length;
            return Ok(());
        }
        if self.runs.len() >= MAX_RUNS {
            return Err(StitchError::TooManyRuns);
        }
        self.runs.push(PageRun {
            map,
            offset,
            length,
        });
        Ok(())
    }

    /// Maps the pages contiguously.
    pub(super) fn stitch(self) -> Result<StitchedRegion, StitchError> {
        let runs = MappedRuns::take(self.runs.len())?;
        // SAFETY: a new range of addresses, at a place of the system's choice.
        let first = unsafe {
            mmap_anonymous(
                null_mut(),
                self.length,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )
        };
        let region = StitchedRegion {
            first: first.map_err(std::io::Error::from)?.addr(),
            length: self.length,
            _runs: runs,
        };
        let mut at = region.first;
        for run in &self.runs {
            let (file, offset) = run.map.file_at(run.offset);
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            let protection = access(run.map.is_writable());
            // SAFETY: the addresses belong to `region`, and are not in use yet.
            unsafe {
                mmap(
                    std::ptr::with_exposed_provenance_mut(at),
                    run.length,
                    protection,
                    flags,
                    file,
                    offset,
                )
            }
            .map_err(std::io::Error::from)?;
            at += run.length;
        }
        Ok(region)
    }
}

/// A part of [`MAX_RUNS`], which is returned when this is dropped.
#[derive(Debug)]
struct MappedRuns(usize);

impl MappedRuns {
    fn take(count: usize) -> Result<MappedRuns, StitchError> {
        let more = |mapped: usize| mapped.checked_add(count).filter(|all| *all <= MAX_RUNS);
        match MAPPED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(MappedRuns(count)),
            Err(_) => Err(StitchError::TooManyRuns),
        }
    }
}

impl Drop for MappedRuns {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The pages of a region, contiguous in this process. They are unmapped when this is dropped.
#[derive(Debug)]
pub struct StitchedRegion {
    first: usize,
    length: usize,
    _runs: MappedRuns,
}

impl StitchedRegion {
    /// The address of the first page in this process.
    pub fn address(&self) -> u64 {
        self.first as u64
    }
}

impl Drop for StitchedRegion {
    fn drop(&mut self) {
        let first = std::ptr::with_exposed_provenance_mut(self.first);
        // SAFETY: mapped by `stitch`; the owner drops this after the device's region has ended.
        let _ = unsafe { munmap(first, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::PAGE;
    use super::super::guest::tests::mapped;
    use super::*;

    fn byte(region: &StitchedRegion, offset: u64) -> u8 {
        let byte: *const u8 = std::ptr::with_exposed_provenance(region.first + offset as usize);
        // SAFETY: in the region, which is mapped.
        unsafe { byte.read_volatile() }
    }

    #[test]
    fn pages_lie_side_by_side_in_their_order() {
        let memory = mapped(&[(0x10000, 4, true), (0x14000, 2, true)]);
        let mut runs = PageRuns::default();
        for page in [0x12000, 0x13000, 0x10000, 0x14000] {
            runs.add(&memory, page, PAGE, true).unwrap();
        }
        // A large page in two mappings.
        runs.add(&memory, 0x13000, 2 * PAGE, true).unwrap();
        assert_eq!(runs.runs.len(), 5);
        let region = runs.stitch().unwrap();
        memory.clear();
        let found: Vec<u8> = (0..6).map(|page| byte(&region, page * PAGE + 5)).collect();
        assert_eq!(found, [2, 3, 0, 0, 3, 0]);
    }

    #[test]
    fn runs_of_pages_take_one_mapping() {
        let memory = mapped(&[(0, 64, true)]);
        let mut runs = PageRuns::default();
        for page in 0..64 {
            runs.add(&memory, page * PAGE, PAGE, true).unwrap();
        }
        assert_eq!(runs.runs.len(), 1);
    }

    #[test]
    fn invalid_ranges_of_a_region_are_errors() {
        let memory = mapped(&[(0x1000, 1, false)]);
        let add = |address, length, is_writable| {
            PageRuns::default().add(&memory, address, length, is_writable)
        };
        assert!(add(0x1000, PAGE, false).is_ok());
        for (address, length, is_writable) in [
            (0x1000, PAGE, true),
            (0x1000, 2 * PAGE, false),
            (0, PAGE, false),
            (u64::MAX - 4095, PAGE, false),
        ] {
            let added = add(address, length, is_writable);
            assert!(
                matches!(added, Err(StitchError::NotMemory(_))),
                "{address:#x}: {added:?}"
            );
        }
        let mut runs = PageRuns::default();
        let added = (0..).find_map(|_| runs.add(&memory, 0x1000, PAGE, false).err());
        assert!(matches!(added, Some(StitchError::TooManyRuns)));
    }

    /// A region with the maximum number of scattered pages, and another one after it was dropped.
    #[test]
    fn runs_are_those_of_all_regions() {
        let memory = mapped(&[(0x1000, 1, true)]);
        let scattered = || {
            let mut runs = PageRuns::default();
            for _ in 0..MAX_RUNS / 2 + 1 {
                runs.add(&memory, 0x1000, PAGE, true).unwrap();
            }
            runs.stitch()
        };
        let first = scattered().unwrap();
        assert!(matches!(scattered(), Err(StitchError::TooManyRuns)));
        drop(first);
        scattered().unwrap();
    }
}
