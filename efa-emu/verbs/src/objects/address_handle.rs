//! Address handles.

use std::sync::Arc;

use efa_core::address::{Ahn, Gid};

use super::domain::Domain;
use super::handle::{CStruct, Handle, handle};
use crate::abi::ibv_ah;
use crate::ffi::errno::Errno;

/// An address handle.
pub(crate) struct AddressHandle {
    c: CStruct<ibv_ah>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) ahn: Ahn,
}

handle!(AddressHandle, ibv_ah);

impl AddressHandle {
    /// Makes an address handle in a domain. All handles of one GID have the same
    /// number.
    pub(crate) fn create(domain: Arc<Domain>, gid: Gid) -> Result<Arc<AddressHandle>, Errno> {
        let hardware = domain.context.hardware()?;
        let make = || Ok(hardware.with_device(|device| device.create_ah(domain.id, gid))??);
        let ahn = domain.liveness.join(make)?;
        Ok(Arc::new(AddressHandle {
            c: CStruct::new(ibv_ah {
                context: domain.context.c_pointer(),
                pd: domain.c_pointer(),
                handle: u32::from(ahn.0),
            }),
            domain,
            ahn,
        }))
    }

    /// Removes the handle from the device after it was removed from the registry.
    pub(crate) fn destroy(&self) -> Result<(), Errno> {
        let domain = &self.domain;
        let destroyed = domain
            .context
            .forget(|device| device.destroy_ah(domain.id, self.ahn));
        domain.liveness.leave();
        destroyed
    }
}

/// The number for work requests: the handle's, or for a null pointer a number that the device
/// refuses.
///
/// # Safety
/// `handle` is null or an address handle of this library that was not destroyed long ago.
#[inline]
pub(crate) unsafe fn number(handle: *const ibv_ah) -> u16 {
    // SAFETY: valid by contract. The C structure is the handle's own, and its `handle` field, the
    // only one that is read, never changes.
    match unsafe { handle.as_ref() } {
        Some(handle) => handle.handle as u16,
        None => Ahn::UNKNOWN,
    }
}
