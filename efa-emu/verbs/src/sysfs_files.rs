//! The sysfs helpers that librdmacm and tools call.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::{CString, OsStr};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use efa_device_model::sysfs::ENV_SYSFS_PATH;

use crate::abi::ibv_device;
use crate::device::Device;
use crate::errno::{self, Errno};

/// The root of sysfs: what the environment says, else `/sys`.
pub(crate) fn root() -> &'static CStr {
    static ROOT: OnceLock<CString> = OnceLock::new();
    ROOT.get_or_init(|| {
        let named = std::env::var_os(ENV_SYSFS_PATH).unwrap_or_else(|| "/sys".into());
        let mut bytes = named.into_vec();
        while bytes.len() > 1 && bytes.ends_with(b"/") {
            bytes.pop();
        }
        CString::new(bytes).expect("an environment variable has no zero byte")
    })
}

/// [`root`] as a path.
pub(crate) fn root_path() -> &'static Path {
    Path::new(OsStr::from_bytes(root().to_bytes()))
}

pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    root().as_ptr()
}

/// Reads `DIRECTORY/FILE` into `buffer` as a C string without its trailing newline; returns its
/// length, or -1 and `errno`.
///
/// # Safety
/// `directory` and `file` are null or C strings; `buffer` is null or has room for `size` bytes.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    if directory.is_null() || file.is_null() {
        errno::set(libc::EINVAL);
        return -1;
    }
    // SAFETY: not null, so C strings by contract.
    let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
    let path = [directory, file]
        .iter()
        .map(|part| OsStr::from_bytes(part.to_bytes()))
        .collect::<PathBuf>();
    // SAFETY: passed on.
    unsafe { read_attribute(&path, buffer, size) }
}

/// As [`ibv_read_sysfs_file`], in the infiniband class directory of a device, for a printf format
/// without conversions.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes; `file` is null or a C string.
pub(crate) unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    buffer: *mut c_char,
    size: usize,
    device: *const ibv_device,
    file: *const c_char,
) -> c_int {
    if let Err(errno) = Device::find(device) {
        errno::set(errno.number());
        return -1;
    }
    // SAFETY: it is the device of this library, whose path ends with a zero byte.
    let directory = unsafe { &raw const (*device).ibdev_path };
    // SAFETY: passed on.
    unsafe { ibv_read_sysfs_file(directory.cast(), file, buffer, size) }
}

/// # Safety
/// `buffer` is null or has room for `size` bytes.
unsafe fn read_attribute(path: &Path, buffer: *mut c_char, size: usize) -> c_int {
    let Some(room) = size.checked_sub(1).filter(|_| !buffer.is_null()) else {
        errno::set(libc::EINVAL);
        return -1;
    };
    // No attribute is longer than a page.
    let mut content = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(room.min(4096) as u64).read_to_end(&mut content));
    if let Err(error) = read {
        errno::set(
            error
                .raw_os_error()
                .map_or(Errno::NOENT, Errno::new)
                .number(),
        );
        return -1;
    }
    if content.last() == Some(&b'\n') {
        content.pop();
    }
    content.push(0);
    // SAFETY: at most `room + 1 == size` bytes.
    unsafe { core::ptr::copy_nonoverlapping(content.as_ptr().cast(), buffer, content.len()) };
    content.len() as c_int - 1
}
