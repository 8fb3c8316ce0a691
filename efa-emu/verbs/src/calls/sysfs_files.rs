//! The sysfs helpers that librdmacm and tools call.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::abi::ibv_device;
use crate::ffi::errno::{self, Errno};
use crate::objects::device::{Device, sysfs_root};

/// Returns the path of sysfs, a static C string.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    sysfs_root().as_ptr()
}

/// Reads `DIRECTORY/FILE` into `buffer` as a C string without its trailing newline.
///
/// Returns its length, or -1 with `errno`: `EINVAL` for a null pointer or no room, or the error of
/// reading the file.
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
        return length_or_minus_one(Err(Errno::INVAL));
    }
    // SAFETY: not null, so C strings by contract.
    let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
    let path = [directory, file]
        .iter()
        .map(|part| OsStr::from_bytes(part.to_bytes()))
        .collect::<PathBuf>();
    // SAFETY: passed on.
    length_or_minus_one(unsafe { read_attribute(&path, buffer, size) })
}

/// Reads a file in the infiniband class directory of a device. `file` is a printf format; it has no
/// conversions.
///
/// Returns as [`ibv_read_sysfs_file`]; `ENODEV` for any other pointer.
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
        return length_or_minus_one(Err(errno));
    }
    // SAFETY: it is the device of this library, whose path ends with a zero byte.
    let directory = unsafe { &raw const (*device).ibdev_path };
    // SAFETY: passed on.
    unsafe { ibv_read_sysfs_file(directory.cast(), file, buffer, size) }
}

fn length_or_minus_one(length: Result<usize, Errno>) -> c_int {
    match length {
        Ok(length) => length as c_int,
        Err(errno) => errno::zero_or_minus_one(Err(errno)),
    }
}

/// # Safety
/// `buffer` is null or has room for `size` bytes.
unsafe fn read_attribute(path: &Path, buffer: *mut c_char, size: usize) -> Result<usize, Errno> {
    let room = size.checked_sub(1).filter(|_| !buffer.is_null());
    let room = room.ok_or(Errno::INVAL)?;
    // No attribute is longer than a page.
    let mut content = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(room.min(4096) as u64).read_to_end(&mut content))
        .map_err(|error| error.raw_os_error().map_or(Errno::NOENT, Errno::new))?;
    if content.last() == Some(&b'\n') {
        content.pop();
    }
    content.push(0);
    // SAFETY: at most `room + 1 == size` bytes.
    unsafe { core::ptr::copy_nonoverlapping(content.as_ptr().cast(), buffer, content.len()) };
    Ok(content.len() - 1)
}
