//! The C library's own lookup of symbols, which the exported `dlsym` replaces.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The C library's `dlsym`, once it was needed.
pub(super) static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The oldest version of the symbol, which every newer C library has as well.
#[cfg(target_arch = "x86_64")]
const VERSION: &CStr = c"GLIBC_2.2.5";
/// The same for arm64.
#[cfg(target_arch = "aarch64")]
const VERSION: &CStr = c"GLIBC_2.17";

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the tap is written for x86-64 and arm64");

unsafe extern "C" {
    pub(super) fn dlvsym(
        handle: *mut c_void,
        name: *const c_char,
        version: *const c_char,
    ) -> *mut c_void;
}

/// The C library's function, called from here.
///
/// # Safety
/// As that of the C library.
pub(super) unsafe fn real_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let mut address = DLSYM.load(Ordering::Relaxed);
    if address.is_null() {
        // SAFETY: strings that end with zero. Every C library of the GNU project has the symbol in
        // this version.
        address = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), VERSION.as_ptr()) };
        DLSYM.store(address, Ordering::Relaxed);
    }
    if address.is_null() {
        return null_mut();
    }
    // SAFETY: it is this function.
    unsafe {
        let function: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
            core::mem::transmute(address);
        function(handle, name)
    }
}
