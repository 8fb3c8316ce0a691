//! Registering memory.

use core::ffi::{c_int, c_uint, c_void};

use efa_core::nic::Access;
use efa_device_model::device::MemoryRegion as Registration;
use efa_device_model::device::connected::REMOTE_ATOMIC;

use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_MR_TYPE_DMABUF_MR, IBV_MR_TYPE_MR,
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET,
    IBV_REG_MR_MASK_IOVA, IBV_REREG_MR_ERR_CMD, ibv_mr, ibv_mr_init_attr, ibv_pd,
};
use crate::ffi::errno::{self, Errno};
use crate::ffi::structures::read_masked;
use crate::objects::mapping::Mapping;
use crate::objects::memory_region::{MemoryRegion, VisibleAttributes};
use crate::objects::page_faults;
use crate::registry::{BUFFERS, DOMAINS, REGIONS};

/// The known access flags, for a device that may have connected queue pairs. Optional flags are
/// ignored.
pub(super) fn access_flags(flags: u32, is_connected: bool) -> Result<Access, Errno> {
    let flags = flags & !IBV_ACCESS_OPTIONAL_RANGE;
    let efa = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    let known = match is_connected {
        true => efa | IBV_ACCESS_REMOTE_ATOMIC,
        false => efa,
    };
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut access = Access::empty();
    access.set(Access::LOCAL_WRITE, flags & IBV_ACCESS_LOCAL_WRITE != 0);
    access.set(Access::REMOTE_WRITE, flags & IBV_ACCESS_REMOTE_WRITE != 0);
    access.set(Access::REMOTE_READ, flags & IBV_ACCESS_REMOTE_READ != 0);
    access.set(REMOTE_ATOMIC, flags & IBV_ACCESS_REMOTE_ATOMIC != 0);
    Ok(access)
}

/// Whether the device of a protection domain has connected queue pairs.
fn is_connected(pd: *mut ibv_pd) -> bool {
    DOMAINS
        .get(pd)
        .is_ok_and(|domain| domain.context.device.profile.connected)
}

/// Registers memory under the address `iova`.
pub(super) fn register(
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
        access: access_flags(flags, is_connected(pd))?,
    };
    let shown = VisibleAttributes {
        address,
        mr_type: IBV_MR_TYPE_MR,
        flags,
    };
    insert(pd, registration, &shown, None)
}

/// Registers the memory behind a descriptor.
fn register_dmabuf(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    descriptor: c_int,
    flags: u32,
) -> Result<*mut ibv_mr, Errno> {
    DOMAINS.get(pd)?;
    let access = access_flags(flags, is_connected(pd))?;
    let is_written = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let mapping = Mapping::new(descriptor, offset, length, is_written)?;
    let registration = Registration {
        address: mapping.address(),
        length: length as u64,
        iova,
        access,
    };
    let shown = VisibleAttributes {
        // As rdma-core does.
        address: core::ptr::without_provenance_mut(offset as usize),
        mr_type: IBV_MR_TYPE_DMABUF_MR,
        flags,
    };
    insert(pd, registration, &shown, Some(mapping))
}

fn insert(
    pd: *mut ibv_pd,
    registration: Registration,
    shown: &VisibleAttributes,
    mapping: Option<Mapping>,
) -> Result<*mut ibv_mr, Errno> {
    let domain = DOMAINS.get(pd)?;
    page_faults::install(|address| REGIONS.any(|region| region.contains(address)));
    let region = MemoryRegion::register(domain, registration, shown, mapping)?;
    Ok(REGIONS.insert(region))
}

/// Registers `length` bytes at `address`, which must be mapped, with these access flags
/// (`ibv_access_flags`).
///
/// Returns the region, or null with `errno`: `EINVAL` for an unknown `pd`, `EOPNOTSUPP` for flags
/// that EFA does not have, `EFAULT` for memory that is not mapped for the access, or the device's
/// error.
pub(crate) extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    let iova = address.addr() as u64;
    errno::pointer(register(pd, address, length, iova, flags as u32))
}

