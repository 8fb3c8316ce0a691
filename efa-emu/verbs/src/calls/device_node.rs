//! The devices' character devices, `/dev/infiniband/uverbs0` and so on, for programs that look for
//! them.
//!
//! UCX silently skips a device unless `stat` finds a character device under its name and `access`
//! permits reading and writing. Making such a file requires root, and is not needed: programs never
//! open it, because this library opens devices. Therefore this module answers `stat` and `access`
//! for these paths, only in a process that has the devices. Every other call is passed to the
//! kernel unchanged.
//!
//! The calls are passed to the kernel directly, not to the C library's functions of the same names.
//! Releases of the C library have different sets of these functions, and `dlsym` may allocate
//! memory, while `stat` and `access` are also called from signal handlers and allocators.

use core::ffi::{CStr, c_char, c_int, c_long};

use crate::ffi::errno;
use crate::objects::device::Device;

/// The directory where udev puts the character devices of verbs devices.
const DIRECTORY: &[u8] = b"/dev/infiniband/";

/// The kernel's numbers for the first verbs device.
const NUMBER: (u32, u32) = (231, 192);

/// The mode set by udev's rules for RDMA devices.
const MODE: libc::mode_t = libc::S_IFCHR | 0o666;

/// Versions of `struct stat` that programs for a C library before 2.33 pass: the kernel's layout,
/// and the C library's, which is the same on 64-bit machines.
const STAT_VERSIONS: [c_int; 2] = [0, 1];

/// The index of this process's device that `path` names, after the kernel has refused a call about
/// it with `errno`; `None` for other paths.
///
/// # Safety
/// `path` is the argument of the call.
unsafe fn refused_ours(path: *const c_char) -> Option<u32> {
    // With any other error the kernel has read the path.
    if path.is_null() || errno::get() == libc::EFAULT {
        return None;
    }
    // SAFETY: the kernel could read it up to its end.
    let path = unsafe { CStr::from_ptr(path) };
    path.to_bytes()
        .strip_prefix(DIRECTORY)
        .and_then(Device::with_node)
}

/// Calls the kernel, and answers for a device that is unknown to it.
///
/// Returns 0, or -1 with the `errno` of `stat(2)`.
///
/// # Safety
/// `path` is a C string, or a pointer that the kernel refuses; `status` is null or valid for a
/// write.
unsafe fn stat_of(path: *const c_char, status: *mut libc::stat) -> c_int {
    let directory = c_long::from(libc::AT_FDCWD);
    // SAFETY: the system call checks its pointers itself.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, status, 0) };
    if result == 0 || status.is_null() {
        return result as c_int;
    }
    // SAFETY: the path that was passed.
    let Some(index) = (unsafe { refused_ours(path) }) else {
        return result as c_int;
    };
    // SAFETY: all zeros are a valid value: it has only numbers.
    let mut node: libc::stat = unsafe { core::mem::zeroed() };
    node.st_mode = MODE;
    node.st_nlink = 1;
    node.st_rdev = libc::makedev(NUMBER.0, NUMBER.1 + index);
    node.st_blksize = 4096;
    // SAFETY: not null, so valid for a write by contract.
    unsafe { status.write(node) };
    0
}

/// Defines the functions of the `stat` family. On 64-bit machines, the functions with `64` have the
/// same structure.
macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident($($version:ident: c_int,)? *mut $structure:ty);)+) => { $(
        $(#[$doc])*
        ///
        /// Returns 0, or -1 with the `errno` of `stat(2)`. The kernel checks the pointers.
        ///
        /// # Safety
        /// `path` is a C string, or a pointer that the kernel refuses; `status` is null or valid
        /// for a write.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name(
            $($version: c_int,)?
            path: *const c_char,
            status: *mut $structure,
        ) -> c_int {
            $(if !STAT_VERSIONS.contains(&$version) {
                errno::set(libc::EINVAL);
                return -1;
            })?
            // SAFETY: passed on; the structures are the same.
            unsafe { stat_of(path, status.cast()) }
        }
    )+ };
}

stats! {
    /// Writes the attributes of a file. A device of this process that is unknown to the kernel is
    /// shown as a character device.
    stat(*mut libc::stat);
    /// `stat` by another name.
    stat64(*mut libc::stat64);
    /// `stat` for programs that were linked to a C library before 2.33; `EINVAL` for a version that
    /// does not exist.
    __xstat(version: c_int, *mut libc::stat);
    /// `__xstat` by another name.
    __xstat64(version: c_int, *mut libc::stat64);
}

/// Checks whether the program may use a file. Devices of this process may be read and written.
///
/// Returns 0, or -1 with the `errno` of `access(2)`; `EACCES` for execute permission on a device.
///
/// # Safety
/// `path` is a C string, or a pointer that the kernel refuses.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    let (directory, wanted) = (c_long::from(libc::AT_FDCWD), c_long::from(mode));
    // SAFETY: the system call checks its pointer itself.
    let result = unsafe { libc::syscall(libc::SYS_faccessat, directory, path, wanted) };
    // A mode that does not exist is refused before the path is read.
    let path_was_read = result != 0 && errno::get() != libc::EINVAL;
    // SAFETY: the path that was passed.
    if !path_was_read || unsafe { refused_ours(path) }.is_none() {
        return result as c_int;
    }
    if mode & libc::X_OK != 0 {
        errno::set(libc::EACCES);
        return -1;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process of the tests has no device, so these calls are about other paths.
    #[test]
    fn other_paths_are_the_kernels() {
        // SAFETY: all zeros are a valid value.
        let mut ours: libc::stat = unsafe { core::mem::zeroed() };
        for (path, expected) in [
            (c"/", 0),
            (c"/dev/null", 0),
            (c"/dev/infiniband/uverbs0", libc::ENOENT),
            (c"/no/such/file", libc::ENOENT),
            (c"", libc::ENOENT),
            (c"/dev/null/x", libc::ENOTDIR),
        ] {
            errno::set(0);
            // SAFETY: a C string and a structure.
            let result = unsafe { stat(path.as_ptr(), &raw mut ours) };
            assert_eq!(
                (result == 0, errno::get()),
                (expected == 0, expected),
                "{path:?}"
            );
            // SAFETY: a C string.
            let result = unsafe { access(path.as_ptr(), libc::F_OK) };
            assert_eq!(
                (result == 0, errno::get()),
                (expected == 0, expected),
                "{path:?}"
            );
        }
        // SAFETY: the kernel checks pointers.
        unsafe {
            assert_eq!(stat(core::ptr::without_provenance(1), &raw mut ours), -1);
            assert_eq!(errno::get(), libc::EFAULT);
            assert_eq!(access(core::ptr::null(), libc::R_OK), -1);
            assert_eq!(errno::get(), libc::EFAULT);
            assert_eq!(access(c"/".as_ptr(), 0o777), -1);
            assert_eq!(errno::get(), libc::EINVAL);
            assert_eq!(__xstat(9, c"/".as_ptr(), &raw mut ours), -1);
            assert_eq!(errno::get(), libc::EINVAL);
            assert_eq!(__xstat64(1, c"/".as_ptr(), (&raw mut ours).cast()), 0);
            assert_eq!(stat64(c"/".as_ptr(), (&raw mut ours).cast()), 0);
        }
        assert_eq!(ours.st_mode & libc::S_IFMT, libc::S_IFDIR);
    }
}
