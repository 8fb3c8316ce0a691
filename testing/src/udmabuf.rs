//! The kernel's dma-bufs of memfds.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// A dma-buf of the first `length` bytes of a sealable memfd, in whole pages. `None` if the kernel
/// does not support that, or not for this user.
pub fn udmabuf(memory: impl AsFd, length: usize) -> Option<OwnedFd> {
    /// `struct udmabuf_create` of the kernel.
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;
    const UDMABUF_FLAGS_CLOEXEC: u32 = 1;
    let mut options = File::options();
    let device = options.read(true).write(true).open("/dev/udmabuf").ok()?;
    let memory = memory.as_fd().as_raw_fd();
    let create = Create {
        memfd: memory as u32,
        flags: UDMABUF_FLAGS_CLOEXEC,
        offset: 0,
        size: length as u64,
    };
    // SAFETY: the only pointer is to the request, which is on the stack.
    let made = unsafe {
        libc::fcntl(memory, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE as _, &raw const create)
    };
    // SAFETY: a new descriptor.
    (made >= 0).then(|| unsafe { OwnedFd::from_raw_fd(made) })
}