/// As [`ibv_reg_mr`], for work requests and peers that address the memory by `iova`.
pub(crate) extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    errno::pointer(register(pd, address, length, iova, flags as u32))
}

/// As [`ibv_reg_mr_iova`], for clients that may pass optional flags.
pub(crate) extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    errno::pointer(register(pd, address, length, iova, flags))
}

/// Registers `length` bytes from `offset` on of the memory behind a descriptor: a dma-buf of memory
/// of this machine (udmabuf), or a memfd as a replacement where udmabuf does not exist.
///
/// Returns the region, or null with `errno`: `EBADF` for a number that is not a descriptor,
/// `EINVAL` for other files or too few bytes, as the kernel does, or as [`ibv_reg_mr`].
pub(crate) extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    descriptor: c_int,
    flags: c_int,
) -> *mut ibv_mr {
    let flags = flags as u32;
    errno::pointer(register_dmabuf(pd, offset, length, iova, descriptor, flags))
}

/// Registers memory, memory behind a descriptor, or a part of a buffer that the library has
/// allocated, as the attributes say.
///
/// Returns the region, or null with `errno`: `EINVAL` for null attributes or fields that do not
/// belong together, `EOPNOTSUPP` for fields that EFA does not have, or as the corresponding call.
///
/// # Safety
/// `attributes` is null or valid for reads up to the last field that its `comp_mask` names.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attributes: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    let request = read_masked!(attributes, ibv_mr_init_attr, iova, {
        IBV_REG_MR_MASK_IOVA: iova,
        IBV_REG_MR_MASK_ADDR: addr,
        IBV_REG_MR_MASK_FD: fd,
        IBV_REG_MR_MASK_FD_OFFSET: fd_offset,
        IBV_REG_MR_MASK_BUF: buf,
    });
    errno::pointer(request.and_then(|request| register_requested(pd, &request)))
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
        BUFFERS.get(request.buf)?.check(pd, address, length)?;
    }
    let iova = match has(IBV_REG_MR_MASK_IOVA) {
        true => request.iova,
        false => address.addr() as u64,
    };
    match (mask & FILE, has(IBV_REG_MR_MASK_ADDR)) {
        (0, true) => register(pd, address, length, iova, flags),
        (FILE, false) if has(IBV_REG_MR_MASK_IOVA) => {
            let &ibv_mr_init_attr { fd, fd_offset, .. } = request;
            register_dmabuf(pd, fd_offset, length, iova, fd, flags)
        }
        _ => Err(Errno::INVAL),
    }
}

/// Deregisters memory.
///
/// Returns 0 or an errno: `EINVAL` for a pointer that is not a region; `EBUSY`, and the region is
/// unchanged, while a stopped peer is in the middle of a copy from or to the region, and would
/// continue it. The kernel's drivers return the same errno for an object that is in use.
pub(crate) extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    errno::status_of_end(|| {
        let remove = || REGIONS.remove(mr).map(drop);
        REGIONS.get(mr)?.deregister(remove)
    })
}

/// Reregistration, which EFA does not support.
///
/// Returns `IBV_REREG_MR_ERR_CMD` with the `errno` `EOPNOTSUPP`.
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
        assert_eq!(access_flags(0, false), Ok(Access::empty()));
        assert_eq!(access_flags(7, false), Ok(Access::all()));
        assert_eq!(access_flags(0x10_0001, false), Ok(Access::LOCAL_WRITE));
        assert_eq!(
            access_flags(1 << 3, false),
            Err(Errno::OPNOTSUPP),
            "atomics"
        );
        assert_eq!(access_flags(1 << 3, true), Ok(REMOTE_ATOMIC));
        assert_eq!(
            access_flags(1 << 6, false),
            Err(Errno::OPNOTSUPP),
            "on demand"
        );
    }
}
