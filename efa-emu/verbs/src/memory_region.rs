//! Memory regions.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;
use core::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use efa_core::nic::Access;
use efa_device_model::device::{Lkey, MemoryRegion as Registration};

use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_MR_TYPE_DMABUF_MR, IBV_MR_TYPE_MR, IBV_REG_MR_MASK_ADDR,
    IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA,
    IBV_REREG_MR_ERR_CMD, ibv_mr, ibv_mr_init_attr, ibv_pd, verbs_mr,
};
use crate::buffer;
use crate::domain::{DOMAINS, Domain};
use crate::errno::{self, Errno};
use crate::handles::{Handle, Life, Registry};
use crate::mapping::Mapping;
use crate::query::beginning;
use crate::vanished;

pub(crate) static REGIONS: Registry<MemoryRegion> = Registry::new();

/// A registered region.
pub(crate) struct MemoryRegion {
    c: UnsafeCell<verbs_mr>,
    domain: Arc<Domain>,
    lkey: Lkey,
    life: Life,
    /// Where the memory is in this process.
    place: Range<u64>,
    /// Memory that was mapped for the region.
    mapping: Mutex<Option<Mapping>>,
}

// SAFETY: the C structure is written only while it is made; programs read it.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

// SAFETY: `verbs_mr` starts with `ibv_mr`, and it is inside the cell.
unsafe impl Handle for MemoryRegion {
    type C = ibv_mr;

    fn c_pointer(&self) -> *mut ibv_mr {
        self.c.get().cast()
    }
}

/// Returns whether a byte of this process's memory is registered.
pub(crate) fn is_registered(address: u64) -> bool {
    REGIONS.any(|region| region.place.contains(&address))
}

/// Access flags that the device understands; flags that a device may ignore are ignored.
fn access_flags(flags: u32) -> Result<Access, Errno> {
    let flags = flags & !IBV_ACCESS_OPTIONAL_RANGE;
    let known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut access = Access::empty();
    access.set(Access::LOCAL_WRITE, flags & IBV_ACCESS_LOCAL_WRITE != 0);
    access.set(Access::REMOTE_WRITE, flags & IBV_ACCESS_REMOTE_WRITE != 0);
    access.set(Access::REMOTE_READ, flags & IBV_ACCESS_REMOTE_READ != 0);
    Ok(access)
}

/// Brings the pages of a region in, as pinning them for a real device does. Libraries count on it:
/// libfabric 1.11 watches registered ranges with userfaultfd and never answers a fault on a page that
/// is missing, so the first access to it would wait for ever.
fn populate(region: Registration) -> Result<(), Errno> {
    // SAFETY: asks for a number.
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
    // SAFETY: the advice changes no contents, whatever the range is.
    let advise =
        |length| match unsafe { libc::madvise(start as usize as *mut c_void, length, advice) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        };
    let length = (end - start) as usize;
    match advise(length).map_err(Errno::number) {
        // Not mapped at all.
        Err(libc::ENOMEM | libc::EFAULT) => Err(Errno::FAULT),
        // Not mapped for this access, or not of memory that can be pinned; but Linux before 5.14
        // knows no such advice, not even for nothing.
        Err(libc::EINVAL) if advise(0).is_ok() => Err(Errno::FAULT),
        _ => Ok(()),
    }
}

/// Registers memory under its own address.
pub(crate) fn register(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    flags: u32,
) -> Result<*mut ibv_mr, Errno> {
    register_as(pd, address, length, address.addr() as u64, flags)
}

fn register_as(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> Result<*mut ibv_mr, Errno> {
    let registration = Registration {
        address: address.addr() as u64,
        length: length as u64,
        iova,
        access: access_flags(flags)?,
    };
    let shown = Shown {
        address,
        kind: IBV_MR_TYPE_MR,
        flags,
    };
    register_at(pd, registration, shown, None)
}

/// What a program sees of a region beside its keys.
struct Shown {
    address: *mut c_void,
    kind: c_int,
    flags: u32,
}

fn register_at(
    pd: *mut ibv_pd,
    registration: Registration,
    shown: Shown,
    mapping: Option<Mapping>,
) -> Result<*mut ibv_mr, Errno> {
    let domain = DOMAINS.get(pd)?;
    let hardware = domain.context.hardware()?;
    // What the device refuses is not brought in first: it may be more than there is.
    if hardware
        .with_device(|device| device.check_region(domain.id, &registration))?
        .is_ok()
    {
        populate(registration)?;
    }
    vanished::watch();
    let register = || hardware.register_memory(domain.id, registration);
    let keys = domain.life.join(register)?;
    let c = verbs_mr {
        ibv_mr: ibv_mr {
            context: domain.context.c_pointer(),
            pd,
            addr: shown.address,
            length: registration.length as usize,
            handle: keys.lkey.0,
            lkey: keys.lkey.0,
            rkey: keys.rkey.0,
        },
        mr_type: shown.kind,
        access: shown.flags as c_int,
    };
    Ok(REGIONS.insert(Arc::new(MemoryRegion {
        c: UnsafeCell::new(c),
        domain,
        lkey: keys.lkey,
        life: Life::new(),
        place: registration.address..registration.address + registration.length,
        mapping: Mutex::new(mapping),
    })))
}

/// Registers memory under its own address, which must be mapped.
pub(crate) extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    errno::pointer(register(pd, address, length, flags as u32))
}

/// Registers memory under another address, `iova`.
pub(crate) extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    errno::pointer(register_as(pd, address, length, iova, flags as u32))
}

