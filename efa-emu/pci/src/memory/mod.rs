//! The memory of the guest: which addresses are memory, and where they are mapped in this process.
//!
//! Every address from a guest is looked up here, and is an error if it is not memory. The content
//! may change at any time: it is copied once before it is used.

mod guest;
mod page_list;
mod stitched;

pub use guest::{GuestMemory, MapError, Mapping, NotMemory};
pub use page_list::{PageList, PageListError};
pub use stitched::{StitchError, StitchedRegion};

/// The page size in bytes.
pub const PAGE: u64 = 4096;

/// A file of this many pages, in which each byte is the number of its page.
#[cfg(test)]
pub(crate) fn test_pages(count: u64) -> std::os::fd::OwnedFd {
    guest::tests::pages(count).into()
}
