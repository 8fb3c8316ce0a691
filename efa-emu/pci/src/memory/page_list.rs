//! The pages of a registration: in the command, in a list, or in a chain of lists.

use zerocopy::little_endian::U64;

use super::guest::{GuestMemory, NotMemory};
use super::stitched::{PageRuns, StitchError, StitchedRegion};
use crate::admin::{ControlBuffer, Head, RegMr};

/// The reason why the pages of a region cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum PageListError {
    /// The list, or a page in it, is not memory of the guest.
    #[error(transparent)]
    Stitch(#[from] StitchError),
    /// The length of the list does not match the number of pages.
    #[error("the list of pages has {found} bytes, not {expected}")]
    Length {
        /// The actual length.
        found: u32,
        /// The expected length.
        expected: u64,
    },
    /// A page is not aligned to its size.
    #[error("{0:#x} is not the address of a page")]
    NotAPage(u64),
}

impl From<NotMemory> for PageListError {
    fn from(error: NotMemory) -> Self {
        PageListError::Stitch(error.into())
    }
}

/// The pages of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageList {
    /// The number of pages.
    pub count: u64,
    /// The size of a page in bytes.
    pub size: u64,
}

/// Number of addresses that fit into the command.
const IN_COMMAND: u64 = 4;

/// Length of a part of a chain in bytes: addresses, followed by a [`ControlBuffer`] for the next
/// part.
const PART: u64 = 4096;

/// Number of addresses in a part of a chain.
const PER_PART: u64 = (PART - size_of::<ControlBuffer>() as u64) / 8;

/// Number of addresses per read.
const BATCH: u64 = 512;

impl PageList {
    /// Maps the pages of a registration.
    ///
    /// # Errors
    /// The list is inconsistent with its command, or contains addresses that are not memory.
    pub fn stitch(
        self,
        memory: &GuestMemory,
        request: &RegMr,
        is_writable: bool,
    ) -> Result<StitchedRegion, PageListError> {
        let mut collector = Collector {
            memory,
            size: self.size,
            is_writable,
            runs: PageRuns::default(),
        };
        if self.count <= IN_COMMAND {
            collector.add(&request.pages[..self.count as usize])?;
        } else if request.head.flags & Head::INDIRECT != 0 {
            self.walk(request.list(), &mut collector)?;
        } else {
            let list = request.list();
            check_length(list, self.count * 8)?;
            collector.read(list.address.get(), self.count)?;
        }
        Ok(collector.runs.stitch()?)
    }

    /// Follows a chain: each part contains addresses of 4 KiB pages, which contain addresses of the
    /// region's pages.
    fn walk(
        self,
        mut part: ControlBuffer,
        collector: &mut Collector<'_>,
    ) -> Result<(), PageListError> {
        let mut rest = self.count;
        while rest > 0 {
            let lists = rest.div_ceil(BATCH);
            let here = lists.min(PER_PART);
            let mut addresses = [U64::ZERO; PER_PART as usize];
            let addresses = &mut addresses[..here as usize];
            let at = part.address.get();
            read_numbers(collector.memory, at, addresses)?;
            for list in addresses.iter() {
                let count = rest.min(BATCH);
                if !list.get().is_multiple_of(super::PAGE) {
                    return Err(PageListError::NotAPage(list.get()));
                }
                collector.read(list.get(), count)?;
                rest -= count;
            }
            if rest > 0 {
                let mut next = [0; size_of::<ControlBuffer>()];
                let end = at.checked_add(PART - next.len() as u64);
                let missing = NotMemory {
                    address: at,
                    length: PART,
                };
                collector.memory.read(end.ok_or(missing)?, &mut next)?;
                part = zerocopy::transmute!(next);
            }
        }
        Ok(())
    }
}

fn check_length(list: ControlBuffer, expected: u64) -> Result<(), PageListError> {
    let found = list.length.get();
    match u64::from(found) == expected {
        true => Ok(()),
        false => Err(PageListError::Length { found, expected }),
    }
}

fn read_numbers(memory: &GuestMemory, address: u64, into: &mut [U64]) -> Result<(), NotMemory> {
    memory.read(address, zerocopy::IntoBytes::as_mut_bytes(into))
}

struct Collector<'a> {
    memory: &'a GuestMemory,
    size: u64,
    is_writable: bool,
    runs: PageRuns,
}

