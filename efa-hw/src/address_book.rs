//! The address handles of a domain.

use crate::device::PORT;
use crate::efadv::AhAttr;
use crate::error::{last_nic_error, refused};
use crate::loaded;
use efa_core::address::{Ahn, Gid};
use efa_core::nic::NicError;
use efa_verbs_sys as ffi;
use std::collections::HashMap;
use std::ptr::NonNull;

/// One reference-counted address handle for each GID, found by its number.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    /// Indexed by AHN; the device assigns small numbers first.
    entries: Vec<Option<AddressHandle>>,
    numbers: HashMap<Gid, Ahn>,
}

#[derive(Debug)]
struct AddressHandle {
    handle: NonNull<ffi::ibv_ah>,
    gid: Gid,
    references: usize,
}

impl AddressBook {
    /// Creates a handle, or adds a reference to the existing one for `gid`.
    ///
    /// # Safety
    /// `pd` is a living protection domain, the same one in every call.
    pub(crate) unsafe fn create(
        &mut self,
        pd: *mut ffi::ibv_pd,
        gid: Gid,
    ) -> Result<Ahn, NicError> {
        if let Some(&ahn) = self.numbers.get(&gid)
            && let Some(entry) = &mut self.entries[usize::from(ahn.0)]
        {
            entry.references += 1;
            return Ok(ahn);
        }
        let mut attr = ffi::ibv_ah_attr {
            grh: ffi::ibv_global_route {
                dgid: ffi::ibv_gid { raw: gid.0 },
                ..Default::default()
            },
            is_global: 1,
            port_num: PORT,
            ..Default::default()
        };
        // SAFETY: the caller guarantees that `pd` is alive; `attr` is complete.
        let handle =
            NonNull::new(unsafe { loaded::ibv_create_ah(pd, &mut attr) }).ok_or_else(|| {
                last_nic_error("ibv_create_ah", "address handle (ibv_create_ah: ENOMEM)")
            })?;
        let mut numbers = AhAttr::default();
        // SAFETY: `handle` was just created, `numbers` has the length that is passed with it.
        let result = unsafe {
            loaded::efadv_query_ah(handle.as_ptr(), &mut numbers, size_of::<AhAttr>() as u32)
        };
        if result != 0 {
            // SAFETY: the handle is not used again.
            unsafe { loaded::ibv_destroy_ah(handle.as_ptr()) };
            return Err(refused("efadv_query_ah", result));
        }
        let index = usize::from(numbers.ahn);
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index] = Some(AddressHandle {
            handle,
            gid,
            references: 1,
        });
        self.numbers.insert(gid, Ahn(numbers.ahn));
        Ok(Ahn(numbers.ahn))
    }

    /// Drops one reference to the handle.
    pub(crate) fn destroy(&mut self, ahn: Ahn) -> Result<(), NicError> {
        let slot = self
            .entries
            .get_mut(usize::from(ahn.0))
            .ok_or(unknown(ahn))?;
        let entry = slot.as_mut().ok_or(unknown(ahn))?;
        entry.references -= 1;
        if entry.references == 0 {
            let handle = entry.handle;
            self.numbers.remove(&entry.gid);
            *slot = None;
            // SAFETY: the entry that owned the handle was removed.
            unsafe { loaded::ibv_destroy_ah(handle.as_ptr()) };
        }
        Ok(())
    }

    /// The handle with this number.
    #[inline]
    pub(crate) fn handle(&self, ahn: Ahn) -> Result<*mut ffi::ibv_ah, NicError> {
        match self.entries.get(usize::from(ahn.0)) {
            Some(Some(entry)) => Ok(entry.handle.as_ptr()),
            _ => Err(unknown(ahn)),
        }
    }
}

fn unknown(ahn: Ahn) -> NicError {
    NicError::invalid("address handle number", ahn.0)
}

impl Drop for AddressBook {
    fn drop(&mut self) {
        for entry in self.entries.drain(..).flatten() {
            // SAFETY: the entry owned the handle, and its protection domain outlives this book.
            unsafe { loaded::ibv_destroy_ah(entry.handle.as_ptr()) };
        }
    }
}
