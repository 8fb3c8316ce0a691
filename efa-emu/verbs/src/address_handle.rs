//! Address handles.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::sync::Arc;

use efa_core::address::{Ahn, Gid};

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_wc};
use crate::context::CONTEXTS;
use crate::domain::{DOMAINS, Domain};
use crate::errno::{self, Errno};
use crate::handles::{Handle, Registry};
use crate::query::zeroed;

pub(crate) static HANDLES: Registry<AddressHandle> = Registry::new();

/// `ibv_wc_flags`: a GRH lies in front of the data.
const IBV_WC_GRH: u32 = 1 << 0;

/// An address handle.
pub(crate) struct AddressHandle {
    c: UnsafeCell<ibv_ah>,
    domain: Arc<Domain>,
    pub(crate) ahn: Ahn,
}

// SAFETY: the C structure is written only while it is made; programs read it.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

// SAFETY: the structure is inside the cell.
unsafe impl Handle for AddressHandle {
    type C = ibv_ah;

    fn c_pointer(&self) -> *mut ibv_ah {
        self.c.get()
    }
}

/// The number that goes into work requests: that of the handle, or for a null pointer one that the
/// device refuses.
///
/// # Safety
/// `handle` is null or an address handle of this library that was not destroyed long ago.
#[inline]
pub(crate) unsafe fn number(handle: *const ibv_ah) -> u16 {
    // SAFETY: valid by contract. The C structure is the handle's own, and its `handle` field, which
    // is what is read, never changes.
    match unsafe { handle.as_ref() } {
        Some(handle) => handle.handle as u16,
        None => Ahn::UNKNOWN,
    }
}

/// Makes an address handle. Of the attributes only the destination GID matters to the device; all
/// handles of one GID have the same number.
///
/// # Safety
/// `attributes` is null or valid for a read.
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attributes: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: valid by contract.
    let attributes = unsafe { attributes.as_ref() };
    errno::pointer(
        attributes
            .ok_or(Errno::INVAL)
            .and_then(|attributes| create(pd, attributes)),
    )
}

fn create(pd: *mut ibv_pd, attributes: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    let domain = DOMAINS.get(pd)?;
    // The kernel looks at the index only if the attributes say that they have a global header.
    if attributes.port_num != 1 || attributes.is_global != 0 && attributes.grh.sgid_index != 0 {
        return Err(Errno::INVAL);
    }
    let gid = Gid(attributes.grh.dgid.raw);
    let hardware = domain.context.hardware()?;
    let make = || Ok(hardware.with_device(|device| device.create_ah(domain.id, gid))??);
    let ahn = domain.life.join(make)?;
    let c = ibv_ah {
        context: domain.context.c_pointer(),
        pd,
        handle: u32::from(ahn.0),
    };
    Ok(HANDLES.insert(Arc::new(AddressHandle {
        c: UnsafeCell::new(c),
        domain,
        ahn,
    })))
}

pub(crate) extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    errno::status_of_end(|| {
        let handle = HANDLES.remove(handle)?;
        let domain = &handle.domain;
        let destroyed = domain
            .context
            .forget(|device| device.destroy_ah(domain.id, handle.ahn));
        domain.life.leave();
        destroyed
    })
}

/// The attributes for an answer to a received packet. They are in its GRH, or nowhere: without one
/// the address is in the completion only as the number of a handle that exists already.
///
/// # Safety
/// `completion` and `grh` are null or valid for reads, `attributes` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    completion: *mut ibv_wc,
    grh: *mut ibv_grh,
    attributes: *mut ibv_ah_attr,
) -> c_int {
    let result = CONTEXTS.get(context).and_then(|_| {
        if attributes.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: valid by contract.
        let answer = unsafe { answer_attributes(port, completion, grh)? };
        // SAFETY: valid by contract.
        unsafe { attributes.write(answer) };
        Ok(())
    });
    errno::zero_or_minus_one(result)
}

/// [`ibv_init_ah_from_wc`] and [`ibv_create_ah`] in one.
///
/// # Safety
/// `completion` and `grh` are null or valid for reads.
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    completion: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: valid by contract.
    let attributes = unsafe { answer_attributes(port, completion, grh) };
    errno::pointer(attributes.and_then(|attributes| create(pd, &attributes)))
}

/// # Safety
/// `completion` and `grh` are null or valid for reads.
unsafe fn answer_attributes(
    port: u8,
    completion: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, Errno> {
    // SAFETY: valid by contract.
    let completion = unsafe { completion.as_ref() }.ok_or(Errno::INVAL)?;
    // SAFETY: the structure consists of integers.
    let mut attributes: ibv_ah_attr = unsafe { zeroed() };
    attributes.port_num = port;
    attributes.dlid = completion.slid;
    attributes.sl = completion.sl;
    attributes.src_path_bits = completion.dlid_path_bits;
    if completion.wc_flags & IBV_WC_GRH != 0 {
        // SAFETY: valid by contract.
        let grh = unsafe { grh.as_ref() }.ok_or(Errno::INVAL)?;
        attributes.is_global = 1;
        attributes.grh.dgid = grh.sgid;
        attributes.grh.hop_limit = u8::MAX;
        attributes.grh.flow_label = u32::from_be(grh.version_tclass_flow) & 0x000f_ffff;
        attributes.grh.traffic_class = (u32::from_be(grh.version_tclass_flow) >> 20) as u8;
    }
    Ok(attributes)
}
