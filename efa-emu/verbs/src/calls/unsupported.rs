//! Verbs that EFA does not support, as C functions that fail. They follow no pointer. Functions
//! without arguments are exported under names of functions that have some, which the C calling
//! convention allows.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;

use crate::abi::ibv_qp;
use crate::ffi::errno;

/// For verbs that create an object. Returns null with the `errno` `EOPNOTSUPP`.
pub(crate) extern "C" fn no_pointer() -> *mut c_void {
    errno::set(libc::EOPNOTSUPP);
    null_mut()
}

/// For verbs that return an errno. Returns `EOPNOTSUPP`, also as `errno`.
pub(crate) extern "C" fn not_supported() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// For verbs that return -1 and an `errno`: `EOPNOTSUPP`.
pub(crate) extern "C" fn minus_one() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// For verbs that return nothing.
pub(crate) extern "C" fn not_supported_nothing() {}

/// For verbs that return a 64-bit number. Returns 0.
pub(crate) extern "C" fn zero() -> u64 {
    0
}

/// For verbs that return a count. Returns 0.
pub(crate) extern "C" fn none() -> c_uint {
    0
}

/// For verbs that are not needed and therefore succeed: preparations for `fork`. Registered memory
/// is read through the process' own mappings, so copy-on-write cannot move it away from the device.
/// Returns 0.
pub(crate) extern "C" fn success() -> c_int {
    0
}

/// Allocation of a memory window. Called through the context's table. Returns null with the `errno`
/// `EOPNOTSUPP`.
pub(crate) extern "C" fn alloc_mw(_pd: *mut c_void, _mw_type: c_int) -> *mut c_void {
    no_pointer()
}

/// Binding of a memory window. Called through the context's table. Returns `EOPNOTSUPP`.
pub(crate) extern "C" fn bind_mw(
    _pair: *mut ibv_qp,
    _window: *mut c_void,
    _bind: *mut c_void,
) -> c_int {
    libc::EOPNOTSUPP
}

/// Deallocation of a memory window. Called through the context's table. Returns `EOPNOTSUPP`.
pub(crate) extern "C" fn dealloc_mw(_window: *mut c_void) -> c_int {
    libc::EOPNOTSUPP
}