/// As [`ibv_reg_mr_iova`], for clients that may pass flags which a device may ignore.
pub(crate) extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    errno::pointer(register_as(pd, address, length, iova, flags))
}

/// Registers the memory behind a descriptor: a dma-buf of memory of this machine (udmabuf), or a memfd,
/// which stands for one where there is no such device. Other files are `EINVAL`, as for the kernel.
pub(crate) extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    descriptor: c_int,
    flags: c_int,
) -> *mut ibv_mr {
    errno::pointer(register_behind(
        pd,
        offset,
        length,
        iova,
        descriptor,
        flags as u32,
    ))
}

fn register_behind(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    descriptor: c_int,
    flags: u32,
) -> Result<*mut ibv_mr, Errno> {
    DOMAINS.get(pd)?;
    let access = access_flags(flags)?;
    let is_written = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let mapping = Mapping::new(descriptor, offset, length, is_written)?;
    let registration = Registration {
        address: mapping.address(),
        length: length as u64,
        iova,
        access,
    };
    let shown = Shown {
        // As rdma-core does.
        address: core::ptr::without_provenance_mut(offset as usize),
        kind: IBV_MR_TYPE_DMABUF_MR,
        flags,
    };
    register_at(pd, registration, shown, Some(mapping))
}

/// Registers what the program describes: memory, memory behind a descriptor, or a part of a buffer that the
/// library has allocated.
///
/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attributes: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    // SAFETY: by contract.
    let request = unsafe { read_request(attributes) };
    errno::pointer(request.and_then(|request| register_requested(pd, &request)))
}

/// The part of a program's request that its `comp_mask` vouches for; the rest is zero.
///
/// # Safety
/// As for [`ibv_reg_mr_ex`].
unsafe fn read_request(request: *const ibv_mr_init_attr) -> Result<ibv_mr_init_attr, Errno> {
    if request.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the fields up to `comp_mask` are there in every version.
    let mut known = unsafe { beginning(request, offset_of!(ibv_mr_init_attr, iova)) };
    /// Copies a field if `comp_mask` vouches for it.
    macro_rules! read {
        ($($mask:ident: $field:ident),+) => { $(
            if known.comp_mask & $mask != 0 {
                // SAFETY: by contract.
                known.$field = unsafe { (*request).$field };
            }
        )+ };
    }
    read!(
        IBV_REG_MR_MASK_IOVA: iova,
        IBV_REG_MR_MASK_ADDR: addr,
        IBV_REG_MR_MASK_FD: fd,
        IBV_REG_MR_MASK_FD_OFFSET: fd_offset,
        IBV_REG_MR_MASK_BUF: buf
    );
    Ok(known)
}

fn register_requested(pd: *mut ibv_pd, request: &ibv_mr_init_attr) -> Result<*mut ibv_mr, Errno> {
    const FILE: u64 = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
    const KNOWN: u64 = FILE | IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF;
    let &ibv_mr_init_attr {
        length,
        addr: address,
        ..
    } = request;
    let (mask, flags) = (request.comp_mask, request.access as u32);
    let has = |bit| mask & bit != 0;
    if mask & !KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if has(IBV_REG_MR_MASK_BUF) {
        if has(FILE) || !has(IBV_REG_MR_MASK_ADDR) {
            return Err(Errno::INVAL);
        }
        buffer::check(pd, request.buf, address, length)?;
    }
    let iova = match has(IBV_REG_MR_MASK_IOVA) {
        true => request.iova,
        false => address.addr() as u64,
    };
    match (mask & FILE, has(IBV_REG_MR_MASK_ADDR)) {
        (0, true) => register_as(pd, address, length, iova, flags),
        (FILE, false) if has(IBV_REG_MR_MASK_IOVA) => {
            let &ibv_mr_init_attr { fd, fd_offset, .. } = request;
            register_behind(pd, fd_offset, length, iova, fd, flags)
        }
        _ => Err(Errno::INVAL),
    }
}

/// `EBUSY`, and the region is as it was, while a peer that has stopped in the middle of a copy from or
/// to the region would go on with it. The kernel's drivers give that for an object that is in use.
pub(crate) extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    errno::status_of_end(|| {
        let region = REGIONS.get(mr)?;
        region.life.end(|| {
            // After the device was closed there is no registration either.
            if let Ok(hardware) = region.domain.context.hardware() {
                hardware.deregister_memory(region.lkey)?;
            }
            REGIONS.remove(mr)?;
            region.domain.life.leave();
            let mapping = &region.mapping;
            drop(
                mapping
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take(),
            );
            Ok(())
        })
    })
}

/// Not on EFA.
pub(crate) extern "C" fn ibv_rereg_mr(
    _mr: *mut ibv_mr,
    _flags: c_int,
    _pd: *mut ibv_pd,
    _address: *mut c_void,
    _length: usize,
    _access: c_int,
) -> c_int {
    errno::set(libc::EOPNOTSUPP);
    IBV_REREG_MR_ERR_CMD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_access_is_ignored_and_unknown_access_refused() {
        assert_eq!(access_flags(0), Ok(Access::empty()));
        assert_eq!(access_flags(7), Ok(Access::all()));
        assert_eq!(access_flags(0x10_0001), Ok(Access::LOCAL_WRITE));
        assert_eq!(access_flags(1 << 3), Err(Errno::OPNOTSUPP), "atomics");
        assert_eq!(access_flags(1 << 6), Err(Errno::OPNOTSUPP), "on demand");
    }
}
