//! Commands for protection domains and their memory regions and address handles.

use efa_core::address::{Ahn, Gid};
use efa_core::nic::{Access, DeviceCaps};

use super::connected::REMOTE_ATOMIC;
use super::error::Error;
use super::ids::PdId;
use super::regions::{Lkey, MemoryRegion, RegionKeys};
use super::state::Device;
use crate::counters::Command;
use crate::profile::Profile;

impl Device {
    /// Creates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, Error> {
        self.command(Command::AllocPd, |device| {
            if device.pds.len() >= device.profile.max_pd as usize {
                return Err(Error::Exhausted("protection domain"));
            }
            Ok(PdId(device.pds.insert(0) as u32))
        })
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// [`Error::Busy`] while objects belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            match device.pds.get(pd.0 as usize) {
                None => Err(Error::not_found("protection domain", pd.0)),
                Some(0) => {
                    device.pds.remove(pd.0 as usize);
                    Ok(())
                }
                Some(_) => Err(Error::Busy("protection domain")),
            }
        })
    }

    pub(super) fn check_pd(&self, pd: PdId) -> Result<(), Error> {
        if self.pds.contains(pd.0 as usize) {
            Ok(())
        } else {
            Err(Error::not_found("protection domain", pd.0))
        }
    }

    pub(super) fn retain_pd(&mut self, pd: PdId) {
        if let Some(users) = self.pds.get_mut(pd.0 as usize) {
            *users += 1;
        }
    }

    pub(super) fn release_pd(&mut self, pd: PdId) {
        if let Some(users) = self.pds.get_mut(pd.0 as usize) {
            *users = users.saturating_sub(1);
        }
    }

    /// Registers memory.
    ///
    /// # Errors
    /// As [`Device::check_region`], and [`Error::Exhausted`] if there are too many regions.
    pub fn register_memory(&mut self, pd: PdId, region: MemoryRegion) -> Result<RegionKeys, Error> {
        self.command(Command::RegisterMemory, |device| {
            device.check_region(pd, &region)?;
            let keys = device.regions.insert(pd, region)?;
            device.retain_pd(pd);
            Ok(keys)
        })
    }

    /// Checks whether the device can register a region of this size and kind.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for remote access that the device's generation does not have.
    /// [`Error::Invalid`] for remote write without local write, an empty or too long region, one
    /// that wraps, and an I/O virtual address with another offset in its page. [`Error::Exhausted`]
    /// for more pages than the device has room for.
    pub fn check_region(&self, pd: PdId, region: &MemoryRegion) -> Result<(), Error> {
        const PAGE_OFFSET: u64 = Profile::PAGE - 1;
        self.check_pd(pd)?;
        let (access, profile) = (region.access, &self.profile);
        if access.contains(Access::REMOTE_READ) && !profile.caps.contains(DeviceCaps::RDMA_READ) {
            return Err(Error::Unsupported("remote read access"));
        }
        if access.contains(Access::REMOTE_WRITE) && !profile.caps.contains(DeviceCaps::RDMA_WRITE) {
            return Err(Error::Unsupported("remote write access"));
        }
        if access.contains(REMOTE_ATOMIC) && !profile.connected {
            return Err(Error::Unsupported("remote atomic access"));
        }
        if access.intersects(Access::REMOTE_WRITE | REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(Error::invalid("access without local write", access.bits()));
        }
        if region.length == 0
            || region.length > profile.max_mr_size
            || region.address.checked_add(region.length).is_none()
            || region.iova.checked_add(region.length).is_none()
        {
            return Err(Error::invalid("region length", region.length));
        }
        if region.address & PAGE_OFFSET != region.iova & PAGE_OFFSET {
            return Err(Error::invalid("I/O virtual address", region.iova));
        }
        let pages = region.pages();
        if access.contains(Access::REMOTE_WRITE) && pages > profile.max_writable_pages {
            return Err(Error::Exhausted("page that peers may write"));
        }
        if self.regions.pages() + pages > profile.max_registered_pages {
            return Err(Error::Exhausted("registered page"));
        }
        Ok(())
    }

    /// Deregisters memory. Requests that still use the region fail.
    pub fn deregister_memory(&mut self, lkey: Lkey) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let pd = device.regions.remove(lkey)?;
            device.release_pd(pd);
            Ok(())
        })
    }

    /// Creates an address handle for a GID. All handles of one GID have the same number.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the unspecified address and for multicast addresses.
    pub fn create_ah(&mut self, pd: PdId, gid: Gid) -> Result<Ahn, Error> {
        self.command(Command::CreateAh, |device| {
            device.check_pd(pd)?;
            let ahn = device.book.create(pd, gid)?;
            tracing::debug!(ahn = ahn.0, peer = %gid, "address handle made");
            device.retain_pd(pd);
            Ok(ahn)
        })
    }

    /// Destroys one handle. With the last handle of a GID its number becomes free, and requests to
    /// it that the link has not accepted fail.
    pub fn destroy_ah(&mut self, pd: PdId, ahn: Ahn) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let freed = device.book.destroy(pd, ahn)?;
            device.release_pd(pd);
            if freed {
                device.abandon_backlog(ahn);
            }
            Ok(())
        })
    }
}
