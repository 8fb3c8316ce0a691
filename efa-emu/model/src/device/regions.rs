//! Memory regions and their keys.
//!
//! A key is a slot number and a generation. A reused slot gets new keys, so a request with an old
//! key is refused instead of accessing another region. Slots are reused in the order in which they
//! became free, so an old key does not become valid again soon.

use std::collections::VecDeque;

use efa_core::nic::{Access, Status};

use super::error::Error;
use super::ids::PdId;
use crate::link::HostSegment;
use crate::prefetch;
use crate::profile::{Profile, Statuses};

const SLOT_BITS: u32 = 18;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
const LKEY_GENERATIONS: u32 = 1 << (24 - SLOT_BITS);

/// The key of a region for local work requests: 24 bits, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lkey(pub u32);

/// The key of a region for peers' RDMA requests: 32 bits, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rkey(pub u32);

/// Memory to be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRegion {
    /// The first byte, in the address space of the process or of the simulated host.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The address of the first byte for work requests and peers; usually `address`.
    pub iova: u64,
    /// The access that is allowed.
    pub access: Access,
}

impl MemoryRegion {
    /// Memory whose address is also the one for work requests and peers.
    pub const fn new(address: u64, length: u64, access: Access) -> Self {
        MemoryRegion {
            address,
            length,
            iova: address,
            access,
        }
    }

    /// The number of pages that it touches.
    pub(super) fn pages(&self) -> u64 {
        (self.address % Profile::PAGE + self.length).div_ceil(Profile::PAGE)
    }
}

/// The keys of a registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionKeys {
    /// For local work requests.
    pub lkey: Lkey,
    /// For peers.
    pub rkey: Rkey,
}

struct RegionSlot {
    /// The number of times that the slot was used. The keys contain its lower bits.
    generation: u32,
    region: Option<(PdId, MemoryRegion)>,
}

/// The device's memory regions.
pub(super) struct RegionTable {
    slots: Vec<RegionSlot>,
    free: VecDeque<u32>,
    limit: u32,
    live: u32,
    /// Pages of all regions.
    pages: u64,
}

/// While the table may grow, free slots are reused only if there are at least this many.
const MIN_FREE: usize = 64;

impl RegionTable {
    pub(super) fn new(limit: u32) -> Self {
        RegionTable {
            slots: Vec::new(),
            free: VecDeque::new(),
            limit: limit.min(1 << SLOT_BITS),
            live: 0,
            pages: 0,
        }
    }

    /// Pages of all regions.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Prefetches the entry of the oldest region, which is often the only one.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch::for_write(self.slots.as_ptr().cast());
    }

    pub(super) fn insert(&mut self, pd: PdId, region: MemoryRegion) -> Result<RegionKeys, Error> {
        if self.live >= self.limit {
            return Err(Error::Exhausted("memory region"));
        }
        let may_grow = self.slots.len() < self.limit as usize;
        let slot = match self.free.pop_front() {
            Some(slot) if !may_grow || self.free.len() >= MIN_FREE => slot,
            kept => {
                if let Some(slot) = kept {
                    self.free.push_front(slot);
                }
                self.slots.push(RegionSlot {
                    generation: 0,
                    region: None,
                });
                (self.slots.len() - 1) as u32
            }
        };
        let entry = &mut self.slots[slot as usize];
        // Generation 0 is skipped in both keys, so no key is 0.
        entry.generation = entry.generation.wrapping_add(1);
        while lkey_generation(entry.generation) == 0 {
            entry.generation = entry.generation.wrapping_add(1);
        }
        entry.region = Some((pd, region));
        self.live += 1;
        self.pages += region.pages();
        Ok(RegionKeys {
            lkey: Lkey(slot | lkey_generation(entry.generation) << SLOT_BITS),
            rkey: Rkey(slot | entry.generation << SLOT_BITS),
        })
    }

    /// Removes the region with this local key.
    pub(super) fn remove(&mut self, lkey: Lkey) -> Result<PdId, Error> {
        let slot = lkey.0 & SLOT_MASK;
        let missing = Error::not_found("memory region with lkey", lkey.0);
        let entry = self.slots.get_mut(slot as usize).ok_or(missing)?;
        if lkey_generation(entry.generation) != lkey.0 >> SLOT_BITS {
            return Err(missing);
        }
        let (pd, region) = entry.region.take().ok_or(missing)?;
        self.free.push_back(slot);
        self.live -= 1;
        self.pages -= region.pages();
        Ok(pd)
    }

    /// The address of a local work request's buffer in the process, if `lkey` is a region of `pd`
    /// that covers the buffer and allows `access`.
    #[inline(always)]
    pub(super) fn local(
        &self,
        pd: PdId,
        lkey: u32,
        address: u64,
        length: u32,
        access: Access,
    ) -> Option<HostSegment> {
        let entry = self.slots.get((lkey & SLOT_MASK) as usize)?;
        if lkey_generation(entry.generation) != lkey >> SLOT_BITS {
            return None;
        }
        resolve(entry.region.as_ref()?, pd, address, length, access)
    }

    /// The address of a peer's RDMA range in the process, under the same conditions.
    #[inline]
    pub(super) fn remote(
        &self,
        pd: PdId,
        rkey: u32,
        address: u64,
        length: u32,
        access: Access,
    ) -> Option<HostSegment> {
        let entry = self.slots.get((rkey & SLOT_MASK) as usize)?;
        if entry.generation << SLOT_BITS != rkey & !SLOT_MASK {
            return None;
        }
        resolve(entry.region.as_ref()?, pd, address, length, access)
    }
}

