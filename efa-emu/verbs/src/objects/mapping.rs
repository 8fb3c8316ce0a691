//! Memory behind a descriptor, mapped into this process for the device.

use core::ffi::c_int;
use core::ptr::{NonNull, null_mut};

use crate::ffi::errno::Errno;

/// A mapping that ends with the value.
pub(crate) struct Mapping {
    start: NonNull<libc::c_void>,
    /// The length of the whole pages, in bytes.
    length: usize,
    /// The offset of the memory in the first page.
    offset: usize,
}

// SAFETY: an address and sizes. The memory itself is shared with every user of the descriptor.
unsafe impl Send for Mapping {}

/// The page size in bytes.
fn page() -> u64 {
    // SAFETY: the call takes no pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64
}

/// Returns whether the descriptor is a dma-buf or a memfd.
fn is_memory(descriptor: c_int) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
    link.is_ok_and(|link| {
        let link = link.to_string_lossy();
        link.starts_with("/dmabuf:") || link.starts_with("/memfd:")
    })
}

impl Mapping {
    /// Maps `length` bytes from `offset` on.
    ///
    /// # Errors
    /// The kernel's for a dma-buf: `EBADF` for an invalid descriptor, `EINVAL` if it is not memory
    /// or has fewer bytes.
    pub(crate) fn new(
        descriptor: c_int,
        offset: u64,
        length: usize,
        is_written: bool,
    ) -> Result<Mapping, Errno> {
        // SAFETY: the call takes no pointers.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            return Err(Errno::last());
        }
        // SAFETY: the call takes no pointers. A dma-buf does not use the position; the position of
        // a memfd is restored.
        let size = unsafe {
            let before = libc::lseek(descriptor, 0, libc::SEEK_CUR);
            let size = libc::lseek(descriptor, 0, libc::SEEK_END);
            libc::lseek(descriptor, before.max(0), libc::SEEK_SET);
            size
        };
        let end = offset.checked_add(length as u64);
        let fits = end.is_some_and(|end| size >= 0 && end <= size as u64);
        if !is_memory(descriptor) || !fits || length == 0 {
            return Err(Errno::INVAL);
        }
        let within = offset % page();
        let whole = (within as usize + length).next_multiple_of(page() as usize);
        let protection = match is_written {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        // SAFETY: a new mapping, at an unused address.
        let start = unsafe {
            libc::mmap(
                null_mut(),
                whole,
                protection,
                libc::MAP_SHARED,
                descriptor,
                (offset - within) as libc::off_t,
            )
        };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Mapping {
                start,
                length: whole,
                offset: within as usize,
            }),
            _ => Err(Errno::last()),
        }
    }

    /// The first byte of the memory.
    pub(crate) fn address(&self) -> u64 {
        (self.start.as_ptr().addr() + self.offset) as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the value's own mapping; it is not used after its registration has ended.
        unsafe { libc::munmap(self.start.as_ptr(), self.length) };
    }
}
