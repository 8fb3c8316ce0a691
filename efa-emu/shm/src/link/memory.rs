//! Copies between registered memory of this process, rings, and the memory of other processes.
//!
//! # Safety of addresses
//! The device hands out [`HostSegment`]s only for memory that its client has registered and not
//! deregistered, after checking keys and bounds. By registering memory the client promises that it
//! stays mapped and that the device may read it, and write it where the access flags permit this.
//! Every `unsafe` block here relies on this contract.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_core::nic::Status;

use crate::process::shared::SharedMemory;
use efa_device_model::link::{HostSegment, LocalData};
use efa_device_model::prefetch::{self, CACHE_LINE};

/// Bytes of a request's data: `length` of them from `offset` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

impl Window {
    #[inline(always)]
    pub(crate) fn end(self) -> u32 {
        self.offset.saturating_add(self.length)
    }

    /// The part of a copy of `segment` in this window: the offset in the data, and the part of the
    /// segment. The segment contains the request's data from `offset` on.
    #[inline(always)]
    pub(crate) fn part_of(self, offset: u32, segment: HostSegment) -> Option<(u32, HostSegment)> {
        let start = self.offset.max(offset);
        let end = self.end().min(offset.saturating_add(segment.length));
        (start < end).then(|| {
            let part = HostSegment::new(segment.address + u64::from(start - offset), end - start);
            (start, part)
        })
    }
}

/// The parts of `segments` that contain the bytes of `window`, in order.
#[inline(always)]
pub(crate) fn parts(
    segments: &[HostSegment],
    window: Window,
) -> impl Iterator<Item = (u32, HostSegment)> + '_ {
    let mut offset = 0u32;
    segments.iter().filter_map(move |segment| {
        let part = window.part_of(offset, *segment);
        offset = offset.saturating_add(segment.length);
        part
    })
}

/// Gathers a request's local data into a ring at `at`.
#[inline(always)]
pub(crate) fn gather(ring: &SharedMemory, at: usize, data: LocalData<'_>) {
    match data {
        LocalData::Segments([only]) => store_into(ring, at, *only),
        _ => gather_others(ring, at, data),
    }
}

#[inline(never)]
fn gather_others(ring: &SharedMemory, mut at: usize, data: LocalData<'_>) {
    match data {
        LocalData::Inline(bytes) => ring.write(at, bytes),
        LocalData::Segments(segments) => {
            for segment in segments {
                store_into(ring, at, *segment);
                at += segment.length as usize;
            }
        }
        LocalData::Packet {
            head,
            segments,
            padding,
        } => {
            ring.write(at, head);
            at += head.len();
            for segment in segments {
                store_into(ring, at, *segment);
                at += segment.length as usize;
            }
            if padding > 0 {
                ring.write(at, &[0; 3][..padding.min(3)]);
            }
        }
    }
}

/// Gathers the bytes of `window` of a request's local data into a ring at `at`.
pub(crate) fn gather_part(
    ring: &SharedMemory,
    at: usize,
    segments: &[HostSegment],
    window: Window,
) {
    for (offset, part) in parts(segments, window) {
        let at = at + (offset - window.offset) as usize;
        store_into(ring, at, part);
    }
}

/// Scatters ring bytes at `at` to the places in `segments` for the bytes of `window`.
pub(crate) fn scatter(ring: &SharedMemory, at: usize, segments: &[HostSegment], window: Window) {
    for (offset, part) in parts(segments, window) {
        copy_out(ring, at + (offset - window.offset) as usize, part);
    }
}

/// Copies ring bytes at `at` into registered memory.
#[inline]
pub(crate) fn copy_out(ring: &SharedMemory, at: usize, to: HostSegment) {
    // SAFETY: the device named this memory; see the module documentation.
    unsafe { ring.read_into(at, to.address, to.length as usize) };
}

/// Copies registered memory into a ring at `at`.
#[inline]
pub(crate) fn store_into(ring: &SharedMemory, at: usize, from: HostSegment) {
    // SAFETY: the device named this memory; see the module documentation.
    unsafe { ring.write_from(at, from.address, from.length as usize) };
}

/// Copies bytes of a request's local data, from `offset` on, into `into`; false if it has fewer.
pub(crate) fn copy_in(data: LocalData<'_>, offset: u32, into: &mut [u8]) -> bool {
    match data {
        LocalData::Inline(bytes) => {
            let from = bytes
                .get(offset as usize..)
                .and_then(|bytes| bytes.get(..into.len()));
            from.map(|from| into.copy_from_slice(from)).is_some()
        }
        LocalData::Segments(segments) => copy_from(segments, offset, into) == into.len(),
        LocalData::Packet { head, segments, .. } => {
            let own = head.get(offset as usize..).unwrap_or_default();
            let own = &own[..own.len().min(into.len())];
            let (front, rest) = into.split_at_mut(own.len());
            front.copy_from_slice(own);
            let behind = offset.saturating_sub(head.len() as u32);
            let copied = copy_from(segments, behind, rest);
            // The padding of zeroes.
            rest[copied..].fill(0);
            true
        }
    }
}

