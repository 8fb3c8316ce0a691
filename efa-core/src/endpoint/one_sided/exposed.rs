//! Memory of the application that peers may name in their requests.

use hashbrown::HashMap;

use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{IOV_LIMIT, IoVec};
use crate::endpoint::memory::iov::Iov;
use crate::nic::{Access, DeviceCaps, Domain, Region, UserSlice};
use crate::wire::RmaIovs;

/// A registered region, and the access that peers have.
#[derive(Clone, Copy, Debug)]
struct ExposedRegion {
    memory: UserSlice,
    access: Access,
    region: Region,
}

/// Registered memory, by remote key.
#[derive(Default)]
pub(crate) struct ExposedRegions(HashMap<u64, ExposedRegion>);

/// A region that peers may no longer access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WithdrawnRegion {
    memory: UserSlice,
    region: Region,
}

/// Returns whether `outer` covers the bytes from `address` on.
fn covers(outer: UserSlice, address: u64, length: u64) -> bool {
    let ends = (
        address.checked_add(length),
        outer.address.checked_add(outer.length as u64),
    );
    matches!(ends, (Some(end), Some(limit)) if address >= outer.address && end <= limit)
}

/// Returns whether two pieces of memory have a byte in common.
fn overlap(a: UserSlice, b: UserSlice) -> bool {
    let end = |memory: UserSlice| memory.address.saturating_add(memory.length as u64);
    a.address < end(b) && b.address < end(a)
}

impl ExposedRegions {
    /// Registers memory, and records the access of peers. The registration on the device includes
    /// only the access that it supports; the rest is emulated.
    ///
    /// # Errors
    /// The device refuses.
    pub(crate) fn register(
        &mut self,
        nic: &mut impl Domain,
        memory: UserSlice,
        access: Access,
    ) -> Result<Region, EndpointError> {
        let caps = nic.attributes().caps;
        let mut by_device = access;
        if !caps.contains(DeviceCaps::RDMA_READ) {
            by_device -= Access::REMOTE_READ;
        }
        if !caps.contains(DeviceCaps::RDMA_WRITE) {
            by_device -= Access::REMOTE_WRITE;
        }
        let region = nic.register(memory, by_device)?;
        self.insert(memory, access, region);
        Ok(region)
    }

    fn insert(&mut self, memory: UserSlice, access: Access, region: Region) {
        let entry = ExposedRegion {
            memory,
            access,
            region,
        };
        self.0.insert(region.remote_key.0, entry);
    }

    /// The local memory that a peer's request names, if the keys allow this access to all of it.
    pub(crate) fn memory(&self, pieces: &RmaIovs, access: Access) -> Option<Iov> {
        let mut found = [IoVec::new(UserSlice::new(0, 0)); IOV_LIMIT];
        let pieces = pieces.as_slice();
        for (piece, found) in pieces.iter().zip(&mut found) {
            let entry = self.0.get(&piece.key())?;
            if !covers(entry.memory, piece.addr(), piece.len()) || !entry.access.contains(access) {
                return None;
            }
            // A region without local write access cannot be the target of a write by the device.
            let is_useful =
                access == Access::REMOTE_READ || entry.access.contains(Access::LOCAL_WRITE);
            *found = IoVec {
                memory: UserSlice::new(piece.addr(), usize::try_from(piece.len()).ok()?),
                region: is_useful.then_some(entry.region),
            };
        }
        Iov::new(&found[..pieces.len()]).ok()
    }

    /// Removes a region. `None` if it was not exposed.
    pub(crate) fn withdraw(&mut self, region: Region) -> Option<WithdrawnRegion> {
        let ExposedRegion { memory, region, .. } = self.0.remove(&region.remote_key.0)?;
        Some(WithdrawnRegion { memory, region })
    }

    /// Returns whether the withdrawal of a region ends a peer's operation on these pieces: it uses
    /// the region, or no other region permits its access.
    pub(crate) fn loses(&self, withdrawn: &WithdrawnRegion, pieces: &Iov, access: Access) -> bool {
        let is_exposed = |piece: UserSlice| {
            self.0.values().any(|entry| {
                entry.access.contains(access)
                    && covers(entry.memory, piece.address, piece.length as u64)
            })
        };
        pieces.as_slice().iter().any(|piece| {
            overlap(piece.memory, withdrawn.memory)
                && (piece.region == Some(withdrawn.region) || !is_exposed(piece.memory))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::{LocalKey, RemoteKey};
    use crate::wire::RmaIov;

    fn slice(address: u64, length: usize) -> UserSlice {
        UserSlice { address, length }
    }

    fn region(key: u64) -> Region {
        Region {
            local_key: LocalKey(key as u32),
            remote_key: RemoteKey(key),
        }
    }

    fn pieces(address: u64, length: u64, key: u64) -> RmaIovs {
        RmaIovs::first_of([RmaIov::new(address, length, key)])
    }

    #[test]
    fn a_key_permits_its_region_and_access_only() {
        let mut exposed = ExposedRegions::default();
        exposed.insert(slice(1000, 100), Access::REMOTE_READ, region(7));
        let read = Access::REMOTE_READ;
        assert!(exposed.memory(&pieces(1000, 100, 7), read).is_some());
        assert!(exposed.memory(&pieces(1100, 0, 7), read).is_some());
        for (address, length, key) in [
            (999, 1, 7),
            (1099, 2, 7),
            (u64::MAX, 2, 7),
            (1000, u64::MAX, 7),
            (1000, 1, 8),
        ] {
            let found = exposed.memory(&pieces(address, length, key), read);
            assert_eq!(found, None, "{address} + {length} by {key}");
        }
        let write = Access::REMOTE_WRITE;
        assert_eq!(exposed.memory(&pieces(1000, 1, 7), write), None);
    }

    #[test]
    fn a_read_only_region_is_not_a_target() {
        let mut exposed = ExposedRegions::default();
        let write = Access::REMOTE_WRITE;
        exposed.insert(slice(1000, 100), write, region(7));
        exposed.insert(slice(2000, 100), write | Access::LOCAL_WRITE, region(8));
        let region_of = |exposed: &ExposedRegions, address, key| {
            let found = exposed.memory(&pieces(address, 1, key), write).unwrap();
            found.as_slice()[0].region
        };
        assert_eq!(region_of(&exposed, 1000, 7), None);
        assert_eq!(region_of(&exposed, 2000, 8), Some(region(8)));
    }

    #[test]
    fn operations_keep_memory_that_another_region_covers() {
        let mut exposed = ExposedRegions::default();
        let read = Access::REMOTE_READ;
        exposed.insert(slice(1000, 100), read, region(7));
        exposed.insert(slice(1050, 100), read, region(8));
        let gone = exposed.withdraw(region(7)).unwrap();
        assert_eq!(exposed.withdraw(region(7)), None);
        let piece = |address, length, region| {
            Iov::One(IoVec {
                memory: slice(address, length),
                region,
            })
        };
        let loses = |iov| exposed.loses(&gone, &iov, read);
        assert!(loses(piece(1000, 10, None)));
        assert!(!loses(piece(1050, 50, None)));
        // The device works with the region itself.
        assert!(loses(piece(1050, 50, Some(region(7)))));
        assert!(!loses(piece(1100, 10, None)));
    }
}
