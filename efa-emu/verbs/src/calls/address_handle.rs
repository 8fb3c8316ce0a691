//! Address handles.

use core::ffi::c_int;

use efa_core::address::Gid;

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_wc};
use crate::ffi::errno::{self, Errno};
use crate::ffi::structures::{write, zeroed};
use crate::objects::address_handle::AddressHandle;
use crate::registry::{ADDRESS_HANDLES, CONTEXTS, DOMAINS};

/// `ibv_wc_flags`: a GRH precedes the data.
pub(super) const IBV_WC_GRH: u32 = 1 << 0;

/// Makes an address handle. The device uses only the destination GID of the attributes.
///
/// Returns the handle, or null with `errno`: `EINVAL` for an unknown `pd`, null attributes, or a
/// port or GID index that the device does not have; or the device's error.
///
/// # Safety
/// `attributes` is null or valid for a read.
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attributes: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: valid by contract.
    let attributes = unsafe { attributes.as_ref() }.ok_or(Errno::INVAL);
    errno::pointer(attributes.and_then(|attributes| create(pd, attributes)))
}

fn create(pd: *mut ibv_pd, attributes: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    let domain = DOMAINS.get(pd)?;
    // The kernel reads the index only if the attributes say that they have a global header.
    if attributes.port_num != 1 || attributes.is_global != 0 && attributes.grh.sgid_index != 0 {
        return Err(Errno::INVAL);
    }
    let handle = AddressHandle::create(domain, Gid(attributes.grh.dgid.raw))?;
    Ok(ADDRESS_HANDLES.insert(handle))
}

/// Destroys an address handle.
///
/// Returns 0 or an errno: `EINVAL` for a pointer that is not a handle, or the device's error, in
/// which case the handle is destroyed as well.
pub(crate) extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    errno::status_of_end(|| ADDRESS_HANDLES.remove(handle)?.destroy())
}

/// Writes the attributes for an answer to a received packet, from its GRH. A completion contains no
/// address, only the number of an existing handle.
///
/// Returns 0, or -1 with `errno`: `EINVAL` for an unknown context or a null pointer that is needed.
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
    errno::zero_or_minus_one(CONTEXTS.get(context).and_then(|_| {
        // SAFETY: valid by contract.
        let answer = unsafe { answer_attributes(port, completion, grh)? };
        // SAFETY: valid by contract.
        unsafe { write(attributes, answer) }
    }))
}

/// Makes the address handle for an answer: [`ibv_init_ah_from_wc`] and [`ibv_create_ah`] in one
/// call.
///
/// Returns the handle, or null with the `errno` of either.
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
