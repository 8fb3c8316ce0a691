//! A protection domain and the registrations in it.

use crate::device::HwDevice;
use crate::error::{OpenError, last_nic_error, refused};
use crate::loaded;
use crate::registration_cache::Registrar;
use efa_core::nic::{Access, LocalKey, NicError, Region, RemoteKey, UserSlice};
use efa_verbs_sys as ffi;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;

/// The explanation of a registration that failed with `ENOMEM`.
const NO_ROOM: &str = "memory region (ibv_reg_mr: ENOMEM; the device has no more, or the limit of locked memory, \
                       `ulimit -l`, is too low)";

/// Memory behind a dma-buf to register.
#[derive(Clone, Copy, Debug)]
pub struct Dmabuf<'a> {
    /// The dma-buf.
    pub descriptor: BorrowedFd<'a>,
    /// The offset of the memory in it, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
    /// The address of the first byte in work requests of this program and its peers. It has the
    /// same offset in its page as `offset`.
    pub address: u64,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    pd: NonNull<ffi::ibv_pd>,
    /// Keeps the device open.
    _device: HwDevice,
}

// SAFETY: libibverbs allows calls from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.pd.as_ptr()
    }

    pub(crate) fn alloc(device: &HwDevice) -> Result<ProtectionDomain, OpenError> {
        // SAFETY: the device is open.
        NonNull::new(unsafe { loaded::ibv_alloc_pd(device.context()) })
            .map(|pd| ProtectionDomain {
                pd,
                _device: device.clone(),
            })
            .ok_or_else(|| device.last_error("ibv_alloc_pd"))
    }

    /// Registers memory that stays mapped while operations use it.
    pub(crate) fn register(
        &self,
        memory: UserSlice,
        access: Access,
    ) -> Result<MemoryRegion, NicError> {
        let start = memory.address as usize as *mut _;
        // SAFETY: the protection domain is alive; `AddressSpace` contains the memory, or it belongs
        // to the domain. `Access` has the bits of `ibv_access_flags`.
        let region = unsafe {
            loaded::ibv_reg_mr(self.pd.as_ptr(), start, memory.length, access.bits() as i32)
        };
        NonNull::new(region)
            .map(MemoryRegion)
            .ok_or_else(|| last_nic_error("ibv_reg_mr", NO_ROOM))
    }

    /// Registers memory behind a dma-buf. The registration holds the dma-buf, so its descriptor may
    /// be closed.
    pub(crate) fn register_dmabuf(
        &self,
        memory: &Dmabuf<'_>,
        access: Access,
    ) -> Result<MemoryRegion, NicError> {
        // SAFETY: the protection domain is alive, and the descriptor is open during the call. The
        // kernel checks the rest. The device accesses the memory through the dma-buf, not by an
        // address of this process.
        let region = unsafe {
            loaded::ibv_reg_dmabuf_mr(
                self.pd.as_ptr(),
                memory.offset,
                memory.length,
                memory.address,
                memory.descriptor.as_raw_fd(),
                access.bits() as i32,
            )
        };
        NonNull::new(region)
            .map(MemoryRegion)
            .ok_or_else(|| last_nic_error("ibv_reg_dmabuf_mr", NO_ROOM))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: every object in the domain was dropped before.
        unsafe { loaded::ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

impl Registrar for ProtectionDomain {
    type Registration = MemoryRegion;

    fn register(&self, memory: UserSlice, access: Access) -> Result<MemoryRegion, NicError> {
        self.register(memory, access)
    }

    fn keys(registration: &MemoryRegion) -> Region {
        registration.keys()
    }

    fn end(&self, registration: MemoryRegion) -> Result<(), (MemoryRegion, NicError)> {
        registration.end()
    }
}

/// A memory registration.
#[derive(Debug)]
pub(crate) struct MemoryRegion(NonNull<ffi::ibv_mr>);

impl MemoryRegion {
    #[inline]
    pub(crate) fn keys(&self) -> Region {
        // SAFETY: the registration is alive until `self` is dropped.
        let region = unsafe { self.0.as_ref() };
        Region {
            local_key: LocalKey(region.lkey),
            remote_key: RemoteKey(u64::from(region.rkey)),
        }
    }

    /// Ends the registration, or returns it with the error if the device refuses.
    pub(crate) fn end(self) -> Result<(), (MemoryRegion, NicError)> {
        // SAFETY: no other code deregisters it, and after a success nothing refers to it any more.
        match unsafe { loaded::ibv_dereg_mr(self.0.as_ptr()) } {
            0 => {
                std::mem::forget(self);
                Ok(())
            }
            errno => Err((self, refused("ibv_dereg_mr", errno))),
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: no other code deregisters it.
        unsafe { loaded::ibv_dereg_mr(self.0.as_ptr()) };
    }
}