impl Collector<'_> {
    /// Adds pages whose addresses are in the guest's memory.
    fn read(&mut self, mut address: u64, mut count: u64) -> Result<(), PageListError> {
        let mut batch = [U64::ZERO; BATCH as usize];
        while count > 0 {
            let here = count.min(BATCH);
            let numbers = &mut batch[..here as usize];
            read_numbers(self.memory, address, numbers)?;
            self.add(numbers)?;
            count -= here;
            // An overflow only happens at the end of the list: the next read would fail.
            address = address.saturating_add(here * 8);
        }
        Ok(())
    }

    fn add(&mut self, pages: &[U64]) -> Result<(), PageListError> {
        for page in pages {
            let page = page.get();
            if !page.is_multiple_of(self.size) {
                return Err(PageListError::NotAPage(page));
            }
            self.runs
                .add(self.memory, page, self.size, self.is_writable)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};
    use zerocopy::FromZeros;
    use zerocopy::little_endian::U32;

    use super::super::PAGE;
    use super::super::guest::tests::{descriptor, mapped};
    use super::*;

    fn request(flags: u8, first: [u64; 4]) -> RegMr {
        let mut request = RegMr::new_zeroed();
        request.head.flags = flags;
        request.pages = first.map(U64::new);
        request
    }

    fn listed(flags: u8, length: u32, address: u64) -> RegMr {
        request(
            flags,
            [u64::from(length) | address << 32, address >> 32, 0, 0],
        )
    }

    /// The number of the file's page at a page of the region.
    fn page(region: &StitchedRegion, index: u64) -> u8 {
        let address = region.address() + index * PAGE;
        let byte: *const u8 = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: in the region, which is mapped.
        unsafe { byte.read_volatile() }
    }

    fn write_list(memory: &GuestMemory, address: u64, pages: impl IntoIterator<Item = u64>) {
        for (index, page) in (0..).zip(pages) {
            memory
                .write(address + 8 * index, &u64::to_le_bytes(page))
                .unwrap();
        }
    }

    #[test]
    fn short_lists_are_in_the_command() {
        let memory = mapped(&[(0, 8, true)]);
        let list = PageList {
            count: 3,
            size: PAGE,
        };
        let request = request(0, [7 * PAGE, 2 * PAGE, 5 * PAGE, 99]);
        let region = list.stitch(&memory, &request, true).unwrap();
        assert_eq!([0, 1, 2].map(|index| page(&region, index)), [7, 2, 5]);
    }

    #[test]
    fn longer_lists_are_in_a_buffer() {
        let memory = mapped(&[(0, 8, true)]);
        write_list(&memory, 0x18, [6, 1, 2, 4, 3].map(|page| page * PAGE));
        let list = PageList {
            count: 5,
            size: PAGE,
        };
        let request = listed(Head::CONTROL_BUFFER, 40, 0x18);
        let region = list.stitch(&memory, &request, true).unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4].map(|index| page(&region, index)),
            [6, 1, 2, 4, 3]
        );
        let short = listed(Head::CONTROL_BUFFER, 39, 0x18);
        let error = list.stitch(&memory, &short, true).unwrap_err();
        assert!(matches!(error, PageListError::Length { .. }), "{error}");
    }

    #[test]
    fn chains_of_lists_are_followed() {
        // One list more than in the first part of the chain, and 7 pages in that list.
        let count = PER_PART * BATCH + 7;
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len((count + 1) * PAGE).unwrap();
        file.write_all_at(b"last", count * PAGE).unwrap();
        let memory = GuestMemory::default();
        memory
            .map(0, (count + 1) * PAGE, true, descriptor(&file), 0)
            .unwrap();
        // The lists are inside of the pages that they list in order.
        let (chain, lists) = (1000 * PAGE, 2000 * PAGE);
        write_list(
            &memory,
            chain,
            (0..PER_PART).map(|list| lists + list * PAGE),
        );
        for list in 0..PER_PART {
            let pages = (0..BATCH).map(|page| (list * BATCH + page) * PAGE);
            write_list(&memory, lists + list * PAGE, pages);
        }
        let next = ControlBuffer {
            length: U32::new(8),
            address: (3000 * PAGE).into(),
        };
        let bytes = zerocopy::IntoBytes::as_bytes(&next);
        memory.write(chain + PART - 12, bytes).unwrap();
        write_list(&memory, 3000 * PAGE, [3001 * PAGE]);
        // The last page is not adjacent.
        let last = (0..7).map(|page| PER_PART * BATCH + page + u64::from(page == 6));
        write_list(&memory, 3001 * PAGE, last.map(|page| page * PAGE));
        let list = PageList { count, size: PAGE };
        let flags = Head::CONTROL_BUFFER | Head::INDIRECT;
        let region = list
            .stitch(&memory, &listed(flags, 4096, chain), true)
            .unwrap();
        assert_eq!(page(&region, count - 1), b'l');
        assert_eq!(page(&region, count - 2), 0);
    }

    #[test]
    fn wrong_lists_are_errors() {
        let memory = mapped(&[(0, 8, true)]);
        let list = PageList {
            count: 2,
            size: 2 * PAGE,
        };
        let stitch = |pages| list.stitch(&memory, &request(0, pages), true);
        assert!(stitch([0, 2 * PAGE, 0, 0]).is_ok());
        assert!(matches!(
            stitch([PAGE, 0, 0, 0]),
            Err(PageListError::NotAPage(PAGE))
        ));
        assert!(matches!(
            stitch([0, 8 * PAGE, 0, 0]),
            Err(PageListError::Stitch(_))
        ));
        let many = PageList {
            count: 600,
            size: PAGE,
        };
        let chained = Head::CONTROL_BUFFER | Head::INDIRECT;
        for (flags, address) in [
            (Head::CONTROL_BUFFER, 8 * PAGE - 8),
            (Head::CONTROL_BUFFER, u64::MAX - 7),
            (chained, 8 * PAGE),
            (chained, u64::MAX - 7),
        ] {
            let error = many.stitch(&memory, &listed(flags, 4800, address), true);
            assert!(error.is_err(), "{address:#x}");
        }
    }
}
