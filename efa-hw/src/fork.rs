//! Whether a process with registered memory may fork.
//!
//! A registration refers to pages. After a fork, the first process that writes to such a page gets
//! a copy. Without support for forks, that may be the parent, and the device continues to use the
//! page that now belongs to the child. Kernels since Linux 5.13 copy such pages when the process
//! forks. Before that, libibverbs can exclude them from children instead, which costs a system call
//! for each registration.

use std::ffi::c_int;
use std::io;

use crate::error::{OpenError, failed};
use crate::loaded;

/// The effect of a fork on registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForkSupport {
    /// No action: the kernel copies it for the child.
    Unneeded,
    /// Children do not have it: libibverbs was configured for that ([`enable_fork_support`], or the
    /// variables `RDMAV_FORK_SAFE` and `IBV_FORK_SAFE`).
    Enabled,
    /// The device and the process may use different pages afterwards.
    Disabled,
    /// libibverbs is older than 35 and does not report it.
    Unknown,
}

/// The effect of a fork of this process on registered memory.
///
/// # Errors
/// [`OpenError`] if libibverbs cannot be loaded.
pub fn fork_support() -> Result<ForkSupport, OpenError> {
    // SAFETY: this is the function's type.
    let status =
        unsafe { loaded::optional::<unsafe extern "C" fn() -> c_int>("ibv_is_fork_initialized") }?;
    // SAFETY: the function has no arguments.
    let status = status.map(|status| unsafe { status() });
    // The values of `enum ibv_fork_status`.
    Ok(match status {
        Some(0) => ForkSupport::Disabled,
        Some(1) => ForkSupport::Enabled,
        Some(_) => ForkSupport::Unneeded,
        None => ForkSupport::Unknown,
    })
}

/// Makes libibverbs exclude registered memory from children. This has to be called before the first
/// registration.
///
/// # Errors
/// [`OpenError`] if libibverbs cannot be loaded, or refuses: `EINVAL` after a registration,
/// `ENOSYS` without support by the kernel.
pub fn enable_fork_support() -> Result<(), OpenError> {
    let refused = |errno| {
        let source = io::Error::from_raw_os_error(errno);
        failed("ibv_fork_init", "libibverbs.so.1", source)
    };
    // SAFETY: this is the function's type.
    let enable = unsafe { loaded::optional::<unsafe extern "C" fn() -> c_int>("ibv_fork_init") }?;
    let enable = enable.ok_or_else(|| refused(libc::ENOSYS))?;
    // SAFETY: the function has no arguments.
    match unsafe { enable() } {
        0 => Ok(()),
        errno => Err(refused(errno)),
    }
}