/// The reason why a peer cannot access memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RegionAccessError {
    UnknownKey,
    OutsideRegion,
    ForbiddenAccess,
}

impl RegionAccessError {
    pub(super) fn status(self, statuses: &Statuses) -> Status {
        match self {
            RegionAccessError::UnknownKey => statuses.unknown_key,
            RegionAccessError::OutsideRegion => statuses.outside_region,
            RegionAccessError::ForbiddenAccess => statuses.forbidden_access,
        }
    }
}

impl RegionTable {
    /// The reason why [`RegionTable::remote`] has returned `None`.
    #[cold]
    pub(super) fn why_not(
        &self,
        pd: PdId,
        rkey: u32,
        address: u64,
        length: u32,
    ) -> RegionAccessError {
        let nothing = Access::empty();
        match self.slots.get((rkey & SLOT_MASK) as usize) {
            Some(RegionSlot {
                generation,
                region: Some(region),
            }) if generation << SLOT_BITS == rkey & !SLOT_MASK && region.0 == pd => {
                match resolve(region, pd, address, length, nothing) {
                    None => RegionAccessError::OutsideRegion,
                    Some(_) => RegionAccessError::ForbiddenAccess,
                }
            }
            _ => RegionAccessError::UnknownKey,
        }
    }
}

#[inline(always)]
fn lkey_generation(generation: u32) -> u32 {
    generation % LKEY_GENERATIONS
}

#[inline(always)]
fn resolve(
    (owner, region): &(PdId, MemoryRegion),
    pd: PdId,
    address: u64,
    length: u32,
    access: Access,
) -> Option<HostSegment> {
    let offset = address.checked_sub(region.iova)?;
    let end = offset.checked_add(u64::from(length))?;
    (*owner == pd && end <= region.length && region.access.contains(access))
        .then_some(HostSegment::new(region.address + offset, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(3);

    fn region(access: Access) -> MemoryRegion {
        MemoryRegion {
            address: 0x7000_1000,
            length: 0x100,
            iova: 0x9000_1000,
            access,
        }
    }

    #[test]
    fn keys_fit_are_nonzero_and_recur_late() {
        let mut table = RegionTable::new(4);
        let mut seen = std::collections::HashSet::new();
        // Four slots with 63 generations each.
        for _ in 0..4 * 63 {
            let keys = table.insert(PD, region(Access::empty())).unwrap();
            assert!(keys.lkey.0 != 0 && keys.lkey.0 < 1 << 24, "{keys:?}");
            assert!(keys.rkey.0 != 0, "{keys:?}");
            assert!(seen.insert(keys.lkey), "{keys:?} came back");
            assert_eq!(table.remove(keys.lkey), Ok(PD));
            assert!(table.remove(keys.lkey).is_err());
        }
    }

    #[test]
    fn the_limit_is_enomem() {
        let mut table = RegionTable::new(2);
        let first = table.insert(PD, region(Access::empty())).unwrap();
        table.insert(PD, region(Access::empty())).unwrap();
        let full = table.insert(PD, region(Access::empty())).unwrap_err();
        assert_eq!(full.errno(), libc::ENOMEM);
        table.remove(first.lkey).unwrap();
        table.insert(PD, region(Access::empty())).unwrap();
    }

    #[test]
    fn keys_reach_exactly_the_registered_bytes() {
        let mut table = RegionTable::new(16);
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let keys = table.insert(PD, region(access)).unwrap();
        let iova = 0x9000_1000;
        let local = |pd, lkey, address, length, access| {
            table
                .local(pd, lkey, address, length, access)
                .map(|segment| segment.address)
        };
        let write = Access::LOCAL_WRITE;
        let lkey = keys.lkey.0;
        assert_eq!(local(PD, lkey, iova, 0x100, write), Some(0x7000_1000));
        assert_eq!(local(PD, lkey, iova + 0xff, 1, write), Some(0x7000_10ff));
        assert_eq!(local(PD, lkey, iova + 1, 0x100, write), None);
        assert_eq!(local(PD, lkey, iova - 1, 1, write), None);
        assert_eq!(local(PD, lkey, iova + 0x101, 0, write), None);
        assert_eq!(local(PD, lkey, u64::MAX, u32::MAX, write), None);
        assert_eq!(local(PdId(4), lkey, iova, 1, write), None);
        assert_eq!(local(PD, lkey ^ 1 << 18, iova, 1, write), None);
        assert_eq!(local(PD, lkey + 1, iova, 1, write), None);
        let remote = |rkey, access| table.remote(PD, rkey, iova, 8, access).is_some();
        assert!(remote(keys.rkey.0, Access::REMOTE_READ));
        assert!(!remote(keys.rkey.0, Access::REMOTE_WRITE));
        assert!(!remote(keys.rkey.0 ^ 1 << 31, Access::REMOTE_READ));
    }
}
