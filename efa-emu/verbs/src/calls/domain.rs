//! Protection domains, parent domains and thread domains.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use std::sync::Arc;

use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context, ibv_parent_domain_init_attr, ibv_pd,
    ibv_td,
};
use crate::ffi::errno::{self, Errno};
use crate::ffi::structures::read_prefix;
use crate::objects::domain::{Domain, ThreadDomain};
use crate::registry::{CONTEXTS, DOMAINS, THREAD_DOMAINS};

/// Makes a protection domain.
///
/// Returns the domain, or null with `errno`: `EINVAL` for an unknown context, or the device's
/// error.
pub(crate) extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let domain = CONTEXTS.get(context).and_then(Domain::alloc);
    errno::pointer(domain.map(|domain| DOMAINS.insert(domain)))
}

/// Deallocates a protection domain or parent domain.
///
/// Returns 0 or an errno: `EBUSY` while any object uses the domain, `EINVAL` for a pointer that is
/// not a domain.
pub(crate) extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    errno::status_of_end(|| {
        let remove = || DOMAINS.remove(pd).map(drop);
        DOMAINS.get(pd)?.dealloc(remove)
    })
}

/// Makes a parent domain of a protection domain and, unless `td` is null, a thread domain. Slot of
/// `verbs_context`.
///
/// Returns the domain, or null with `errno`: `EOPNOTSUPP` for custom allocators, `EINVAL` for null
/// attributes, unknown handles, another context's domain or one that is a parent domain itself.
///
/// # Safety
/// `attributes` is null or valid for reads up to `comp_mask`; later fields are not read.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attributes: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        if attributes.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: by contract; integers, and pointers that may be null.
        let attributes =
            unsafe { read_prefix(attributes, offset_of!(ibv_parent_domain_init_attr, alloc)) };
        let original = DOMAINS.get(attributes.pd)?;
        if attributes.comp_mask & !IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if original.is_parent() || !Arc::ptr_eq(&original.context, &context) {
            return Err(Errno::INVAL);
        }
        let thread_domain = match attributes.td.is_null() {
            true => None,
            false => Some(THREAD_DOMAINS.get(attributes.td)?),
        };
        Ok(DOMAINS.insert(Domain::parent_of(original, thread_domain)?))
    }))
}

/// Makes a thread domain. Slot of `verbs_context`.
///
/// Returns the domain, or null with `errno`: `EINVAL` for an unknown context or null attributes,
/// `EOPNOTSUPP` for attributes that EFA does not have.
///
/// # Safety
/// `attributes` is null or a structure that starts with 32 bits of `comp_mask`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attributes: *mut c_void,
) -> *mut ibv_td {
    errno::pointer(CONTEXTS.get(context).and_then(|context| {
        // SAFETY: valid by contract.
        match unsafe { attributes.cast::<u32>().as_ref() } {
            None => Err(Errno::INVAL),
            Some(0) => Ok(THREAD_DOMAINS.insert(ThreadDomain::new(&context))),
            Some(_) => Err(Errno::OPNOTSUPP),
        }
    }))
}

/// Deallocates a thread domain. Slot of `verbs_context`.
///
/// Returns 0 or an errno: `EBUSY` while a parent domain uses the thread domain, `EINVAL` for a
/// pointer that is not a thread domain.
pub(crate) extern "C" fn dealloc_td(thread_domain: *mut ibv_td) -> c_int {
    errno::status_of_end(|| {
        let remove = || THREAD_DOMAINS.remove(thread_domain).map(drop);
        THREAD_DOMAINS.get(thread_domain)?.liveness.end(remove)
    })
}
