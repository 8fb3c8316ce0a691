//! The functions of the libfabric that has loaded the provider, regardless of its file name. The
//! provider is not linked with libfabric, so one file works with all releases, even with two in a
//! process.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::ffi::{fi_dupinfo_t, fi_info, fi_log_enabled_t, fi_log_t, fi_provider, fi_version_t};

/// The functions of the libfabric that has loaded this provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    dup_info: fi_dupinfo_t,
    version: fi_version_t,
    log_enabled: Option<fi_log_enabled_t>,
    log: Option<fi_log_t>,
    define: Option<DefineParameter>,
}

/// `fi_param_define`: the provider by whose name the variable begins, its name, its type, and a
/// format with arguments that make the text about it.
type DefineParameter =
    unsafe extern "C" fn(*const fi_provider, *const c_char, c_uint, *const c_char, ...) -> c_int;

static HOST: OnceLock<Option<Host>> = OnceLock::new();

/// This provider, as lines of the log name it.
static PROVIDER: AtomicPtr<fi_provider> = AtomicPtr::new(std::ptr::null_mut());

/// A part of libfabric's log (`enum fi_log_subsys`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subsystem {
    Core = crate::ffi::FI_LOG_CORE as isize,
    Domain = crate::ffi::FI_LOG_DOMAIN as isize,
    Endpoint = crate::ffi::FI_LOG_EP_CTRL as isize,
}

impl Host {
    /// Finds the libfabric that loads this provider, for the first time; later it is the same.
    pub(crate) fn find(provider: *mut fi_provider) -> Option<&'static Host> {
        PROVIDER.store(provider, Ordering::Relaxed);
        HOST.get_or_init(|| {
            callers()
                .into_iter()
                .chain(["libfabric.so.1".to_owned()])
                .find_map(|file| Host::of(&file))
        })
        .as_ref()
    }

    /// Declares a variable of the environment, for `fi_info -e` and `fi_getparams`. `provider` has
    /// the middle of its name, as in `FI_EFA_RUNT_SIZE`, and is never freed.
    pub(crate) fn define(
        &self,
        provider: &'static fi_provider,
        name: &str,
        kind: c_uint,
        help: &str,
    ) {
        let (Some(define), Ok(name), Ok(help)) =
            (self.define, CString::new(name), CString::new(help))
        else {
            return;
        };
        // SAFETY: all arguments are strings, which are copied; the format has one string argument.
        let status =
            unsafe { define(provider, name.as_ptr(), kind, c"%s".as_ptr(), help.as_ptr()) };
        if status != 0 {
            log_info!(Core, "parameter {name:?} is not listed: error {}", -status);
        }
    }

    /// The libfabric that has loaded this provider.
    pub(crate) fn get() -> Option<&'static Host> {
        HOST.get().and_then(Option::as_ref)
    }

    /// The functions of a loaded object.
    fn of(file: &str) -> Option<Host> {
        let file = CString::new(file).ok()?;
        // The empty name is the program's.
        let name = match file.is_empty() {
            true => std::ptr::null(),
            false => file.as_ptr(),
        };
        // SAFETY: the name is a string or null; nothing is loaded that is not already. The handle
        // is kept: the object stays as long as this provider.
        let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        let find = |name: &CStr| -> Option<*mut c_void> {
            // SAFETY: the handle is open and the name is a string.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: these are the types of libfabric's functions in all releases.
        unsafe {
            Some(Host {
                dup_info: std::mem::transmute::<*mut c_void, fi_dupinfo_t>(find(c"fi_dupinfo")?),
                version: std::mem::transmute::<*mut c_void, fi_version_t>(find(c"fi_version")?),
                log_enabled: find(c"fi_log_enabled")
                    .map(|found| std::mem::transmute::<*mut c_void, fi_log_enabled_t>(found)),
                log: find(c"fi_log")
                    .map(|found| std::mem::transmute::<*mut c_void, fi_log_t>(found)),
                define: find(c"fi_param_define")
                    .map(|found| std::mem::transmute::<*mut c_void, DefineParameter>(found)),
            })
        }
    }

    fn log(&self, level: u32, from: Subsystem, text: &str) {
        let (Some(enabled), Some(log)) = (self.log_enabled, self.log) else {
            return;
        };
        let provider = PROVIDER.load(Ordering::Relaxed);
        let Ok(text) = CString::new(format!("{text}\n")) else {
            return;
        };
        // SAFETY: the provider is never freed, and the format has one string argument.
        unsafe {
            if enabled(provider, level, from as u32) != 0 {
                log(
                    provider,
                    level,
                    from as u32,
                    c"efa_rs".as_ptr(),
                    0,
                    c"%s".as_ptr(),
                    text.as_ptr(),
                );
            }
        }
    }

    /// The newest interface of this libfabric. libfabric never requests a newer interface from a
    /// provider than the provider declares, and structures only grow at their end.
    pub(crate) fn version(&self) -> u32 {
        // SAFETY: the function has no arguments.
        unsafe { (self.version)() }
    }

    /// Allocates an info with its attributes (`fi_allocinfo`), as large as this libfabric has it.
    pub(crate) fn allocate_info(&self) -> *mut fi_info {
        // SAFETY: null is documented to return an empty one.
        unsafe { (self.dup_info)(std::ptr::null()) }
    }
}

/// The files of the objects whose functions have led here, innermost first, without this one. The
/// program has an empty name.
fn callers() -> Vec<String> {
    let mut addresses = [std::ptr::null_mut::<c_void>(); 64];
    // SAFETY: the array has room for the requested number.
    let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), addresses.len() as c_int) };
    let object = |address: *const c_void| {
        let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the structure is valid for a write; zeroes are valid in it.
        let found = unsafe {
            libc::dladdr(address, found.as_mut_ptr());
            found.assume_init()
        };
        (!found.dli_fname.is_null()).then(|| {
            // SAFETY: the dynamic linker's strings are valid as long as the object, which is in
            // use.
            let name = unsafe { CStr::from_ptr(found.dli_fname) };
            name.to_string_lossy().into_owned()
        })
    };
    let own = object(callers as *const c_void);
    let mut files: Vec<String> = Vec::new();
    for address in addresses.iter().take(usize::try_from(count).unwrap_or(0)) {
        let file = object(address.cast_const());
        if file != own
            && let Some(file) = file
            && !files.contains(&file)
        {
            files.push(file);
        }
    }
    files.push(String::new());
    files
}

/// Writes a line to libfabric's log at a level.
pub(crate) fn log(level: u32, from: Subsystem, text: &str) {
    match level {
        super::FI_LOG_WARN => tracing::warn!(target: "efa_ofi", "{text}"),
        _ => tracing::debug!(target: "efa_ofi", "{text}"),
    }
    if let Some(host) = Host::get() {
        host.log(level, from, text);
    }
}

/// Writes a line to libfabric's log at level `info`: `log_info!(Core, "device {name}")`.
macro_rules! log_info {
    ($from:ident, $($text:tt)+) => {
        $crate::ffi::host::log(
            $crate::ffi::FI_LOG_INFO,
            $crate::ffi::host::Subsystem::$from,
            &format!($($text)+),
        )
    };
}

/// As [`log_info`], at level `warn`.
macro_rules! log_warn {
    ($from:ident, $($text:tt)+) => {
        $crate::ffi::host::log(
            $crate::ffi::FI_LOG_WARN,
            $crate::ffi::host::Subsystem::$from,
            &format!($($text)+),
        )
    };
}

pub(crate) use {log_info, log_warn};
