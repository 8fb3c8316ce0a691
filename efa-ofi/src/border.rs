//! What every function that libfabric calls has in common: results as error numbers, panics that stay inside, and
//! objects that C holds by pointers.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use efa_core::endpoint::Errno;

use crate::ffi::{fi_ops, fid};
use crate::objects;
use crate::table::Table;

/// What a call comes to; an error is the number that libfabric documents, without its sign.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// The call exists, and this provider does not have it (`FI_ENOSYS`).
pub(crate) const ENOSYS: Errno = Errno(libc::ENOSYS);
/// The device or this provider cannot do it (`FI_EOPNOTSUPP`).
pub(crate) const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
/// The object is in use (`FI_EBUSY`).
pub(crate) const EBUSY: Errno = Errno(libc::EBUSY);
/// The state does not permit the call (`FI_EOPBADSTATE`).
pub(crate) const EOPBADSTATE: Errno = Errno(crate::ffi::FI_EOPBADSTATE as i32);
/// There is no such thing (`FI_ENODATA`).
pub(crate) const ENODATA: Errno = Errno(libc::ENODATA);
/// Completions with errors have to be read first (`FI_EAVAIL`).
pub(crate) const EAVAIL: Errno = Errno(crate::ffi::FI_EAVAIL as i32);
/// A flag is not known or not offered (`FI_EBADFLAGS`).
pub(crate) const EBADFLAGS: Errno = Errno(crate::ffi::FI_EBADFLAGS as i32);
/// There is no completion queue for the operation (`FI_ENOCQ`).
pub(crate) const ENOCQ: Errno = Errno(crate::ffi::FI_ENOCQ as i32);
/// There is no address vector for the operation (`FI_ENOAV`).
pub(crate) const ENOAV: Errno = Errno(crate::ffi::FI_ENOAV as i32);
/// A queue is full (`FI_EOVERFLOW`).
pub(crate) const EOVERFLOW: Errno = Errno(libc::EOVERFLOW);
/// The buffer is too small (`FI_ETOOSMALL`).
pub(crate) const ETOOSMALL: Errno = Errno(crate::ffi::FI_ETOOSMALL as i32);

/// Carries out a call that returns 0 or a negative error number. A panic becomes `-FI_EOTHER`.
pub(crate) fn status(call: impl FnOnce() -> Result<()>) -> c_int {
    count(|| call().map(|()| 0)) as c_int
}

/// Carries out a call that returns a count or a negative error number. A panic becomes `-FI_EOTHER`.
pub(crate) fn count(call: impl FnOnce() -> Result<usize>) -> isize {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(count)) => count as isize,
        Ok(Err(errno)) => -(errno.0 as isize),
        // The message went to standard error already.
        Err(_) => -(Errno::EOTHER.0 as isize),
    }
}

/// An object that begins with libfabric's structure for it.
///
/// # Safety
/// The type is `#[repr(C)]`, its first member begins with a `fid`, and every object with this class whose operations
/// are [`Object::operations`] is of this type.
pub(crate) unsafe trait Object: Sized {
    /// libfabric's number of the class (`FI_CLASS_...`).
    const CLASS: u32;
    /// It is memory and nothing else, so that a forked child has one of its own.
    const IS_MEMORY: bool = false;
    /// What tells the object from those of other providers.
    fn operations() -> &'static Table<fi_ops>;

    /// Gives the object to C, until [`take`].
    fn give(self) -> *mut Self {
        let object = Box::into_raw(Box::new(self));
        // SAFETY: the object was allocated above, and begins with a `fid`.
        unsafe {
            let fid = &mut *object.cast::<fid>();
            fid.fclass = Self::CLASS as usize;
            fid.ops = Self::operations().as_c();
        }
        objects::enter(object.expose_provenance(), Self::CLASS, Self::IS_MEMORY);
        object
    }

