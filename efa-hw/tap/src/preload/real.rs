//! The functions of the libraries that the program uses.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::io::Write as _;

use efa_hw::efadv::AhAttr;
use efa_verbs_sys as ffi;

use super::libc_dlsym::{dlvsym, real_dlsym};
use crate::exchange::ENV_QUIET;

/// A function of a library, looked up when it is first needed.
pub(crate) struct RealFunction {
    name: &'static CStr,
    library: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl RealFunction {
    const fn new(name: &'static CStr, library: &'static CStr) -> RealFunction {
        RealFunction {
            name,
            library,
            address: AtomicPtr::new(null_mut()),
        }
    }

    /// The function's address, or null if no library has it.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = find(self.name, self.library);
        self.address.store(found, Ordering::Relaxed);
        found
    }

    /// Notes the address that the program has looked up itself.
    pub(crate) fn learn(&self, address: *mut c_void) {
        let (known, order) = (null_mut(), Ordering::Relaxed);
        // Nearly every program has one address; if there are two, the first is kept.
        let _ = self.address.compare_exchange(known, address, order, order);
    }

    /// The function's name.
    pub(crate) fn name(&self) -> &'static CStr {
        self.name
    }

    /// Reports that the function is missing, and sets `errno` to `ENOSYS`.
    pub(crate) fn missing(&self) -> c_int {
        say(&format!(
            "{} is in no library that the program has loaded: the call fails",
            self.name.to_string_lossy()
        ));
        // SAFETY: the thread's own variable.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        libc::ENOSYS
    }
}

/// The version of those functions of libibverbs that have two; the other version has other
/// structures. Without a version, the C library finds the newest, but before 2.36 the oldest if it
/// searches after a library (its bug 14932).
const PRESENT: &CStr = c"IBVERBS_1.1";

/// Looks for a function after this library in the order of symbols, then in the library with this
/// name, which a plug-in may have loaded for itself, then in all loaded libraries.
fn find(name: &CStr, library: &CStr) -> *mut c_void {
    // SAFETY: strings that end with zero.
    let next = unsafe {
        match dlvsym(libc::RTLD_NEXT, name.as_ptr(), PRESENT.as_ptr()) {
            none if none.is_null() => real_dlsym(libc::RTLD_NEXT, name.as_ptr()),
            found => found,
        }
    };
    if !next.is_null() {
        return next;
    }
    let found = find_in(name, library);
    if !found.is_null() {
        return found;
    }
    let mut search = Search {
        name,
        found: null_mut(),
    };
    // SAFETY: the callback has the expected arguments, and is called before this returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    name: &'a CStr,
    found: *mut c_void,
}

/// # Safety
/// `data` is a [`Search`], and `info` is valid.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: by contract.
    let (search, object) = unsafe { (&mut *data.cast::<Search<'_>>(), (*info).dlpi_name) };
    // SAFETY: the dynamic linker's string.
    if object.is_null() || unsafe { *object } == 0 {
        return 0;
    }
    // SAFETY: as above.
    search.found = find_in(search.name, unsafe { CStr::from_ptr(object) });
    c_int::from(!search.found.is_null())
}

/// The function in a loaded library, or in its dependencies; null if it does not exist or belongs
/// to the tap.
fn find_in(name: &CStr, library: &CStr) -> *mut c_void {
    // SAFETY: strings that end with zero; nothing is loaded.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return null_mut();
    }
    // SAFETY: the handle is valid. It is closed again; the library stays loaded, because others
    // have loaded it.
    let found = unsafe {
        let found = real_dlsym(handle, name.as_ptr());
        libc::dlclose(handle);
        found
    };
    if is_own(found) { null_mut() } else { found }
}

/// Returns whether the address is in this library.
fn is_own(address: *mut c_void) -> bool {
    let object_of = |address: *const c_void| {
        let mut info = libc::Dl_info {
            dli_fname: core::ptr::null(),
            dli_fbase: null_mut(),
            dli_sname: core::ptr::null(),
            dli_saddr: null_mut(),
        };
        // SAFETY: the address is only compared, and `info` may be written.
        unsafe { libc::dladdr(address, &raw mut info) };
        info.dli_fbase
    };
    !address.is_null() && object_of(address) == object_of(find_in as *const c_void)
}

