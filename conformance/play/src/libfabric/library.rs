//! Loading the shared library.

use std::ffi::{CStr, OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Error, Version, ffi};

/// A loaded libfabric.
#[derive(Clone)]
pub struct Library(pub(super) Arc<Functions>);

/// The few functions that libfabric exports as symbols.
pub(super) struct Functions {
    pub(super) getinfo: ffi::fi_getinfo_t,
    pub(super) freeinfo: ffi::fi_freeinfo_t,
    pub(super) dupinfo: ffi::fi_dupinfo_t,
    pub(super) fabric: ffi::fi_fabric_t,
    version: ffi::fi_version_t,
    strerror: ffi::fi_strerror_t,
    tostr: ffi::fi_tostr_t,
    path: PathBuf,
    /// Keeps the code of the functions mapped.
    _library: libloading::Library,
}

/// The actions of a process on signals that kill it.
///
/// Some builds of libfabric load libraries of other vendors, which handle these signals: a crash
/// then creates a file in the current directory and looks like a normal end. A crash of the
/// software under test has to be visible.
struct CrashHandlers(Vec<(c_int, libc::sigaction)>);

impl CrashHandlers {
    const SIGNALS: [c_int; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGABRT,
        libc::SIGINT,
        libc::SIGTERM,
    ];

    fn save() -> Self {
        let saved = Self::SIGNALS.into_iter().filter_map(|signal| {
            // SAFETY: the structure consists of numbers and a pointer, for which zero is a value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: with a null pointer the call only writes the present action.
            let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
            (result == 0).then_some((signal, action))
        });
        CrashHandlers(saved.collect())
    }

    fn restore(self) {
        for (signal, action) in self.0 {
            // SAFETY: the action was in force before, so its handler may be called.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    }
}

impl Library {
    /// The name by which the dynamic linker finds the system's libfabric.
    pub const DEFAULT: &'static str = "libfabric.so.1";

    /// Loads the library at `path`, or by `path` as a name if it has no slash.
    pub fn load(path: &Path) -> Result<Self, Error> {
        // The loader's message is the source of `libloading`'s error.
        let failed = |error: libloading::Error| Error::Load {
            path: path.to_owned(),
            reason: match std::error::Error::source(&error) {
                Some(source) => source.to_string(),
                None => error.to_string(),
            },
        };
        let handlers = CrashHandlers::save();
        // SAFETY: libfabric's constructors only set up internal state; the caller chose the file.
        let library = unsafe { libloading::Library::new(path) }.map_err(failed)?;
        handlers.restore();
        macro_rules! symbol {
            ($name:literal, $type:ty) => {
                // SAFETY: the type is the function's prototype in libfabric's headers.
                *unsafe { library.get::<$type>($name) }.map_err(failed)?
            };
        }
        Ok(Library(Arc::new(Functions {
            getinfo: symbol!(b"fi_getinfo\0", ffi::fi_getinfo_t),
            freeinfo: symbol!(b"fi_freeinfo\0", ffi::fi_freeinfo_t),
            dupinfo: symbol!(b"fi_dupinfo\0", ffi::fi_dupinfo_t),
            fabric: symbol!(b"fi_fabric\0", ffi::fi_fabric_t),
            version: symbol!(b"fi_version\0", ffi::fi_version_t),
            strerror: symbol!(b"fi_strerror\0", ffi::fi_strerror_t),
            tostr: symbol!(b"fi_tostr\0", ffi::fi_tostr_t),
            path: path.to_owned(),
            _library: library,
        })))
    }

    /// The library's release.
    pub fn version(&self) -> Version {
        // SAFETY: the function has no arguments and returns a number.
        Version::from_raw(unsafe { (self.0.version)() })
    }

    /// The library's release with all its numbers, such as `1.17.0`.
    pub fn release(&self) -> String {
        // SAFETY: for this type the function ignores the data; the result is null or a string that
        // is valid until the next call of this thread.
        let text = unsafe {
            let text = (self.0.tostr)(std::ptr::null(), ffi::FI_TYPE_VERSION as c_int);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        text.unwrap_or_else(|| self.version().to_string())
    }

    /// The loaded file, or the requested name if the dynamic linker cannot name the file.
    pub fn file(&self) -> PathBuf {
        let code: *const std::ffi::c_void = self.0.getinfo as *const _;
        // SAFETY: the structure consists of pointers, for which zero is a value; `dladdr` fills it
        // in for any address, and the name is valid as long as the library is mapped.
        let name = unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            let found = libc::dladdr(code, &mut info) != 0 && !info.dli_fname.is_null();
            found.then(|| {
                PathBuf::from(OsStr::from_bytes(CStr::from_ptr(info.dli_fname).to_bytes()))
            })
        };
        let name = name.unwrap_or_else(|| self.0.path.clone());
        name.canonicalize().unwrap_or(name)
    }

    /// The library's text for a positive error number.
    pub fn describe(&self, code: c_int) -> String {
        // SAFETY: the function accepts any number and returns a static string.
        let text = unsafe { (self.0.strerror)(code) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: a non-null result is a NUL-terminated string that outlives the library's code,
        // which `self` keeps mapped.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }

    /// Turns a call's return value into a result: negative values are errors.
    pub(super) fn check(&self, call: &'static str, result: isize) -> Result<(), Error> {
        if result >= 0 {
            return Ok(());
        }
        let code = c_int::try_from(-result).unwrap_or(c_int::MAX);
        Err(Error::Call {
            call,
            code,
            text: self.describe(code),
        })
    }
}

/// Fetches an entry of an operation table, if the table is long enough to have it.
///
/// To be used inside an `unsafe` block: the table must be null or belong to a live object.
macro_rules! entry {
    ($table:expr, $type:ty, $entry:ident) => {{
        let table: *const $type = $table;
        // A table starts with its size in bytes.
        let end = ::std::mem::offset_of!($type, $entry)
            + ::std::mem::size_of::<*const ::std::ffi::c_void>();
        let found = if table.is_null() || (*table).size < end {
            None
        } else {
            (*table).$entry
        };
        found.ok_or(crate::libfabric::Error::Missing(concat!(
            stringify!($type),
            ".",
            stringify!($entry)
        )))
    }};
}
pub(super) use entry;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_the_remedy() {
        let error = Library::load(Path::new("./no-such-libfabric.so"))
            .err()
            .unwrap();
        let text = error.to_string();
        assert!(text.contains("no-such-libfabric.so"), "{text}");
        assert!(text.contains("--libfabric"), "{text}");
    }
}
