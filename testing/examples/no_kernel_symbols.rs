//! A library to preload into tests, which hides `/proc/kallsyms`.
//!
//! Stock libfabric reads this file twice at each start, to find out whether its verbs provider may
//! use memory of graphics cards. The kernel takes about 80 ms to print it, which was an eighth of
//! the time of the tests. Programs on the emulated device do not need the answer.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

/// The C library's `fopen`; without `/proc/kallsyms` (`ENOENT`).
///
/// # Safety
/// As the C library's: both are strings that end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    static REAL: OnceLock<Option<Open>> = OnceLock::new();
    let real = *REAL.get_or_init(|| {
        // SAFETY: the name is a string that ends with a zero byte.
        let found: *mut c_void = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fopen".as_ptr()) };
        // SAFETY: the C library's symbol with this name is a function of this type, or null, which
        // is `None`.
        unsafe { std::mem::transmute(found) }
    });
    // SAFETY: the caller's promise.
    let is_hidden = unsafe { CStr::from_ptr(path) } == c"/proc/kallsyms";
    match real {
        // SAFETY: the caller's promise.
        Some(open) if !is_hidden => unsafe { open(path, mode) },
        _ => {
            // SAFETY: the location is the calling thread's own.
            unsafe { *libc::__errno_location() = libc::ENOENT };
            std::ptr::null_mut()
        }
    }
}
