//! The build of the running software.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The version of all packages of this software.
pub const PACKAGE: &str = env!("CARGO_PKG_VERSION");

/// The commit that a package, or a program with its libraries in it, was made from.
const COMMIT: Option<&str> = option_env!("EFA_RDM_COMMIT");

/// The clone in which cargo built it, if it is of no package.
pub const CLONE: Option<&str> = option_env!("EFA_RDM_CLONE");

/// The version, with the commit if it is known, or else the clone in which it was built.
pub fn build() -> String {
    match (COMMIT, CLONE) {
        (Some(commit), _) => format!("{PACKAGE} (commit {commit})"),
        (None, Some(clone)) => format!("{PACKAGE} (built in {clone})"),
        (None, None) => PACKAGE.to_owned(),
    }
}

/// The build, and the file that its code was loaded from.
pub(crate) fn identity() -> String {
    let place = own_file().map_or_else(String::new, |path| format!(", {}", path.display()));
    format!("efa-emu {}{place}", build())
}

/// The file that this code was loaded from: a library's path where it is part of a library.
fn own_file() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    // SAFETY: the address is only compared with addresses of loaded objects, and `info` may be
    // written.
    let found = unsafe { libc::dladdr(own_file as *const libc::c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a string of the dynamic linker, which is valid as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    // For the program itself, the linker reports the name by which it was started.
    match path.is_absolute() {
        true => Some(path),
        false => std::env::current_exe().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_names_its_version_and_its_file() {
        let own = std::env::current_exe().unwrap();
        let identity = identity();
        assert!(identity.starts_with("efa-emu 0."), "{identity}");
        assert!(identity.ends_with(&own.display().to_string()), "{identity}");
    }
}