/// Copies registered memory, from `offset` on, to `into`, as far as there is any. Returns the
/// number of bytes.
fn copy_from(segments: &[HostSegment], offset: u32, into: &mut [u8]) -> usize {
    let window = Window {
        offset,
        length: into.len() as u32,
    };
    let mut copied = 0;
    for (_, part) in parts(segments, window) {
        let into = &mut into[copied..][..part.length as usize];
        // SAFETY: the device named this memory; see the module documentation.
        unsafe {
            std::ptr::copy(part.address as *const u8, into.as_mut_ptr(), into.len());
        }
        copied += into.len();
    }
    copied
}

/// The number of cache lines before a buffer that are prefetched with it. Clients store metadata of
/// a buffer there (libfabric its packet entries), and read it as soon as a message arrives.
const LINES_IN_FRONT: u64 = 3;

/// Maximum number of bytes of a buffer that are prefetched; the processor itself detects longer
/// runs.
const FETCHED: u64 = 512;

/// Prefetches registered memory that is going to be written into this processor's caches.
pub(crate) fn fetch_near(buffer: HostSegment) {
    let line = CACHE_LINE as u64;
    let start = (buffer.address & !(line - 1)).wrapping_sub(LINES_IN_FRONT * line);
    let end = buffer.address + u64::from(buffer.length).min(FETCHED);
    for address in (start..end).step_by(CACHE_LINE) {
        prefetch::for_write(std::ptr::without_provenance(address as usize));
    }
}

/// Writes bytes into registered memory.
pub(crate) fn fill(to: u64, bytes: &[u8]) {
    // SAFETY: the device named this memory; see the module documentation.
    unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, bytes.len()) };
}

/// Replaces a word of registered memory, whose address is a multiple of 8, by the result of
/// `change`. Returns the old value.
pub(crate) fn update(at: u64, change: &dyn Fn(u64) -> u64) -> u64 {
    // SAFETY: the device named this memory; see the module documentation. It is aligned by
    // contract. Concurrent writers use atomic operations, or their writes are overwritten by the
    // device.
    let word = unsafe { AtomicU64::from_ptr(at as *mut u64) };
    let changed = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
        Some(change(word))
    });
    changed.unwrap_or_else(|word| word)
}

/// The direction of a copy between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From the peer's process into this one.
    FromPeer,
    /// From this process into the peer's.
    ToPeer,
}

/// The reason why a copy between processes did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyError {
    /// The system does not permit this process to access the peer's memory, or this process has no
    /// number for the peer.
    Forbidden,
    /// The peer's process has ended.
    Gone,
    /// The peer's memory is not mapped.
    PeerFault,
    /// This process's memory is not mapped.
    OwnFault,
}

impl CopyError {
    /// The status that a transfer reports to the device. The device attributes `LocalInvalidLkey`
    /// to the memory of its own host, and every other status to the initiator.
    pub(crate) fn status(self) -> Status {
        match self {
            CopyError::OwnFault => Status::LocalInvalidLkey,
            CopyError::PeerFault | CopyError::Forbidden | CopyError::Gone => Status::RemoteAbort,
        }
    }
}

/// Copies between `own` memory and the parts of `theirs` (memory of process `pid`) that contain the
/// request's data from `offset` on.
///
/// Unmapped memory on either side is an error and not a crash: the kernel checks both. A live
/// process without a number in this pid namespace (`pid` is 0; containers that share memory but not
/// their process numbers) causes [`CopyError::Forbidden`], because the kernel's `ESRCH` would not
/// distinguish it from a dead process.
pub(crate) fn copy_between(
    pid: i32,
    direction: Direction,
    own: HostSegment,
    theirs: &[HostSegment],
    offset: u32,
) -> Result<(), CopyError> {
    if pid == 0 {
        return Err(CopyError::Forbidden);
    }
    let window = Window {
        offset,
        length: own.length,
    };
    for (start, part) in parts(theirs, window) {
        let mut address = own.address + u64::from(start - offset);
        let mut remaining = part;
        while remaining.length > 0 {
            let copied = copy_some(pid, direction, address, remaining)?;
            address += copied;
            remaining.address += copied;
            remaining.length -= copied as u32;
        }
    }
    Ok(())
}

