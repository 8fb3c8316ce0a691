//! Mounts in the mount namespace of the calling process.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Makes all mounts slaves: mounts of this namespace do not propagate out of it, outer mounts still
/// propagate into it.
pub(crate) fn keep_private() -> io::Result<()> {
    let flags = libc::MS_REC | libc::MS_SLAVE;
    mount(None, Path::new("/"), None, flags, None)
}

/// Whether the root directory is a mount point. In a chroot it may not be one; then no directory
/// below can be made private.
pub(crate) fn root_is_mounted() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.any(|point| point == "/")
}

/// Mounts an empty directory in memory, writable for everybody or only for its owner.
pub(crate) fn memory(target: &Path, mode: Writable) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    let mode = match mode {
        Writable::ByAll => c"mode=1777",
        Writable::ByOwner => c"mode=755",
    };
    mount(Some(c"tmpfs"), target, Some(c"tmpfs"), flags, Some(mode))
}

/// The processes that can create files in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writable {
    ByAll,
    ByOwner,
}

/// Bind-mounts a file or directory, with its submounts, at another path.
pub(crate) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    let flags = libc::MS_BIND | libc::MS_REC;
    mount(Some(&c_path(source)?), target, None, flags, None)
}

/// A detached copy of a directory with its submounts. Requires Linux 5.2.
pub(crate) fn copy(directory: &Path) -> io::Result<OwnedFd> {
    const FLAGS: u32 = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as u32;
    let directory = c_path(directory)?;
    // SAFETY: the string is valid during the call.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            directory.as_ptr(),
            FLAGS,
        )
    };
    check(opened.min(0) as i32)?;
    // SAFETY: a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(opened as RawFd) })
}

/// Attaches a copy at a directory.
pub(crate) fn attach(copy: &OwnedFd, target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: the strings are valid during the call.
    let moved = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            copy.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    check(moved as i32)
}

fn mount(
    source: Option<&CStr>,
    target: &Path,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> io::Result<()> {
    let target = c_path(target)?;
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: all pointers are null or to strings that are valid during the call.
    check(unsafe {
        libc::mount(
            pointer(source),
            target.as_ptr(),
            pointer(kind),
            flags,
            pointer(options).cast(),
        )
    })
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The result of a system call that returns 0 for success.
pub(crate) fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
