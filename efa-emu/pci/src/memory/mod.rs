//! The memory of the guest: which of its addresses are memory, and where that is in this process.
//!
//! Every address that comes from a guest is looked up here, and is an error if it is not memory. What
//! lies there may change at any time: it is copied once, and then used.

mod guest;
mod page_list;
mod stitched;

pub use guest::{GuestMemory, MapError, Mapping, NotMemory};
pub use page_list::{PageList, PageListError};
pub use stitched::{StitchError, StitchedRegion};

/// The page size in bytes.
pub const PAGE: u64 = 4096;

/// A file of so many pages, each byte of which says in which page it is.
#[cfg(test)]
pub(crate) fn test_pages(count: u64) -> std::os::fd::OwnedFd {
    guest::tests::pages(count).into()
}