/// Makes one system call. Returns the number of bytes that it moved, at least 1.
fn copy_some(
    pid: i32,
    direction: Direction,
    own: u64,
    theirs: HostSegment,
) -> Result<u64, CopyError> {
    let length = theirs.length as usize;
    match transfer(pid, direction, own, theirs.address, length) {
        Ok(copied) if copied > 0 => Ok(copied),
        Ok(_) => Err(CopyError::Gone),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::ESRCH) => CopyError::Gone,
            Some(libc::EFAULT) => {
                // No byte was moved, so the fault is at the first byte of one of the sides.
                let mut byte = 0u8;
                let probe = (&raw mut byte) as u64;
                match transfer(pid, Direction::FromPeer, probe, theirs.address, 1) {
                    Ok(_) if direction == Direction::FromPeer => CopyError::OwnFault,
                    // A readable page may still refuse to be written.
                    Ok(_) => {
                        let own_pid = std::process::id() as i32;
                        match transfer(own_pid, Direction::FromPeer, probe, own, 1) {
                            Ok(_) => CopyError::PeerFault,
                            Err(_) => CopyError::OwnFault,
                        }
                    }
                    Err(_) => CopyError::PeerFault,
                }
            }
            // EPERM: not permitted (ptrace scope, containers). ENOSYS: not built in, or filtered.
            _ if pid == std::process::id() as i32 => {
                copy_within(direction, own, theirs.address, length);
                return Ok(length as u64);
            }
            _ => CopyError::Forbidden,
        }),
    }
}

/// Copies where initiator and target are this process, and the system calls are not permitted.
/// Unmapped memory causes a fault here, as with copies through rings.
fn copy_within(direction: Direction, own: u64, theirs: u64, length: usize) {
    let (from, to) = match direction {
        Direction::FromPeer => (theirs, own),
        Direction::ToPeer => (own, theirs),
    };
    // SAFETY: both are registered memory of this process (see the module documentation), which an
    // initiator has not withdrawn, and may overlap.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, length) };
}

fn transfer(
    pid: i32,
    direction: Direction,
    own: u64,
    theirs: u64,
    length: usize,
) -> io::Result<u64> {
    let local = libc::iovec {
        iov_base: own as *mut libc::c_void,
        iov_len: length,
    };
    let remote = libc::iovec {
        iov_base: theirs as *mut libc::c_void,
        iov_len: length,
    };
    // SAFETY: `own` is registered memory (see the module documentation) or a local variable. The
    // other process agrees to accesses to its memory: it named the memory in its request and has
    // not withdrawn it (the claim word of the record).
    let result = unsafe {
        match direction {
            Direction::FromPeer => libc::process_vm_readv(pid, &local, 1, &remote, 1, 0),
            Direction::ToPeer => libc::process_vm_writev(pid, &local, 1, &remote, 1, 0),
        }
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(bytes: &[u8]) -> HostSegment {
        HostSegment::new(bytes.as_ptr() as u64, bytes.len() as u32)
    }

    #[test]
    fn windows_cut_segments() {
        let list = [HostSegment::new(1000, 10), HostSegment::new(2000, 10)];
        let window = Window {
            offset: 5,
            length: 8,
        };
        let cut: Vec<_> = parts(&list, window).collect();
        assert_eq!(
            cut,
            [
                (5, HostSegment::new(1005, 5)),
                (10, HostSegment::new(2000, 3)),
            ]
        );
        assert_eq!(
            parts(
                &list,
                Window {
                    offset: 20,
                    length: 5
                }
            )
            .count(),
            0
        );
        assert_eq!(
            parts(
                &list,
                Window {
                    offset: 3,
                    length: 0
                }
            )
            .count(),
            0
        );
    }

    #[test]
    fn copies_between_processes_cross_segments_and_report_faults() {
        // The calling process plays both sides.
        let pid = std::process::id() as i32;
        let first = vec![1u8; 5000];
        let second = vec![2u8; 5000];
        let mut own = vec![0u8; 6000];
        let theirs = [segment(&first), segment(&second)];
        let target = HostSegment::new(own.as_mut_ptr() as u64, 6000);
        copy_between(pid, Direction::FromPeer, target, &theirs, 2000).unwrap();
        assert!(own[..3000].iter().all(|byte| *byte == 1));
        assert!(own[3000..].iter().all(|byte| *byte == 2));

        let unmapped = HostSegment::new(4096, 6000);
        for direction in [Direction::FromPeer, Direction::ToPeer] {
            assert_eq!(
                copy_between(pid, direction, target, &[unmapped], 0),
                Err(CopyError::PeerFault)
            );
            assert_eq!(
                copy_between(pid, direction, unmapped, &theirs, 0),
                Err(CopyError::OwnFault)
            );
        }
        // No process has this number: it is beyond the kernel's limit.
        assert_eq!(
            copy_between(i32::MAX, Direction::FromPeer, target, &theirs, 0),
            Err(CopyError::Gone)
        );
        assert_eq!(
            copy_between(0, Direction::FromPeer, target, &theirs, 0),
            Err(CopyError::Forbidden)
        );
    }
}
