//! Buffers that the library allocates (rdma-core 65).

use core::ffi::{c_int, c_void};

use super::memory_region::register;
use crate::abi::{ibv_buf, ibv_mr, ibv_pd};
use crate::ffi::errno::{self, Errno};
use crate::objects::buffer::Buffer;
use crate::registry::{BUFFERS, DOMAINS};

/// Allocates page-aligned memory of `size` bytes, and writes its handle to `*buffer`.
///
/// Returns the memory, or null with `errno`: `EINVAL` for an unknown `pd` or a null `buffer`,
/// `ENOMEM`.
///
/// # Safety
/// `buffer` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buffer: *mut *mut ibv_buf,
) -> *mut c_void {
    let allocated = DOMAINS.get(pd).and_then(|_| match buffer.is_null() {
        true => Err(Errno::INVAL),
        false => Buffer::allocate(pd, size),
    });
    errno::pointer(allocated.map(|allocated| {
        let memory = allocated.memory();
        // SAFETY: valid by contract.
        unsafe { buffer.write(BUFFERS.insert(allocated)) };
        memory
    }))
}

/// Frees the memory of a buffer and its handle. Does nothing for a pointer that is not a buffer.
pub(crate) extern "C" fn ibv_free_buf(buffer: *mut ibv_buf) {
    if let Ok(buffer) = BUFFERS.remove(buffer) {
        // SAFETY: it was allocated for the handle, which one thread only can remove.
        unsafe { libc::free(buffer.memory()) };
    }
}

/// Registers `length` bytes at `address`, inside the buffer, with these access flags.
///
/// Returns the region, or null with `errno`: `EINVAL` for unknown handles, a buffer of another `pd`
/// or memory outside of it, or as [`ibv_reg_mr`](super::memory_region::ibv_reg_mr).
pub(crate) extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buffer: *mut ibv_buf,
    address: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    errno::pointer(BUFFERS.get(buffer).and_then(|buffer| {
        buffer.check(pd, address, length)?;
        register(pd, address, length, address.addr() as u64, flags as u32)
    }))
}

/// Exports a buffer as a dma-buf. No buffer is one.
///
/// Returns -1 with `errno`: `ENODATA`, or `EINVAL` for a pointer that is not a buffer.
pub(crate) extern "C" fn ibv_export_buf_dmabuf_fd(buffer: *mut ibv_buf) -> c_int {
    errno::zero_or_minus_one(BUFFERS.get(buffer).and(Err(Errno::NODATA)))
}
