//! Registered memory.

use std::ffi::{c_int, c_void};

use efa_core::endpoint::Errno;
use efa_core::nic::{Access, Region, UserSlice};

use crate::ffi::object::{Object, Ref, close, new_fid, object, transfer_object};
use crate::ffi::result::{EBADFLAGS, ENOSYS, Result, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::domain::Domain;

/// A registration (`fid_mr`). Its descriptor is its own address.
#[repr(C)]
pub(crate) struct MemoryRegion {
    c: fid_mr,
    region: Region,
    domain: Ref<Domain>,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these
// operations.
unsafe impl Object for MemoryRegion {
    const CLASS: u32 = FI_CLASS_MR;
    const OPERATIONS: &'static Table<fi_ops> = &FID;

    fn before_close(&self) -> Result<()> {
        let ended = self.domain.state()?.core.deregister(self.region);
        ended.map_err(|error| error.errno())
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<MemoryRegion>),
    ..unsupported::FID
});

pub(crate) static OPS: Table<fi_ops_mr> = Table::new(fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(reg),
    regv: Some(regv),
    regattr: Some(regattr),
});

/// The accesses that a registration may permit. Those of collective operations have no effect here.
const ACCESS: u64 =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;

/// Memory to register.
struct Registration {
    memory: UserSlice,
    access: u64,
    flags: u64,
    context: *mut c_void,
}

impl Registration {
    /// # Errors
    /// `FI_EBADFLAGS` for flags and `FI_EINVAL` for accesses that are not known, and the device's
    /// errors.
    fn register(self, domain: &Domain) -> Result<*mut fid_mr> {
        if self.flags & !FI_RMA_EVENT != 0 {
            return Err(EBADFLAGS);
        }
        // No access flags mean sends and receives, as in stock libfabric.
        let wanted = match self.access {
            0 => FI_SEND | FI_RECV,
            access => access,
        };
        if wanted & !ACCESS != 0 {
            return Err(Errno::EINVAL);
        }
        let mut access = Access::empty();
        access.set(
            Access::LOCAL_WRITE,
            wanted & (FI_RECV | FI_READ | FI_REMOTE_WRITE) != 0,
        );
        // The receiver of a long message, and the target of a long write, read it from where it is.
        access.set(
            Access::REMOTE_READ,
            wanted & (FI_SEND | FI_WRITE | FI_REMOTE_READ) != 0,
        );
        access.set(Access::REMOTE_WRITE, wanted & FI_REMOTE_WRITE != 0);
        let region = domain.state()?.core.register(self.memory, access);
        let region = region.map_err(|error| error.errno())?;
        let object = MemoryRegion {
            c: fid_mr {
                fid: new_fid(self.context),
                mem_desc: std::ptr::null_mut(),
                key: region.remote_key.0,
            },
            region,
            domain: Ref::new(domain),
        };
        let object = object.give();
        // SAFETY: it was made just now.
        unsafe { (*object).c.mem_desc = object.cast() };
        Ok(object.cast())
    }
}

/// The registration of a descriptor, if there is one.
///
/// # Errors
/// `FI_EINVAL` if it does not belong to this provider.
///
/// # Safety
/// The descriptor is null, or of a registration that has not ended.
#[inline]
pub(crate) unsafe fn region_of(descriptor: *mut c_void) -> Result<Option<Region>> {
    if descriptor.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's contract.
    let object: &MemoryRegion = unsafe { transfer_object(descriptor) }?;
    Ok(Some(object.region))
}

/// Registers memory (`fi_mr_reg`).
///
/// # Returns
/// 0; `-FI_EINVAL` for a wrong domain, unknown accesses and memory without length,
/// `-FI_EBADFLAGS` for unknown flags, or the device's error.
///
/// # Safety
/// `result` is null or valid for a write. The memory is the application's until the registration
/// is closed; the device notices if it is not.
unsafe extern "C" fn reg(
    domain: *mut fid,
    buffer: *const c_void,
    length: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    flags: u64,
    result: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: by the caller's contract.
        let domain: &Domain = unsafe { object(domain.cast()) }?;
        let registration = Registration {
            memory: UserSlice::new(buffer.addr() as u64, length),
            access,
            flags,
            context,
        };
        if result.is_null() || length == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: by the caller's contract, a place for a pointer.
        unsafe { result.write(registration.register(domain)?) };
        Ok(())
    })
}

/// Registers memory that a list describes, of one piece (`fi_mr_regv`).
///
/// # Returns
/// As [`reg`]; `-FI_EINVAL` for another number of pieces.
///
/// # Safety
/// `pieces` is null or points to `count` pieces, and `result` is null or valid for a write. The
/// memory is the application's until the registration is closed; the device notices if it is not.
unsafe extern "C" fn regv(
    domain: *mut fid,
    pieces: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    result: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    if pieces.is_null() || count != 1 {
        return -libc::EINVAL;
    }
    // SAFETY: there is one piece.
    let piece = unsafe { pieces.read() };
    let (buffer, length) = (piece.iov_base, piece.iov_len);
    // SAFETY: memory and `result` by the caller's contract.
    unsafe {
        reg(
            domain,
            buffer,
            length,
            access,
            offset,
            requested_key,
            flags,
            result,
            context,
        )
    }
}

/// Registers memory that attributes describe (`fi_mr_regattr`).
///
/// # Returns
/// As [`regv`]; `-FI_ENOSYS` for memory of GPUs.
///
/// # Safety
/// `attributes` is null or valid with all structures that it points to, and `result` is null or
/// valid for a write. The memory is the application's until the registration is closed; the device
/// notices if it is not.
unsafe extern "C" fn regattr(
    domain: *mut fid,
    attributes: *const fi_mr_attr,
    flags: u64,
    result: *mut *mut fid_mr,
) -> c_int {
    status(|| {
        // SAFETY: by the caller's contract.
        let attributes = unsafe { attributes.as_ref() }.ok_or(Errno::EINVAL)?;
        // Memory of GPUs.
        if attributes.iface != FI_HMEM_SYSTEM {
            return Err(ENOSYS);
        }
        // SAFETY: pieces, memory and `result` by the caller's contract.
        let status = unsafe {
            regv(
                domain,
                attributes.mr_iov,
                attributes.iov_count,
                attributes.access,
                attributes.offset,
                attributes.requested_key,
                flags,
                result,
                attributes.context,
            )
        };
        match status {
            0 => Ok(()),
            error => Err(Errno(-error)),
        }
    })
}
