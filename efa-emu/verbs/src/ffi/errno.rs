//! The two ways in which verbs report errors: a returned errno, or `NULL` and `errno`.

use core::ffi::c_int;
use core::ptr::null_mut;

use super::interrupted::inside_another_verb;

/// A positive error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(c_int);

impl Errno {
    pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
    pub(crate) const BADF: Errno = Errno(libc::EBADF);
    pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
    pub(crate) const FAULT: Errno = Errno(libc::EFAULT);
    pub(crate) const INVAL: Errno = Errno(libc::EINVAL);
    pub(crate) const NODATA: Errno = Errno(libc::ENODATA);
    pub(crate) const NODEV: Errno = Errno(libc::ENODEV);
    pub(crate) const NOENT: Errno = Errno(libc::ENOENT);
    pub(crate) const OPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

    /// The number. A value that is not an error number becomes `EIO`.
    pub(crate) const fn new(number: c_int) -> Errno {
        Errno(if number > 0 { number } else { libc::EIO })
    }

    /// The error of this thread's last failed system call.
    pub(crate) fn last() -> Errno {
        Errno::new(get())
    }

    pub(crate) const fn number(self) -> c_int {
        self.0
    }
}

/// Conversions from error types that have an error number.
macro_rules! from_errors {
    ($($error:ty),+) => { $(
        impl From<$error> for Errno {
            fn from(error: $error) -> Self {
                Errno::new(error.errno())
            }
        }
    )+ };
}

from_errors!(
    efa_device_model::device::Error,
    efa_shm::FabricError,
    efa_shm::EngineError
);

/// Sets the calling thread's `errno`.
pub(crate) fn set(number: c_int) {
    // SAFETY: the address of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = number };
}

/// The calling thread's `errno`.
pub(crate) fn get() -> c_int {
    // SAFETY: the address of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

/// For verbs that return 0 or an errno. `errno` is set as well, as in rdma-core.
pub(crate) fn status(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set(errno.number());
            errno.number()
        }
    }
}

/// For verbs that destroy an object: [`status`] of `end`, unless this call has interrupted another
/// one that may hold a lock.
pub(crate) fn status_of_end(end: impl FnOnce() -> Result<(), Errno>) -> c_int {
    if inside_another_verb() {
        return 0;
    }
    status(end())
}

/// For verbs that return 0, or -1 and `errno`.
pub(crate) fn zero_or_minus_one(result: Result<(), Errno>) -> c_int {
    match status(result) {
        0 => 0,
        _ => -1,
    }
}

/// For verbs that return an object, or `NULL` and `errno`.
pub(crate) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set(errno.number());
        null_mut()
    })
}
