//! The mappings of the guest's memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use efa_device_model::device::queue::LentMemory;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::PAGE;

/// The most mappings, the same as QEMU's and the kernel's limits.
const MAX_MAPS: usize = 65535;

/// The reason why memory cannot be mapped or unmapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Address, offset or length are not multiples of a page, or exceed the address space.
    #[error("the map of {length:#x} bytes at {address:#x} is not made of pages")]
    NotPages {
        /// The address in the guest.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// Another mapping overlaps it.
    #[error("the map at {0:#x} covers memory that is mapped already")]
    Overlap(u64),
    /// There is no mapping with exactly these addresses.
    #[error("there is no map of {length:#x} bytes at {address:#x}")]
    NoSuchMap {
        /// The address in the guest.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// The file is shorter than the mapping.
    #[error("the file of the map at {0:#x} is too short")]
    ShortFile(u64),
    /// The most mappings exist already.
    #[error("there are {MAX_MAPS} maps already")]
    TooMany,
    /// The system call failed.
    #[error("cannot map the guest's memory: {0}")]
    System(#[from] std::io::Error),
}

impl MapError {
    /// The errno for the requester of the mapping.
    pub fn errno(&self) -> i32 {
        match self {
            MapError::NotPages { .. } | MapError::ShortFile(_) => libc::EINVAL,
            MapError::Overlap(_) => libc::EEXIST,
            MapError::NoSuchMap { .. } => libc::ENOENT,
            MapError::TooMany => libc::ENOSPC,
            MapError::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// An address of the guest is not memory, or not writable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{length} bytes at {address:#x} are not memory of the guest")]
pub struct NotMemory {
    /// The address.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// One mapping: pages of a file at an address of the guest.
pub struct Mapping {
    length: usize,
    first: NonNull<u8>,
    is_writable: bool,
    file: File,
    /// Offset of the first page in the file.
    offset: u64,
}

// SAFETY: the memory is accessed as atomics only, by any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(
        address: u64,
        length: u64,
        is_writable: bool,
        file: File,
        offset: u64,
    ) -> Result<Mapping, MapError> {
        if file.metadata()?.len() < offset + length {
            return Err(MapError::ShortFile(address));
        }
        let bytes = length as usize;
        // SAFETY: a new mapping, at an address of the system's choice.
        let first = unsafe {
            mmap(
                null_mut(),
                bytes,
                access(is_writable),
                MapFlags::SHARED,
                &file,
                offset,
            )
        };
        let first = first.map_err(std::io::Error::from)?;
        Ok(Mapping {
            length: bytes,
            first: NonNull::new(first.cast()).ok_or(MapError::ShortFile(address))?,
            is_writable,
            file,
            offset,
        })
    }

    /// The file, and the file offset of a byte of the mapping.
    pub(super) fn file_at(&self, offset: usize) -> (&File, u64) {
        (&self.file, self.offset + offset as u64)
    }

    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Number of bytes from `offset` on.
    pub(super) fn rest(&self, offset: usize) -> usize {
        self.length - offset
    }

    /// Whether this is the same mapping.
    pub(super) fn is_same(&self, other: &Mapping) -> bool {
        std::ptr::eq(self, other)
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.length);
        // SAFETY: in the mapping, which is valid as long as `self`; any byte is a valid atomic.
        unsafe { AtomicU8::from_ptr(self.first.as_ptr().add(offset)) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length);
        // SAFETY: in the mapping, which begins at a page, and aligned.
        unsafe { AtomicU32::from_ptr(self.first.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no references to it exist any more.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.length) };
    }
}

/// The protection of mapped memory.
pub(super) fn access(is_writable: bool) -> ProtFlags {
    match is_writable {
        true => ProtFlags::READ | ProtFlags::WRITE,
        false => ProtFlags::READ,
    }
}

/// The memory of a guest. A removed mapping remains while a queue or a region uses it.
#[derive(Default)]
pub struct GuestMemory {
    maps: RwLock<BTreeMap<u64, Arc<Mapping>>>,
}

impl GuestMemory {
    /// Maps pages of a file at an address of the guest.
    ///
    /// # Errors
    /// For pages that overlap another mapping, are incomplete, or are beyond the file's end.
    pub fn map(
        &self,
        address: u64,
        length: u64,
        is_writable: bool,
        file: OwnedFd,
        offset: u64,
    ) -> Result<(), MapError> {
        let is_whole = [address, length, offset]
            .iter()
            .all(|each| each.is_multiple_of(PAGE));
        let ends = [address.checked_add(length), offset.checked_add(length)];
        let is_possible = length <= isize::MAX as u64 && ends.iter().all(Option::is_some);
        if length == 0 || !is_whole || !is_possible {
            return Err(MapError::NotPages { address, length });
        }
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        if maps.len() >= MAX_MAPS {
            return Err(MapError::TooMany);
        }
        let before = maps.range(..address + length).next_back();
        if before.is_some_and(|(start, map)| start + map.length as u64 > address) {
            return Err(MapError::Overlap(address));
        }
        let map = Mapping::new(address, length, is_writable, file.into(), offset)?;
        maps.insert(address, Arc::new(map));
        Ok(())
    }

    /// Removes a mapping.
    ///
    /// # Errors
    /// There is no mapping with exactly these addresses.
    pub fn unmap(&self, address: u64, length: u64) -> Result<(), MapError> {
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        match maps.get(&address) {
            Some(map) if map.length as u64 == length => {
                maps.remove(&address);
                Ok(())
            }
            _ => Err(MapError::NoSuchMap { address, length }),
        }
    }

    /// Removes all mappings.
    pub fn clear(&self) {
        self.maps
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// The mapping of an address, and the offset of the address in it.
    pub(super) fn find(&self, address: u64) -> Option<(Arc<Mapping>, usize)> {
        let maps = self.maps.read().unwrap_or_else(PoisonError::into_inner);
        let (start, map) = maps.range(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        (offset < map.length).then(|| (Arc::clone(map), offset))
    }

    /// Calls `part` for each mapping of the bytes, with their offset in it and their range.
    fn parts(
        &self,
        address: u64,
        length: usize,
        mut part: impl FnMut(&Mapping, usize, std::ops::Range<usize>) -> bool,
    ) -> Result<(), NotMemory> {
        let missing = NotMemory {
            address,
            length: length as u64,
        };
        let mut done = 0;
        while done < length {
            let next = address.checked_add(done as u64).ok_or(missing)?;
            let (map, offset) = self.find(next).ok_or(missing)?;
            let count = map.rest(offset).min(length - done);
            if !part(&map, offset, done..done + count) {
                return Err(missing);
            }
            done += count;
        }
        Ok(())
    }

    /// Reads bytes of the guest.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), NotMemory> {
        self.parts(address, into.len(), |map, offset, range| {
            for (index, byte) in into[range].iter_mut().enumerate() {
                *byte = map.byte(offset + index).load(Ordering::Relaxed);
            }
            true
        })?;
        // Later reads must not return older values.
        std::sync::atomic::fence(Ordering::Acquire);
        Ok(())
    }

    /// Writes bytes of the guest.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), NotMemory> {
        self.parts(address, bytes.len(), |map, offset, range| {
            if !map.is_writable {
                return false;
            }
            for (index, byte) in bytes[range].iter().enumerate() {
                map.byte(offset + index).store(*byte, Ordering::Relaxed);
            }
            true
        })
    }

    /// Writes an entry to the guest, with its 4-byte word at `word` last: a guest that sees the
    /// word sees all of the entry. The entry and the word are aligned to 4.
    pub fn publish(&self, address: u64, bytes: &[u8], word: usize) -> Result<(), NotMemory> {
        let missing = NotMemory {
            address,
            length: bytes.len() as u64,
        };
        let at = address.checked_add(word as u64).ok_or(missing)?;
        let last = bytes.get(word..word + 4).ok_or(missing)?;
        let last = u32::from_le_bytes(last.try_into().map_err(|_| missing)?);
        let (map, offset) = self.find(at).ok_or(missing)?;
        if !at.is_multiple_of(4) || !map.is_writable {
            return Err(missing);
        }
        self.write(address, &bytes[..word])?;
        self.write(at + 4, &bytes[word + 4..])?;
        map.word(offset).store(last, Ordering::Release);
        Ok(())
    }

    /// Memory for a ring, in one mapping.
    ///
    /// # Errors
    /// It is not writable memory, or in two mappings.
    pub fn lend(&self, address: u64, length: u64) -> Result<LentMemory, NotMemory> {
        let missing = NotMemory { address, length };
        let (map, offset) = self.find(address).ok_or(missing)?;
        let bytes = usize::try_from(length).map_err(|_| missing)?;
        if !map.is_writable || map.rest(offset) < bytes {
            return Err(missing);
        }
        // SAFETY: `offset` is in the mapping, which has `bytes` from there on.
        let first = unsafe { map.first.add(offset) };
        // SAFETY: the mapping is valid as long as its `Arc`, and is accessed as atomics only.
        Ok(unsafe { LentMemory::new(first, bytes, map) })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// A file of this many pages, in which each byte is the number of its page.
    pub(crate) fn pages(count: u64) -> File {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, count * PAGE).unwrap();
        let file = File::from(file);
        for page in 0..count {
            file.write_all_at(&[page as u8; PAGE as usize], page * PAGE)
                .unwrap();
        }
        file
    }

    /// Memory with these mappings: address, number of pages, and whether it is writable. Each has a
    /// file of its own.
    pub(crate) fn mapped(mappings: &[(u64, u64, bool)]) -> GuestMemory {
        let memory = GuestMemory::default();
        for (address, count, is_writable) in mappings {
            let file = descriptor(&pages(*count));
            memory
                .map(*address, count * PAGE, *is_writable, file, 0)
                .unwrap();
        }
        memory
    }

    pub(crate) fn descriptor(file: &File) -> OwnedFd {
        file.try_clone().unwrap().into()
    }

    #[test]
    fn bytes_are_those_of_the_mapped_pages() {
        let file = pages(4);
        let memory = GuestMemory::default();
        // Two adjacent mappings, in the opposite order of the file.
        memory
            .map(0x10000, 2 * PAGE, true, descriptor(&file), 2 * PAGE)
            .unwrap();
        memory
            .map(0x12000, 2 * PAGE, true, descriptor(&file), 0)
            .unwrap();
        let mut bytes = [9; 4];
        memory.read(0x10fff, &mut bytes[..2]).unwrap();
        memory.read(0x11fff, &mut bytes[2..]).unwrap();
        assert_eq!(bytes, [2, 3, 3, 0]);
        memory.write(0x11ffe, &[7, 7, 8]).unwrap();
        let mut found = [0; 2];
        file.read_exact_at(&mut found, 4 * PAGE - 2).unwrap();
        assert_eq!(found, [7, 7]);
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, [8, 0]);
    }

    #[test]
    fn unmapped_memory_is_an_error() {
        let memory = mapped(&[(0x10000, 1, true), (0x20000, 1, false)]);
        for address in [0, 0xffff, 0x10ffd, 0x11000, 0x20ffd, u64::MAX, u64::MAX - 2] {
            assert!(memory.read(address, &mut [0; 4]).is_err(), "{address:#x}");
            assert!(memory.write(address, &[0; 4]).is_err(), "{address:#x}");
            assert!(memory.publish(address, &[0; 8], 0).is_err(), "{address:#x}");
            assert!(memory.lend(address, 64).is_err(), "{address:#x}");
        }
        assert!(memory.read(0x20000, &mut [0; 4]).is_ok());
        assert!(memory.write(0x20000, &[0; 4]).is_err(), "it is read only");
        assert!(memory.lend(0x20000, 64).is_err(), "it is read only");
        assert!(memory.lend(0x10000, PAGE).is_ok());
        assert!(memory.lend(0x10000, PAGE + 1).is_err());
        assert!(memory.lend(0x10000, u64::MAX).is_err());
        assert!(memory.publish(0x10001, &[0; 8], 0).is_err(), "not aligned");
    }

    #[test]
    fn maps_are_whole_pages_apart_from_each_other() {
        let file = pages(2);
        let memory = GuestMemory::default();
        let map =
            |address, length, offset| memory.map(address, length, true, descriptor(&file), offset);
        map(0x10000, 2 * PAGE, 0).unwrap();
        for (address, length, offset) in [
            (0x11000, PAGE, 0),
            (0xf000, 2 * PAGE, 0),
            (0x10000, PAGE, 0),
            (0x20000, 0, 0),
            (0x20800, PAGE, 0),
            (0x20000, PAGE + 1, 0),
            (0x20000, PAGE, 1),
            (0x20000, 3 * PAGE, 0),
            (0x20000, PAGE, 2 * PAGE),
            (u64::MAX - PAGE + 1, PAGE, 0),
            (0x20000, 1 << 63, 0),
            (0x20000, PAGE, u64::MAX - PAGE + 1),
        ] {
            assert!(
                map(address, length, offset).is_err(),
                "{length:#x} at {address:#x}"
            );
        }
        assert!(memory.unmap(0x10000, PAGE).is_err());
        assert!(memory.unmap(0x11000, PAGE).is_err());
        memory.unmap(0x10000, 2 * PAGE).unwrap();
        assert!(memory.read(0x10000, &mut [0]).is_err());
        map(0x11000, PAGE, 0).unwrap();
    }

    #[test]
    fn lent_memory_outlives_its_map() {
        let memory = mapped(&[(0, 1, true)]);
        let (map, _) = memory.find(0).unwrap();
        let lent = memory.lend(64, 64).unwrap();
        memory.unmap(0, PAGE).unwrap();
        assert_eq!(Arc::strong_count(&map), 2);
        drop(lent);
        assert_eq!(Arc::strong_count(&map), 1);
    }
}
