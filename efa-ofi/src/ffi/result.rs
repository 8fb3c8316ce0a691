//! Results of calls for C: counts and negative error numbers. A panic does not leave this library.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use efa_core::endpoint::Errno;

use crate::ffi;

/// The result of a call; an error is the number that libfabric documents, without its sign.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// The call exists, and this provider does not have it (`FI_ENOSYS`).
pub(crate) const ENOSYS: Errno = Errno(libc::ENOSYS);
/// The device or this provider cannot do it (`FI_EOPNOTSUPP`).
pub(crate) const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
/// The object is in use (`FI_EBUSY`).
pub(crate) const EBUSY: Errno = Errno(libc::EBUSY);
/// The state does not permit the call (`FI_EOPBADSTATE`).
pub(crate) const EOPBADSTATE: Errno = Errno(ffi::FI_EOPBADSTATE as i32);
/// No such object or entry (`FI_ENODATA`).
pub(crate) const ENODATA: Errno = Errno(libc::ENODATA);
/// Completions with errors have to be read first (`FI_EAVAIL`).
pub(crate) const EAVAIL: Errno = Errno(ffi::FI_EAVAIL as i32);
/// A flag is not known or not offered (`FI_EBADFLAGS`).
pub(crate) const EBADFLAGS: Errno = Errno(ffi::FI_EBADFLAGS as i32);
/// The operation requires an event queue (`FI_ENOEQ`).
pub(crate) const ENOEQ: Errno = Errno(ffi::FI_ENOEQ as i32);
/// The operation requires a completion queue (`FI_ENOCQ`).
pub(crate) const ENOCQ: Errno = Errno(ffi::FI_ENOCQ as i32);
/// The operation requires an address vector (`FI_ENOAV`).
pub(crate) const ENOAV: Errno = Errno(ffi::FI_ENOAV as i32);
/// The option does not exist at this level (`FI_ENOPROTOOPT`).
pub(crate) const ENOPROTOOPT: Errno = Errno(libc::ENOPROTOOPT);
/// A queue is full (`FI_EOVERFLOW`).
pub(crate) const EOVERFLOW: Errno = Errno(libc::EOVERFLOW);
/// The buffer is too small (`FI_ETOOSMALL`).
pub(crate) const ETOOSMALL: Errno = Errno(ffi::FI_ETOOSMALL as i32);

/// Carries out a call that returns 0 or a negative error number. A panic becomes `-FI_EOTHER`.
pub(crate) fn status(call: impl FnOnce() -> Result<()>) -> c_int {
    ssize(|| call().map(|()| 0)) as c_int
}

/// Carries out a call that returns a count or a negative error number (`ssize_t`). A panic becomes
/// `-FI_EOTHER`.
#[inline(always)]
pub(crate) fn ssize(call: impl FnOnce() -> Result<usize>) -> isize {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(count)) => count as isize,
        Ok(Err(errno)) => -(errno.0 as isize),
        // The panic hook has already printed the message to standard error.
        Err(_) => -(Errno::EOTHER.0 as isize),
    }
}
