//! The device list.
//!
//! Listing starts no thread, and the only file that it opens is its mark ([`usage`]): the library
//! is also loaded into shells, launchers and debuggers.

use core::ffi::{c_char, c_int};
use core::ptr::null;

use efa_shm::usage::{self, UsageStep};

use crate::abi::{IBV_FORK_UNNEEDED, ibv_device};
use crate::ffi::errno;
use crate::ffi::stack::with_cleared_stack;
use crate::objects::device::Device;

/// Lists the devices of this process and writes their number to `*count`.
///
/// Returns an array that ends with a null pointer, to be freed with [`ibv_free_device_list`], and
/// `errno` 0; or null with `errno`: `ENOMEM`.
///
/// # Safety
/// `count` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    usage::mark(UsageStep::Listed);
    let devices: Vec<_> =
        with_cleared_stack(|| Device::all().iter().map(Device::c_pointer).collect());
    // SAFETY: allocates zeroed memory, or returns null.
    let list: *mut *mut ibv_device =
        unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }.cast();
    if list.is_null() {
        errno::set(libc::ENOMEM);
        return list;
    }
    for (index, device) in devices.iter().enumerate() {
        // SAFETY: the array has room for all devices and the final null.
        unsafe { list.add(index).write(*device) };
    }
    if !count.is_null() {
        // SAFETY: valid by contract.
        unsafe { count.write(devices.len() as c_int) };
    }
    // Clients distinguish "no devices" from "failed" by `errno`.
    errno::set(0);
    list
}

/// Frees the array of a list; the devices remain.
///
/// # Safety
/// `list` is null or the result of [`ibv_get_device_list`], and is not used any more.
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: from `calloc`, or null.
    unsafe { libc::free(list.cast()) };
}

/// Returns the device's name, a static C string, or null with the `errno` `ENODEV` for any other
/// pointer.
pub(crate) extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    Device::find(device).map_or_else(
        |errno| {
            errno::set(errno.number());
            null()
        },
        Device::name,
    )
}

/// Returns the device's node GUID, big endian; 0 for any other pointer.
pub(crate) extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    Device::find(device).map_or(0, Device::guid)
}

/// Returns the kernel's index of the device: -1, because the device is unknown to the kernel.
/// Clients then make no requests to the kernel by this number.
pub(crate) extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// Returns `IBV_FORK_UNNEEDED`: memory needs no preparations for `fork`.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED
}
