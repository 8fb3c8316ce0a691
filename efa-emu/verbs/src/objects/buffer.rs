//! Buffers that the library allocates. EFA has no special memory for them, so they are ordinary
//! memory, like rdma-core's default.

use core::ffi::c_void;
use core::ptr::null_mut;
use std::sync::Arc;

use super::handle::{CStruct, handle};
use crate::abi::{ibv_buf, ibv_pd};
use crate::ffi::errno::Errno;

/// A buffer. The program uses its memory until `ibv_free_buf`.
pub(crate) struct Buffer {
    c: CStruct<ibv_buf>,
    /// The address of the program's handle of the protection domain that it was allocated for.
    pd: usize,
    memory: Memory,
    size: usize,
}

struct Memory(*mut c_void);

// SAFETY: the memory is the program's; the library frees it, once.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

handle!(Buffer, ibv_buf);

impl Buffer {
    /// Allocates page-aligned memory.
    pub(crate) fn allocate(pd: *mut ibv_pd, size: usize) -> Result<Arc<Buffer>, Errno> {
        let mut memory = null_mut();
        // SAFETY: the call takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
        // SAFETY: room for a pointer.
        match unsafe { libc::posix_memalign(&raw mut memory, page, size) } {
            0 => {}
            error => return Err(Errno::new(error)),
        }
        Ok(Arc::new(Buffer {
            c: CStruct::new(ibv_buf {
                addr: memory,
                size,
                pd,
                dmabuf_fd: -1,
            }),
            pd: pd.addr(),
            memory: Memory(memory),
            size,
        }))
    }

    pub(crate) fn memory(&self) -> *mut c_void {
        self.memory.0
    }

    /// `EINVAL` unless the memory is inside the buffer, which must be of this protection domain.
    pub(crate) fn check(
        &self,
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: usize,
    ) -> Result<(), Errno> {
        let offset = address.addr().checked_sub(self.memory.0.addr());
        match offset.and_then(|offset| self.size.checked_sub(offset)) {
            Some(room) if self.pd == pd.addr() && length <= room => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }
}
