//! Memory regions.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use efa_core::nic::Access;
use efa_device_model::device::{Lkey, MemoryRegion as Registration};

use super::domain::Domain;
use super::handle::{CStruct, Handle, handle};
use super::liveness::Liveness;
use super::mapping::Mapping;
use crate::abi::{ibv_mr, verbs_mr};
use crate::ffi::errno::Errno;

/// A registered region.
pub(crate) struct MemoryRegion {
    c: CStruct<verbs_mr>,
    pub(crate) domain: Arc<Domain>,
    lkey: Lkey,
    liveness: Liveness,
    /// The addresses of the memory in this process.
    addresses: Range<u64>,
    /// The mapping that was made for the region.
    mapping: Mutex<Option<Mapping>>,
}

handle!(MemoryRegion, ibv_mr);

/// The parts of a region that are visible to programs, besides its keys.
pub(crate) struct VisibleAttributes {
    pub(crate) address: *mut c_void,
    pub(crate) mr_type: c_int,
    pub(crate) flags: u32,
}

/// Faults the pages of a region in, as pinning them for a real device does. Libraries rely on it:
/// libfabric 1.11 watches registered ranges with userfaultfd and never answers a fault on a missing
/// page, so the first access to it would wait forever.
fn populate(region: Registration) -> Result<(), Errno> {
    // SAFETY: the call takes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
    let start = region.address - region.address % page;
    let end = region
        .address
        .checked_add(region.length)
        .ok_or(Errno::FAULT)?;
    let advice = if region
        .access
        .intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE)
    {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    // SAFETY: the advice changes no contents, for any range.
    let advise =
        |length| match unsafe { libc::madvise(start as usize as *mut c_void, length, advice) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        };
    let length = (end - start) as usize;
    match advise(length).map_err(Errno::number) {
        // The memory is not mapped.
        Err(libc::ENOMEM | libc::EFAULT) => Err(Errno::FAULT),
        // The memory is not mapped for this access, or cannot be pinned. But Linux before 5.14 does
        // not support the advice, not even for an empty range.
        Err(libc::EINVAL) if advise(0).is_ok() => Err(Errno::FAULT),
        _ => Ok(()),
    }
}

impl MemoryRegion {
    /// Registers memory; `mapping` is kept if the memory was mapped for the region.
    pub(crate) fn register(
        domain: Arc<Domain>,
        registration: Registration,
        shown: &VisibleAttributes,
        mapping: Option<Mapping>,
    ) -> Result<Arc<MemoryRegion>, Errno> {
        let hardware = domain.context.hardware()?;
        // Memory that the device refuses is not faulted in: it may exceed the memory of the
        // machine.
        if hardware
            .with_device(|device| device.check_region(domain.id, &registration))?
            .is_ok()
        {
            populate(registration)?;
        }
        let register = || hardware.engine(|engine| engine.register_memory(domain.id, registration));
        let keys = domain.liveness.join(register)?;
        let c = verbs_mr {
            ibv_mr: ibv_mr {
                context: domain.context.c_pointer(),
                pd: domain.c_pointer(),
                addr: shown.address,
                length: registration.length as usize,
                handle: keys.lkey.0,
                lkey: keys.lkey.0,
                rkey: keys.rkey.0,
            },
            mr_type: shown.mr_type,
            access: shown.flags as c_int,
        };
        Ok(Arc::new(MemoryRegion {
            c: CStruct::new(c),
            domain,
            lkey: keys.lkey,
            liveness: Liveness::new(),
            addresses: registration.address..registration.address + registration.length,
            mapping: Mutex::new(mapping),
        }))
    }

    /// Returns whether this byte of the process's memory is in the region.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.addresses.contains(&address)
    }

    /// Ends the registration, and its handle with `remove`. `EBUSY`, and the region is unchanged,
    /// while a stopped peer is in the middle of a copy from or to the region, and would continue
    /// it.
    pub(crate) fn deregister(
        &self,
        remove: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.liveness.end(|| {
            // After the device was closed there is no registration to end.
            if let Ok(hardware) = self.domain.context.hardware() {
                hardware.deregister_memory(self.lkey)?;
            }
            remove()?;
            self.domain.liveness.leave();
            let mapping = &self.mapping;
            let mut mapping = mapping.lock().unwrap_or_else(PoisonError::into_inner);
            drop(mapping.take());
            Ok(())
        })
    }
}
