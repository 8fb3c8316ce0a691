//! Buffers that the library allocates: `ibv_alloc_buf` and the calls around it. EFA has no memory of its own
//! for them, so they are ordinary memory, as rdma-core gives to every device that wants no other.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::sync::Arc;

use crate::abi::{ibv_buf, ibv_mr, ibv_pd};
use crate::domain::DOMAINS;
use crate::errno::{self, Errno};
use crate::handles::{Handle, Registry};
use crate::memory_region;

static BUFFERS: Registry<Buffer> = Registry::new();

struct Buffer {
    c: UnsafeCell<ibv_buf>,
    /// The protection domain that it was allocated for, as the program knows it.
    pd: *mut ibv_pd,
    memory: *mut c_void,
    size: usize,
}

// SAFETY: the C structure is not changed after it was made, and the other pointers are addresses here.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

// SAFETY: the structure is inside the cell.
unsafe impl Handle for Buffer {
    type C = ibv_buf;

    fn c_pointer(&self) -> *mut ibv_buf {
        self.c.get()
    }
}

/// Returns page-aligned memory of `size` bytes, and its handle at `buffer`.
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
        false => allocate(pd, size),
    });
    errno::pointer(allocated.map(|allocated| {
        let memory = allocated.memory;
        // SAFETY: valid by contract.
        unsafe { buffer.write(BUFFERS.insert(Arc::new(allocated))) };
        memory
    }))
}

fn allocate(pd: *mut ibv_pd, size: usize) -> Result<Buffer, Errno> {
    let mut memory = null_mut();
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
    // SAFETY: room for a pointer.
    match unsafe { libc::posix_memalign(&raw mut memory, page, size) } {
        0 => {}
        error => return Err(Errno::new(error)),
    }
    let c = ibv_buf {
        addr: memory,
        size,
        pd,
        dmabuf_fd: -1,
    };
    Ok(Buffer {
        c: UnsafeCell::new(c),
        pd,
        memory,
        size,
    })
}

/// Frees the memory of a buffer and its handle.
pub(crate) extern "C" fn ibv_free_buf(buffer: *mut ibv_buf) {
    if let Ok(buffer) = BUFFERS.remove(buffer) {
        // SAFETY: it was allocated for the handle, which one thread only can remove.
        unsafe { libc::free(buffer.memory) };
    }
}

/// `EINVAL` unless the memory lies in the buffer, which must be of this protection domain.
pub(crate) fn check(
    pd: *mut ibv_pd,
    buffer: *mut ibv_buf,
    address: *mut c_void,
    length: usize,
) -> Result<(), Errno> {
    let buffer = BUFFERS.get(buffer)?;
    let offset = address.addr().checked_sub(buffer.memory.addr());
    match offset.and_then(|offset| buffer.size.checked_sub(offset)) {
        Some(room) if buffer.pd == pd && length <= room => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Registers a part of a buffer.
pub(crate) extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buffer: *mut ibv_buf,
    address: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    errno::pointer(
        check(pd, buffer, address, length)
            .and_then(|()| memory_region::register(pd, address, length, flags as u32)),
    )
}

/// `ENODATA`: no buffer is a dma-buf.
pub(crate) extern "C" fn ibv_export_buf_dmabuf_fd(buffer: *mut ibv_buf) -> c_int {
    let exported = BUFFERS.get(buffer).and(Err(Errno::NODATA));
    errno::zero_or_minus_one(exported)
}
