//! The memory of work requests: its address, and whether the processor can read it. Memory of a GPU
//! may be registered too.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

use efa_verbs_sys::ibv_sge;

/// The maximum number of entries of a gather list that are stored. EFA's lists are not longer.
const MOST: usize = 4;

/// The memory of a work request.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    /// The number of entries.
    count: u32,
    /// The number of their bytes.
    length: u64,
    /// The first `count` are initialised.
    list: [MaybeUninit<ibv_sge>; MOST],
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers::NONE
    }
}

impl Buffers {
    pub(crate) const NONE: Buffers = Buffers {
        count: 0,
        length: 0,
        list: [const { MaybeUninit::uninit() }; MOST],
    };

    /// # Safety
    /// `list` is valid for reads of `count` entries, or `count` is 0.
    pub(crate) unsafe fn of(list: *const ibv_sge, count: usize) -> Buffers {
        let mut buffers = Buffers::NONE;
        // SAFETY: by contract.
        unsafe { buffers.set(list, count) };
        buffers
    }

    /// Copies a list in place: most lists are short, so the rest of the structure is not copied.
    ///
    /// # Safety
    /// `list` is valid for reads of `count` entries, or `count` is 0.
    #[inline]
    pub(crate) unsafe fn set(&mut self, list: *const ibv_sge, count: usize) {
        let mut put = |index: usize| {
            // SAFETY: by contract there are more entries, and there is room for one.
            unsafe {
                let entry = list.add(index);
                let at = self.list.as_mut_ptr().add(index);
                at.cast::<ibv_sge>().copy_from_nonoverlapping(entry, 1);
                u64::from((*entry).length)
            }
        };
        // Nearly all have one or two entries. Compilers would call the C library for a loop.
        let mut length = if count > 0 { put(0) } else { 0 };
        if count > 1 {
            length += put(1);
        }
        if count > 2 {
            length += (2..count.min(MOST)).map(put).sum::<u64>();
        }
        self.count = count.min(MOST) as u32;
        self.length = length;
    }

    /// Becomes empty in place, as [`Buffers::set`].
    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.count, self.length) = (0, 0);
    }

    /// Copies another one in place, as [`Buffers::set`].
    #[inline]
    pub(crate) fn set_to(&mut self, other: &Buffers) {
        // SAFETY: the other's entries are initialised.
        unsafe { self.set(other.list.as_ptr().cast(), other.count as usize) };
    }

    /// One range of memory.
    #[inline]
    pub(crate) fn one(addr: u64, length: u32, lkey: u32) -> Buffers {
        let mut buffers = Buffers {
            count: 1,
            length: length.into(),
            ..Buffers::NONE
        };
        buffers.list[0].write(ibv_sge { addr, length, lkey });
        buffers
    }

    /// The address of the first byte.
    #[cfg(test)]
    pub(crate) fn first(&self) -> u64 {
        self.list()[0].addr
    }

    #[inline]
    fn list(&self) -> &[ibv_sge] {
        // SAFETY: this many are initialised.
        unsafe { core::slice::from_raw_parts(self.list.as_ptr().cast(), self.count as usize) }
    }

    /// The number of bytes.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length as usize
    }

    /// Returns whether the processor can read the memory.
    #[inline(always)]
    pub(crate) fn is_readable(&self) -> bool {
        for entry in self.list() {
            if entry.length != 0 && !is_readable(entry) {
                return false;
            }
        }
        true
    }
}

/// Data to be recorded.
pub(crate) enum Source<'a> {
    /// Bytes inside a work request.
    Inline(&'a [u8]),
    /// Memory, without this many bytes at its start.
    Memory(&'a Buffers, usize),
}

impl Source<'_> {
    /// # Safety
    /// The source can be read for `length` bytes, `to` be written.
    #[inline(always)]
    pub(crate) unsafe fn copy_to(&self, mut to: *mut u8, mut length: usize) {
        match self {
            Source::Inline(bytes) => {
                let length = length.min(bytes.len());
                // SAFETY: by contract.
                unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length) };
            }
            Source::Memory(buffers, skipped) => {
                let mut skipped = *skipped;
                for entry in buffers.list() {
                    let skips = skipped.min(entry.length as usize);
                    skipped -= skips;
                    let part = length.min(entry.length as usize - skips);
                    let from =
                        core::ptr::with_exposed_provenance::<u8>(entry.addr as usize + skips);
                    // SAFETY: by contract. The program has passed this memory to its device, and
                    // has not seen the completion that returns it.
                    unsafe { core::ptr::copy_nonoverlapping(from, to, part) };
                    to = to.wrapping_add(part);
                    length -= part;
                }
            }
        }
    }
}

/// Registrations that were checked, by their key: the key, and the result in the lowest byte.
static KNOWN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
const READABLE: u64 = 1;
const UNREADABLE: u64 = 2;

fn slot(lkey: u32) -> &'static AtomicU64 {
    &KNOWN[(lkey.wrapping_mul(0x9E37_79B9) >> 22) as usize]
}

#[inline(always)]
fn is_readable(entry: &ibv_sge) -> bool {
    let slot = slot(entry.lkey);
    let known = slot.load(Ordering::Relaxed);
    match known.checked_sub(u64::from(entry.lkey) << 8) {
        Some(READABLE) => true,
        Some(UNREADABLE) => false,
        _ => {
            let state = if probe(entry.addr) {
                READABLE
            } else {
                UNREADABLE
            };
            slot.store(u64::from(entry.lkey) << 8 | state, Ordering::Relaxed);
            state == READABLE
        }
    }
}

/// Removes a registration that ends; another one may get its key.
pub(crate) fn forget(lkey: u32) {
    let slot = slot(lkey);
    if slot.load(Ordering::Relaxed) >> 8 == u64::from(lkey) {
        slot.store(0, Ordering::Relaxed);
    }
}

/// Makes the kernel read a byte: this fails where the program would crash.
fn probe(address: u64) -> bool {
    static SCRATCH: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let scratch = SCRATCH.get_or_init(|| {
        // SAFETY: a string that ends with zero; the descriptor is new.
        unsafe {
            match libc::memfd_create(c"efa-tap".as_ptr(), libc::MFD_CLOEXEC) {
                -1 => None,
                descriptor => Some(OwnedFd::from_raw_fd(descriptor)),
            }
        }
    });
    let Some(scratch) = scratch else { return false };
    let from = core::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the kernel checks the address.
    unsafe { libc::pwrite(scratch.as_raw_fd(), from, 1, 0) == 1 }
}
