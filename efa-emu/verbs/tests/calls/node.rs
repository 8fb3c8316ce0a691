//! The device's character device, as UCX searches for it.

use std::ffi::CStr;
use std::io;

use crate::on_emulated_host;

const NODE: &CStr = c"/dev/infiniband/uverbs0";

fn kind_of(path: &CStr) -> Result<u32, i32> {
    // SAFETY: all zeros are a valid value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a structure.
    match unsafe { libc::stat(path.as_ptr(), &raw mut status) } {
        0 => Ok(status.st_mode & libc::S_IFMT),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

fn access(path: &CStr, mode: i32) -> Result<(), i32> {
    // SAFETY: a C string.
    match unsafe { libc::access(path.as_ptr(), mode) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

#[test]
fn programs_with_the_device_see_its_node() {
    on_emulated_host("efa2", || {
        assert_eq!(kind_of(NODE), Ok(libc::S_IFCHR));
        assert_eq!(access(NODE, libc::F_OK), Ok(()));
        assert_eq!(access(NODE, libc::R_OK | libc::W_OK), Ok(()));
        assert_eq!(access(NODE, libc::X_OK), Err(libc::EACCES));
        assert_eq!(access(NODE, 0o10), Err(libc::EINVAL));
    });
}

#[test]
fn other_paths_are_unchanged() {
    on_emulated_host("efa2", || {
        for path in [c"/dev/infiniband/uverbs77", c"/dev/infiniband/uverbs0x"] {
            assert_eq!(kind_of(path), Err(libc::ENOENT), "{path:?}");
            assert_eq!(access(path, libc::R_OK), Err(libc::ENOENT), "{path:?}");
        }
        assert_eq!(kind_of(c"/"), Ok(libc::S_IFDIR));
        assert_eq!(access(c"/", libc::X_OK), Ok(()));
    });
}
