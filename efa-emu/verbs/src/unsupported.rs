//! What EFA does not have, in the four shapes of C functions. They take no notice of arguments,
//! which the C calling convention allows.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;

use crate::errno;

/// A verb that creates an object.
pub(crate) extern "C" fn no_pointer() -> *mut c_void {
    errno::set(libc::EOPNOTSUPP);
    null_mut()
}

/// A verb that returns an errno.
pub(crate) extern "C" fn not_supported() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// A verb that returns -1 and sets `errno`.
pub(crate) extern "C" fn minus_one() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// A verb that returns nothing and has nothing to do.
pub(crate) extern "C" fn not_supported_nothing() {}

/// A verb that returns a 64-bit number.
pub(crate) extern "C" fn zero() -> u64 {
    0
}

/// Returns the number 0: of nothing there is none.
pub(crate) extern "C" fn none() -> c_uint {
    0
}

/// A verb that is not needed here and so succeeds: preparations for `fork`. Registered memory is
/// read through the process' own mappings, which copy-on-write cannot move away from the device.
pub(crate) extern "C" fn success() -> c_int {
    0
}
