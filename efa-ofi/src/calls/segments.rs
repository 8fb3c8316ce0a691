//! The memory of operations, in the types of C and of the engine.

use std::ffi::c_void;

use efa_core::endpoint::{Errno, IOV_LIMIT, IoVec, RemoteIoVec};
use efa_core::nic::{RemoteKey, UserSlice};

use crate::ffi::result::Result;
use crate::ffi::{fi_ioc, fi_rma_ioc, fi_rma_iov, iovec};
use crate::objects::memory_region::region_of;

/// Up to [`IOV_LIMIT`] segments of memory.
#[derive(Clone)]
pub(crate) struct Segments<T> {
    segments: [T; IOV_LIMIT],
    count: usize,
}

/// A segment in a list of C's. Its length is in bytes, or in elements of an atomic.
pub(crate) trait ListedSegment: Copy {
    fn address(self) -> u64;
    fn length(self) -> usize;
    /// The key of a peer's memory.
    fn key(self) -> u64 {
        0
    }
}

impl ListedSegment for iovec {
    fn address(self) -> u64 {
        self.iov_base.addr() as u64
    }
    fn length(self) -> usize {
        self.iov_len
    }
}

impl ListedSegment for fi_ioc {
    fn address(self) -> u64 {
        self.addr.addr() as u64
    }
    fn length(self) -> usize {
        self.count
    }
}

impl ListedSegment for fi_rma_iov {
    fn address(self) -> u64 {
        self.addr
    }
    fn length(self) -> usize {
        self.len
    }
    fn key(self) -> u64 {
        self.key
    }
}

impl ListedSegment for fi_rma_ioc {
    fn address(self) -> u64 {
        self.addr
    }
    fn length(self) -> usize {
        self.count
    }
    fn key(self) -> u64 {
        self.key
    }
}

impl<T: Copy> Segments<T> {
    pub(crate) fn one(segment: T) -> Segments<T> {
        Segments {
            segments: [segment; IOV_LIMIT],
            count: 1,
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        &self.segments[..self.count]
    }

    /// Reads a list, whose lengths are in units of `unit` bytes.
    ///
    /// # Errors
    /// `FI_EINVAL` for more than [`IOV_LIMIT`] segments, and for a length that overflows; the
    /// errors of `convert`, which gets the index, the segment, and its length in bytes.
    ///
    /// # Safety
    /// The list is null or has `count` segments.
    unsafe fn read<C: ListedSegment>(
        list: *const C,
        count: usize,
        unit: usize,
        empty: T,
        convert: impl Fn(usize, C, usize) -> Result<T>,
    ) -> Result<Segments<T>> {
        if count > IOV_LIMIT || (list.is_null() && count > 0) {
            return Err(Errno::EINVAL);
        }
        let mut segments = [empty; IOV_LIMIT];
        for (index, segment) in segments.iter_mut().enumerate().take(count) {
            // SAFETY: by the caller's contract.
            let listed = unsafe { list.add(index).read() };
            let bytes = listed.length().checked_mul(unit).ok_or(Errno::EINVAL)?;
            *segment = convert(index, listed, bytes)?;
        }
        Ok(Segments { segments, count })
    }
}

/// A segment of the application's memory.
///
/// # Errors
/// `FI_EINVAL` for an invalid descriptor.
///
/// # Safety
/// The descriptor is null, or of a registration that has not ended.
#[inline]
pub(crate) unsafe fn local(
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
) -> Result<IoVec> {
    Ok(IoVec {
        memory: UserSlice::new(buffer.addr() as u64, length),
        // SAFETY: by the caller's contract.
        region: unsafe { region_of(descriptor) }?,
    })
}

/// Segments of the application's memory, whose lengths are in units of `unit` bytes.
///
/// # Errors
/// `FI_EINVAL` for more than [`IOV_LIMIT`], and for an invalid descriptor.
///
/// # Safety
/// The list is null or has `count` segments. The list of descriptors is null or has `count`
/// descriptors, each null or of a registration that has not ended.
pub(crate) unsafe fn local_list<C: ListedSegment>(
    list: *const C,
    descriptors: *mut *mut c_void,
    count: usize,
    unit: usize,
) -> Result<Segments<IoVec>> {
    let empty = IoVec::new(UserSlice::new(0, 0));
    // SAFETY: both lists by the caller's contract.
    unsafe {
        Segments::read(list, count, unit, empty, |index, segment, length| {
            let descriptor = match descriptors.is_null() {
                true => std::ptr::null_mut(),
                false => descriptors.add(index).read(),
            };
            let memory = UserSlice::new(segment.address(), length);
            let region = region_of(descriptor)?;
            Ok(IoVec { memory, region })
        })
    }
}

/// A segment of a peer's memory.
pub(crate) fn remote(address: u64, length: u64, key: u64) -> RemoteIoVec {
    RemoteIoVec::new(address, length, RemoteKey(key))
}

/// Segments of a peer's memory, whose lengths are in units of `unit` bytes.
///
/// # Errors
/// `FI_EINVAL` for more than [`IOV_LIMIT`].
///
/// # Safety
/// The list is null or has `count` segments.
pub(crate) unsafe fn remote_list<C: ListedSegment>(
    list: *const C,
    count: usize,
    unit: usize,
) -> Result<Segments<RemoteIoVec>> {
    let convert =
        |_, segment: C, length| Ok(remote(segment.address(), length as u64, segment.key()));
    // SAFETY: the list by the caller's contract.
    unsafe { Segments::read(list, count, unit, remote(0, 0, 0), convert) }
}

/// The bytes of all segments.
pub(crate) fn length_of(segments: &[IoVec]) -> u64 {
    let lengths = segments.iter().map(|segment| segment.memory.length as u64);
    lengths.fold(0, u64::saturating_add)
}
