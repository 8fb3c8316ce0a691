//! Memory shared between processes. Its content may change at any time and may be hostile: words
//! are read as atomics, bytes are copied out once, and no reference to it is ever created.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use efa_capture::file_size;
use efa_lock_free::ring::{ANSWERS, Line, RingMemory};

/// Offsets of mappings are multiples of this: the longest page that a kernel has, which on x86-64
/// is 4 KiB and on arm64 64 KiB. It is the same everywhere, so that programs of both can share a
/// fabric.
pub(crate) const PAGE: usize = 64 << 10;

/// A part of a file mapped into this process and shared with others.
///
/// Every access is checked against the length, which the file had at the time of the mapping. Files
/// are only ever unlinked, never shortened; a process of the same user that shortens one on purpose
/// can kill its peers, which it could do with a signal as well.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is process-wide memory, accessed through atomics and raw copies only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; methods return references to atomics only.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps `length` bytes of `file` from `offset` on, both multiples of [`PAGE`]. Fails with
    /// `UnexpectedEof` if the file is shorter.
    pub(crate) fn map(file: &File, offset: usize, length: usize) -> io::Result<SharedMemory> {
        assert!(length > 0 && offset.is_multiple_of(PAGE) && length.is_multiple_of(PAGE));
        if file.metadata()?.len() < (offset + length) as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: a shared file mapping at an address of the kernel's choice replaces no memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was just mapped. Leaving rings out of core dumps is advice only.
        unsafe { libc::madvise(address, length, libc::MADV_DONTDUMP) };
        let base = NonNull::new(address.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(SharedMemory { base, length })
    }

    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > self.length) {
            beyond(offset, length, self.length);
        }
        // SAFETY: the whole range is inside the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The 32-bit word at `offset`, a multiple of 4.
    #[inline]
    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: in bounds, aligned (mappings start at a page), mapped as long as `self` exists.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// The 64-bit word at `offset`, a multiple of 8.
    #[inline]
    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: in bounds, aligned (mappings start at a page), mapped as long as `self` exists.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// `count` words of 64 bits from `offset` on, a multiple of 8.
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8));
        let first = self.at(offset, 8 * count).cast();
        // SAFETY: in bounds, aligned (mappings start at a page), mapped as long as `self` exists,
        // and only accessed as atomics.
        unsafe { std::slice::from_raw_parts(first, count) }
    }

    /// The 32-bit word at a fixed offset, a multiple of 4, in the first page.
    #[inline(always)]
    pub(crate) fn u32_at<const OFFSET: usize>(&self) -> &AtomicU32 {
        const { assert!(OFFSET.is_multiple_of(4) && OFFSET + 4 <= PAGE) };
        // SAFETY: mappings have at least a page and start at one; mapped as long as `self` exists.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(OFFSET).cast()) }
    }

    /// The 64-bit word at a fixed offset, a multiple of 8, in the first page.
    #[inline(always)]
    pub(crate) fn u64_at<const OFFSET: usize>(&self) -> &AtomicU64 {
        const { assert!(OFFSET.is_multiple_of(8) && OFFSET + 8 <= PAGE) };
        // SAFETY: as in `u32_at`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(OFFSET).cast()) }
    }

    /// Copies bytes into the mapping.
    #[inline]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the target is in bounds; `bytes` is a Rust slice and so never in shared memory.
        // Another process may read meanwhile and then sees old or new bytes, which it validates.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out of the mapping, once.
    #[inline]
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: the source is in bounds; `bytes` is a Rust slice and so never in shared memory.
        // Another process may write meanwhile; any byte values are acceptable.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies from this process's memory at `address` into the mapping.
    ///
    /// # Safety
    /// `address .. address + length` must be readable memory of this process.
    #[inline]
    pub(crate) unsafe fn write_from(&self, offset: usize, address: u64, length: usize) {
        let to = self.at(offset, length);
        // SAFETY: readable by contract, writable and in bounds as checked. `copy`, because an
        // application may name memory that overlaps the mapping.
        unsafe { std::ptr::copy(address as *const u8, to, length) };
    }

    /// Copies from the mapping into this process's memory at `address`.
    ///
    /// # Safety
    /// `address .. address + length` must be writable memory of this process that no Rust
    /// reference points into.
    #[inline]
    pub(crate) unsafe fn read_into(&self, offset: usize, address: u64, length: usize) {
        let from = self.at(offset, length);
        // SAFETY: writable by contract, readable and in bounds as checked.
        unsafe { std::ptr::copy(from, address as *mut u8, length) };
    }
}