    /// Gives the object to C through a pointer to the structure that it begins with.
    ///
    /// # Errors
    /// `FI_EINVAL` if the pointer is null.
    ///
    /// # Safety
    /// The pointer is null or valid for a write.
    unsafe fn give_to<T>(self, result: *mut *mut T) -> Result<()> {
        if result.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: by the caller's contract.
        unsafe { result.write(self.give().cast()) };
        Ok(())
    }
}

/// Returns the object that a pointer from C names, if it is open, and of this type. Any pointer may be asked about: null,
/// a foreign one, and one to an object that was closed, as long as no new object of its type has its address.
///
/// # Errors
/// `FI_EINVAL` if there is no such object.
///
/// # Safety
/// C does not close the object meanwhile.
pub(crate) unsafe fn object<'a, T: Object>(pointer: *const c_void) -> Result<&'a T> {
    match objects::class_at(pointer.addr()) == Some(T::CLASS) {
        // SAFETY: what `give` has entered there is a `T`, until `take`.
        true => Ok(unsafe { &*pointer.cast::<T>() }),
        false => Err(Errno::EINVAL),
    }
}

/// The object that was opened first of those of a type that are open and `matches`; null if there is none.
pub(crate) fn first_open<T: Object>(matches: impl Fn(&T) -> bool) -> *mut c_void {
    let first = objects::first_of(T::CLASS, |address| {
        // SAFETY: what `give` has entered there is a `T` until `take`, which waits for the table.
        matches(unsafe { &*std::ptr::with_exposed_provenance::<T>(address) })
    });
    first.map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

/// As [`object`], for data transfers, which cannot afford the table: a pointer to what is no `fid` is not noticed.
///
/// # Errors
/// `FI_EINVAL` if the pointer is null, or the object of another type.
///
/// # Safety
/// The pointer is null, or leads to a live object of libfabric's, which C does not close meanwhile.
#[inline]
pub(crate) unsafe fn transfer_object<'a, T: Object>(pointer: *const c_void) -> Result<&'a T> {
    // SAFETY: by the caller's contract there is a `fid` behind a pointer that is not null.
    let Some(fid) = (unsafe { pointer.cast::<fid>().as_ref() }) else {
        return Err(Errno::EINVAL);
    };
    if fid.fclass != T::CLASS as usize || fid.ops != T::operations().as_c() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: class and operations say that it is a `T`, and C does not end objects that are in use.
    Ok(unsafe { &*pointer.cast::<T>() })
}

/// Takes an object back from C. [`object`] does not find it any more.
///
/// # Safety
/// The object came from [`Object::give`], and nobody else uses it.
pub(crate) unsafe fn take<T: Object>(object: &T) -> Box<T> {
    let pointer = std::ptr::from_ref(object).cast_mut();
    objects::leave(pointer.addr());
    // SAFETY: by the caller's contract nobody else refers to the object, which `give` made from a box.
    unsafe {
        // A transfer that comes too late is refused, as long as the memory is not used for something else.
        (*pointer.cast::<fid>()).fclass = 0;
        Box::from_raw(pointer)
    }
}

/// How many other objects need this one: it cannot be closed before them.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// # Errors
    /// `FI_EBUSY` if there are any.
    pub(crate) fn none(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(EBUSY),
        }
    }
}

/// Copies bytes to where C has room for `length` of them, and returns how many there are in `length`.
///
/// # Errors
/// `FI_ETOOSMALL`: as many as there is room for were copied.
///
/// # Safety
/// `length` is valid for reads and writes, and `to` for as many bytes as it says.
pub(crate) unsafe fn copy_out(bytes: &[u8], to: *mut c_void, length: *mut usize) -> Result<()> {
    // SAFETY: by the caller's contract.
    let room = unsafe { std::mem::replace(&mut *length, bytes.len()) };
    let copied = room.min(bytes.len());
    if copied > 0 {
        if to.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `to` has room for `room` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), copied) };
    }
    match copied == bytes.len() {
        true => Ok(()),
        false => Err(ETOOSMALL),
    }
}
