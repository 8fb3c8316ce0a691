//! Fabrics: what domains and event queues are opened from.

use std::ffi::{CStr, c_char, c_int, c_void};

use efa_core::endpoint::Errno;

use crate::border::{self, Object, Users};
use crate::completion_queue::CompletionQueue;
use crate::counter::Counter;
use crate::domain::Domain;
use crate::event_queue::EventQueue;
use crate::ffi::*;
use crate::table::Table;
use crate::unsupported;

/// A fabric (`fid_fabric`).
#[repr(C)]
pub(crate) struct Fabric {
    c: fid_fabric,
    pub(crate) users: Users,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these operations.
unsafe impl Object for Fabric {
    const CLASS: u32 = FI_CLASS_FABRIC;
    const IS_MEMORY: bool = true;

    fn operations() -> &'static Table<fi_ops> {
        &FID
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    ops_open: Some(ops_open),
    ..unsupported::FID
});

static OPS: Table<fi_ops_fabric> = Table::new(fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(domain),
    passive_ep: Some(unsupported::passive_ep),
    eq_open: Some(eq_open),
    wait_open: Some(unsupported::wait_open),
    trywait: Some(trywait),
    domain2: Some(domain2),
});

impl Fabric {
    pub(crate) fn new(api_version: u32, context: *mut c_void) -> Fabric {
        Fabric {
            c: fid_fabric {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: OPS.as_c(),
                api_version,
            },
            users: Users::default(),
        }
    }
}

/// # Safety
/// As libfabric documents `fi_close`.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let fabric: &Fabric = unsafe { border::object(fid.cast()) }?;
        fabric.users.none()?;
        // SAFETY: nothing was opened from it any more, and C gives up its pointer.
        drop(unsafe { border::take(fabric) });
        Ok(())
    })
}

/// # Safety
/// As libfabric documents `fi_domain`.
unsafe extern "C" fn domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    result: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let fabric: &Fabric = unsafe { border::object(fabric.cast()) }?;
        // SAFETY: likewise.
        let domain = unsafe { Domain::open(fabric, info, context) }?;
        // SAFETY: by the caller's contract.
        unsafe { domain.give_to(result) }
    })
}

/// # Safety
/// As libfabric documents `fi_domain2`.
unsafe extern "C" fn domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    result: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    match flags {
        // SAFETY: the caller's contract is the same.
        0 => unsafe { domain(fabric, info, result, context) },
        _ => -libc::EINVAL,
    }
}

/// # Safety
/// As libfabric documents `fi_eq_open`.
unsafe extern "C" fn eq_open(
    fabric: *mut fid_fabric,
    attributes: *mut fi_eq_attr,
    result: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let fabric: &Fabric = unsafe { border::object(fabric.cast()) }?;
        // SAFETY: likewise.
        let queue = EventQueue::open(fabric, unsafe { attributes.as_ref() }, context)?;
        // SAFETY: by the caller's contract.
        unsafe { queue.give_to(result) }
    })
}

/// The operations `efa feature ops` of libfabric 2.7's efa provider (`struct fi_efa_feature_ops`).
#[repr(C)]
struct FeatureOperations {
    query: extern "C" fn(*const c_char) -> bool,
}

static FEATURES: FeatureOperations = FeatureOperations { query: has_feature };

/// Whether there is a feature of stock's by this name. It has one, for memory of GPUs, and that only in its other fabric.
extern "C" fn has_feature(_name: *const c_char) -> bool {
    false
}

/// # Errors
/// `FI_EINVAL` for another name than that of [`FEATURES`], as from stock.
///
/// # Safety
/// As libfabric documents `fi_open_ops`.
unsafe extern "C" fn ops_open(
    _fabric: *mut fid,
    name: *const c_char,
    _flags: u64,
    result: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: a string or null, by the caller's contract.
    if name.is_null() || result.is_null() || unsafe { CStr::from_ptr(name) } != c"efa feature ops" {
        return -libc::EINVAL;
    }
    // SAFETY: not null, and so valid for a write.
    unsafe { result.write(std::ptr::from_ref(&FEATURES).cast_mut().cast()) };
    0
}

/// # Safety
/// As libfabric documents `fi_trywait`.
unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract, here and below.
        let _: &Fabric = unsafe { border::object(fabric.cast()) }?;
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        if fids.is_null() && count > 0 {
            return Err(Errno::EINVAL);
        }
        for index in 0..count {
            // SAFETY: there are as many as `count` says.
            let object = unsafe { fids.add(index).read() }.cast();
            // SAFETY: as above.
            if let Ok(queue) = unsafe { border::object::<CompletionQueue>(object) } {
                queue.try_wait()?;
                continue;
            }
            // SAFETY: as above.
            if let Ok(counter) = unsafe { border::object::<Counter>(object) } {
                counter.try_wait()?;
                continue;
            }
            // SAFETY: as above.
            unsafe { border::object::<EventQueue>(object) }?.try_wait()?;
        }
        Ok(())
    })
}