impl RingMemory for SharedMemory {
    const RECORDS: usize = PAGE;

    fn capacity(&self) -> usize {
        self.length - PAGE
    }

    #[inline(always)]
    fn line(&self, offset: usize) -> &Line {
        if offset >= self.length {
            beyond(offset, size_of::<Line>(), self.length);
        }
        // The length is a multiple of a page, so the whole line is in the mapping.
        let start = offset & !(size_of::<Line>() - 1);
        // SAFETY: in bounds as just checked, aligned (mappings start at a page), mapped as long as
        // `self` exists, and only accessed as atomics.
        unsafe { &*self.base.as_ptr().add(start).cast() }
    }

    /// The last bytes of the first page, so that they and the records are one range.
    #[inline(always)]
    fn answers(&self) -> &[AtomicU8; ANSWERS] {
        // SAFETY: mappings have at least a page, which is mapped as long as `self` exists; its end
        // is only accessed as atomics.
        unsafe { &*self.base.as_ptr().add(PAGE - ANSWERS).cast() }
    }
}

/// A separate cold function, so that the message's arguments are not prepared before every access.
#[cold]
#[inline(never)]
fn beyond(offset: usize, length: usize, end: usize) -> ! {
    panic!("access beyond a shared mapping: {offset} + {length} of {end}");
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Sets the length of a file to `length` bytes, without allocating memory.
///
/// # Errors
/// The file system refuses, or the process's limit on file sizes is exceeded; see [`file_size`].
pub(crate) fn resize(file: &File, length: usize) -> io::Result<()> {
    file_size::check(length as u64)?;
    file.set_len(length as u64)
}

/// Allocates memory for a range of a file, so that a later access cannot fail (a full /dev/shm
/// causes SIGBUS instead of an error).
pub(crate) fn reserve(file: &File, offset: usize, length: usize) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let result = unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            0,
            offset as libc::off_t,
            length as libc::off_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // Not every file system supports this. One that does not cannot run full without an error
        // either.
        error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        error => Err(error),
    }
}

/// Releases the memory of a range; it reads as zeroes afterwards.
pub(crate) fn discard(file: &File, offset: usize, length: usize) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let result = unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            offset as libc::off_t,
            length as libc::off_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The futex operations on a word in shared memory, as [`efa_lock_free::sync::futex`].
pub(crate) mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    pub(crate) use efa_lock_free::sync::futex::{wait, wake};

    /// Most words that [`wait_any`] waits for.
    const MOST_WORDS: usize = 128;

    /// A word to wait for, in the kernel's representation.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct FutexWaitv {
        expected: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }

    /// As [`wait`], for several words: sleeps while each word has its expected value. Returns false
    /// immediately if the system does not support this: Linux before 5.16, or too many words.
    pub(crate) fn wait_any(words: &[(&AtomicU32, u32)], timeout: Duration) -> bool {
        const FUTEX2_SIZE_U32: u32 = 2;
        if words.len() > MOST_WORDS {
            return false;
        }
        let words: Vec<FutexWaitv> = words
            .iter()
            .map(|(word, expected)| FutexWaitv {
                expected: u64::from(*expected),
                address: word.as_ptr() as u64,
                flags: FUTEX2_SIZE_U32,
                reserved: 0,
            })
            .collect();
        let until = super::super::clock::monotonic_now().saturating_add(timeout);
        let until = libc::timespec {
            tv_sec: until.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: libc::c_long::from(until.subsec_nanos()),
        };
        // SAFETY: the list, the words that it names and the time are valid during the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex_waitv,
                words.as_ptr(),
                words.len() as libc::c_uint,
                0,
                &raw const until,
                libc::CLOCK_MONOTONIC,
            )
        };
        let is_unknown = || {
            let error = std::io::Error::last_os_error().raw_os_error();
            matches!(error, Some(libc::ENOSYS | libc::EINVAL | libc::EPERM))
        };
        result >= 0 || !is_unknown()
    }
}
