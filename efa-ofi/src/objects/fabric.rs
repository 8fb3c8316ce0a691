//! Fabrics: the objects from which domains and event queues are opened.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::ffi::object::{Object, close, new_fid};
use crate::ffi::table::Table;
use crate::ffi::*;

/// A fabric (`fid_fabric`).
#[repr(C)]
pub(crate) struct Fabric {
    c: fid_fabric,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these
// operations.
unsafe impl Object for Fabric {
    const CLASS: u32 = FI_CLASS_FABRIC;
    const IS_MEMORY: bool = true;
    const OPERATIONS: &'static Table<fi_ops> = &FID;
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<Fabric>),
    ops_open: Some(ops_open),
    ..unsupported::FID
});

impl Fabric {
    /// A fabric for an application of this version of the interface, with the calls that open
    /// other objects from it.
    pub(crate) fn new(
        api_version: u32,
        calls: &'static Table<fi_ops_fabric>,
        context: *mut c_void,
    ) -> Fabric {
        Fabric {
            c: fid_fabric {
                fid: new_fid(context),
                ops: calls.as_c(),
                api_version,
            },
        }
    }
}

impl Fabric {
    /// The version of the interface that the application uses; 0 if unknown.
    pub(crate) fn api_version(&self) -> u32 {
        self.c.api_version
    }
}

/// The operations `efa feature ops` of libfabric 2.7's efa provider (`struct fi_efa_feature_ops`).
#[repr(C)]
struct FeatureOperations {
    query: extern "C" fn(*const c_char) -> bool,
}

static FEATURES: FeatureOperations = FeatureOperations { query: has_feature };

/// Whether there is a feature of stock's with this name; the name is not read. Stock has one
/// feature, for memory of GPUs, and only in its other fabric.
extern "C" fn has_feature(_name: *const c_char) -> bool {
    false
}

/// Returns the table of operations with a name (`fi_open_ops`): there is [`FEATURES`].
///
/// # Returns
/// 0, or `-FI_EINVAL` for another name, as from stock.
///
/// # Safety
/// `name` is null or a string, and `result` null or valid for a write.
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
