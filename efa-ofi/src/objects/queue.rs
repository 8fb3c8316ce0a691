//! Waiting, which completion queues, event queues, counters and wait sets have in common.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

use efa_core::endpoint::Errno;

use crate::ffi::object::{Object, object};
use crate::ffi::result::{ENODATA, ENOSYS, Result, status};
use crate::ffi::{FI_GETWAIT, FI_GETWAITOBJ, fi_wait_obj, fid};
use crate::state::explanation::explain;

/// An object on whose descriptor programs may sleep.
pub(crate) trait Waitable: Object {
    /// The kind of wait object, and its descriptor if it has one.
    fn wait_object(&self) -> (fi_wait_obj, Option<BorrowedFd<'_>>);

    /// Prepares for sleeping on the descriptor (`fi_trywait`).
    ///
    /// # Errors
    /// `FI_EAGAIN` if the object has unread entries, or may have some soon; `FI_EINVAL` without a
    /// descriptor.
    fn try_wait(&self) -> Result<()>;

    /// Makes progress, and returns whether `fi_wait` and `fi_poll` report the object: it has unread
    /// entries, or has counted since they last reported it.
    ///
    /// # Errors
    /// `FI_EOTHER` after a panic of another thread.
    fn has_news(&self) -> Result<bool>;

    /// As [`Waitable::try_wait`], after [`Waitable::has_news`] has returned false.
    ///
    /// # Errors
    /// As there.
    fn arm_for_news(&self) -> Result<()> {
        self.try_wait()
    }
}

/// [`Waitable::try_wait`] of the object at a pointer; `None` if there is none of this type.
///
/// # Safety
/// C does not close the object meanwhile; the pointer may be any.
pub(crate) unsafe fn try_wait<T: Waitable>(pointer: *const c_void) -> Option<Result<()>> {
    // SAFETY: C does not close it meanwhile, by the caller's contract.
    let object = unsafe { object::<T>(pointer) };
    object.ok().map(T::try_wait)
}

/// Returns the descriptor (`FI_GETWAIT`) or the kind (`FI_GETWAITOBJ`) of an object's wait object
/// (`fi_control`).
///
/// # Returns
/// 0; `-FI_EINVAL` for a wrong object or without an argument, `-FI_ENODATA` without a descriptor,
/// `-FI_ENOSYS` for other commands.
///
/// # Safety
/// `argument` is null or valid for a write of an `int` or an `enum fi_wait_obj`.
pub(crate) unsafe extern "C" fn control<T: Waitable>(
    fid: *mut fid,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let (kind, descriptor) = unsafe { object::<T>(fid.cast()) }?.wait_object();
        if argument.is_null() {
            return Err(Errno::EINVAL);
        }
        match u32::try_from(command) {
            Ok(FI_GETWAIT) => {
                let descriptor = descriptor.ok_or(ENODATA)?.as_raw_fd();
                // SAFETY: by the caller's contract.
                unsafe { argument.cast::<c_int>().write(descriptor) };
            }
            // SAFETY: by the caller's contract.
            Ok(FI_GETWAITOBJ) => unsafe { argument.cast::<fi_wait_obj>().write(kind) },
            _ => return Err(ENOSYS),
        }
        Ok(())
    })
}

thread_local! {
    /// The text that [`describe`] has returned last.
    static DESCRIPTION: RefCell<CString> = RefCell::default();
}

/// Describes a provider's error number (`fi_cq_strerror`, `fi_eq_strerror`), also into the buffer
/// unless that is null.
///
/// # Returns
/// A string that is valid until the calling thread describes the next one.
///
/// # Safety
/// `buffer` is null or valid for writes of `length` bytes.
pub(crate) unsafe fn describe(
    provider_errno: c_int,
    detail: Option<&str>,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    let (what, remedy) = explain(provider_errno);
    let text = match detail {
        Some(detail) => format!("{what} ({detail}): {remedy}"),
        None => format!("{what}: {remedy}"),
    };
    if !buffer.is_null() && length > 0 {
        let count = text.len().min(length - 1);
        // SAFETY: there is room for `length` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), count);
            buffer.add(count).write(0);
        }
    }
    let text = CString::new(text).unwrap_or_default();
    let kept = DESCRIPTION.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        *kept = text;
        kept.as_ptr()
    });
    // The thread ends.
    kept.unwrap_or(c"an error".as_ptr())
}