/// Writes a line to standard error with one call.
pub(crate) fn say(text: &str) {
    tracing::warn!("{text}");
    if std::env::var_os(ENV_QUIET).is_none() {
        let line = format!("efa-tap: process {}: {text}\n", std::process::id());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Declares functions of the libraries, each as a constant-like static and a type.
macro_rules! functions {
    ($($library:literal { $($name:ident: fn($($type:ty),*) -> $result:ty;)+ })+) => {
        $($(
            pub(crate) mod $name {
                use super::*;
                pub(crate) type Function = unsafe extern "C" fn($($type),*) -> $result;
                pub(crate) static REAL: RealFunction = {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(
                        concat!(stringify!($name), "\0").as_bytes(),
                    ) {
                        Ok(name) => name,
                        Err(_) => panic!("a name without zero"),
                    };
                    RealFunction::new(NAME, $library)
                };

                /// The function, if a library has it.
                pub(crate) fn get() -> Option<Function> {
                    let address = REAL.address();
                    // SAFETY: the type is that of the library's header; null is `None`.
                    unsafe { core::mem::transmute::<*mut c_void, Option<Function>>(address) }
                }
            }
        )+)+
    };
}

functions! {
    c"libibverbs.so.1" {
        ibv_open_device: fn(*mut ffi::ibv_device) -> *mut ffi::ibv_context;
        ibv_close_device: fn(*mut ffi::ibv_context) -> c_int;
        ibv_query_device: fn(*mut ffi::ibv_context, *mut ffi::ibv_device_attr) -> c_int;
        ibv_query_port: fn(*mut ffi::ibv_context, u8, *mut ffi::ibv_port_attr) -> c_int;
        ibv_query_gid: fn(*mut ffi::ibv_context, u8, c_int, *mut ffi::ibv_gid) -> c_int;
        ibv_create_ah: fn(*mut ffi::ibv_pd, *mut ffi::ibv_ah_attr) -> *mut ffi::ibv_ah;
        ibv_create_qp: fn(*mut ffi::ibv_pd, *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp;
        ibv_modify_qp: fn(*mut ffi::ibv_qp, *mut ffi::ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp: fn(*mut ffi::ibv_qp) -> c_int;
        ibv_qp_to_qp_ex: fn(*mut ffi::ibv_qp) -> *mut ffi::ibv_qp_ex;
        ibv_destroy_cq: fn(*mut ffi::ibv_cq) -> c_int;
        ibv_dereg_mr: fn(*mut ffi::ibv_mr) -> c_int;
    }
    c"libefa.so.1" {
        efadv_query_ah: fn(*mut ffi::ibv_ah, *mut AhAttr, u32) -> c_int;
        efadv_create_driver_qp: fn(*mut ffi::ibv_pd, *mut ffi::ibv_qp_init_attr, u32) -> *mut ffi::ibv_qp;
        efadv_create_qp_ex: fn(*mut ffi::ibv_context, *mut ffi::ibv_qp_init_attr_ex, *mut c_void, u32) -> *mut ffi::ibv_qp;
        efadv_create_cq: fn(*mut ffi::ibv_context, *mut ffi::ibv_cq_init_attr_ex, *mut c_void, u32) -> *mut ffi::ibv_cq_ex;
        efadv_query_cq: fn(*mut ffi::ibv_cq, *mut c_void, u32) -> c_int;
        efadv_query_qp_wqs: fn(*mut ffi::ibv_qp, *mut c_void, *mut c_void, u32) -> c_int;
        efadv_cq_from_ibv_cq_ex: fn(*mut ffi::ibv_cq_ex) -> *mut efa_hw::efadv::Cq;
    }
}

/// The text in an array of C characters, as bytes.
pub(crate) fn bytes_of<const N: usize>(text: &[c_char; N]) -> [u8; N] {
    text.map(|byte| byte as u8)
}
