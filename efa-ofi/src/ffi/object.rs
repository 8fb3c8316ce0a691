//! Objects that C refers to by pointers: passed to C, found by pointer, and closed.

use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::ptr::NonNull;

use efa_core::endpoint::Errno;

use crate::ffi::registry;
use crate::ffi::result::{EBUSY, ETOOSMALL, Result, status};
use crate::ffi::table::Table;
use crate::ffi::{fi_ops, fid};

/// An object that begins with libfabric's structure for it.
///
/// # Safety
/// The type is `#[repr(C)]`, its first member begins with a `fid`, and every object with this class
/// whose operations are [`Object::OPERATIONS`] is of this type.
pub(crate) unsafe trait Object: Sized {
    /// libfabric's number of the class (`FI_CLASS_...`).
    const CLASS: u32;
    /// It consists of memory only, so a forked child has a separate copy.
    const IS_MEMORY: bool = false;
    /// Distinguishes the object from objects of other providers.
    const OPERATIONS: &'static Table<fi_ops>;

    /// Prepares for the end of the object; it stays open if that fails.
    ///
    /// # Errors
    /// Those of the device.
    fn before_close(&self) -> Result<()> {
        Ok(())
    }

    /// Called when the object is at its final address.
    fn opened(&self) {}

    /// Passes the object to C, until [`close`].
    fn give(self) -> *mut Self {
        let object = Box::into_raw(Box::new(self));
        // SAFETY: the object was allocated above, and begins with a `fid`.
        unsafe {
            let fid = &mut *object.cast::<fid>();
            fid.fclass = Self::CLASS as usize;
            fid.ops = Self::OPERATIONS.as_c();
        }
        registry::insert(object.expose_provenance(), Self::CLASS, Self::IS_MEMORY);
        // SAFETY: C does not have the pointer yet.
        unsafe { &*object }.opened();
        object
    }

    /// Passes the object to C as a pointer to the structure at its start.
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

/// The `fid` at the start of an object; [`Object::give`] sets class and operations.
pub(crate) fn new_fid(context: *mut c_void) -> fid {
    fid {
        context,
        ..fid::default()
    }
}

/// Returns the object behind a pointer from C, if it is open and of this type. Any pointer is
/// permitted: null, a foreign one, and one to an object that was closed, as long as no new object
/// of its type has its address.
///
/// # Errors
/// `FI_EINVAL` for an unknown object.
///
/// # Safety
/// C does not close the object meanwhile.
pub(crate) unsafe fn object<'a, T: Object>(pointer: *const c_void) -> Result<&'a T> {
    match registry::class_at(pointer.addr()) == Some(T::CLASS) {
        // SAFETY: `give` has registered a `T` at this address, and it is valid until `close`.
        true => Ok(unsafe { &*pointer.cast::<T>() }),
        false => Err(Errno::EINVAL),
    }
}

/// The first-opened of the open objects of a type for which `matches` is true; null if there is
/// none.
pub(crate) fn first_open<T: Object>(matches: impl Fn(&T) -> bool) -> *mut c_void {
    let first = registry::first_of(T::CLASS, |address| {
        // SAFETY: `give` has registered a `T` at this address, and it is valid until `close`, which
        // waits for the table.
        matches(unsafe { &*std::ptr::with_exposed_provenance::<T>(address) })
    });
    first.map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

/// As [`object`], for data transfers, for which the table is too slow: a pointer to something other
/// than a `fid` is not detected.
///
/// # Errors
/// `FI_EINVAL` if the pointer is null, or the object of another type.
///
/// # Safety
/// The pointer is null, or points to a live object of libfabric, which C does not close meanwhile.
#[inline]
pub(crate) unsafe fn transfer_object<'a, T: Object>(pointer: *const c_void) -> Result<&'a T> {
    // SAFETY: by the caller's contract a pointer that is not null points to a `fid`.
    let Some(fid) = (unsafe { pointer.cast::<fid>().as_ref() }) else {
        return Err(Errno::EINVAL);
    };
    if fid.fclass != T::CLASS as usize || fid.ops != T::OPERATIONS.as_c() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: class and operations belong to `T`, and C does not close objects that are in use.
    Ok(unsafe { &*pointer.cast::<T>() })
}

/// Closes an object (`fi_close`).
///
/// # Returns
/// 0, `-FI_EINVAL` if the pointer does not point to an open object of this type, `-FI_EBUSY` while
/// other objects need it, or the error of [`Object::before_close`].
///
/// # Safety
/// Any pointer is permitted. No other call uses the object, and none does after this.
pub(crate) unsafe extern "C" fn close<T: Object>(fid: *mut fid) -> c_int {
    status(|| {
        // SAFETY: by the caller's contract.
        let object: &T = unsafe { object(fid.cast()) }?;
        if registry::has_users(fid.addr()) {
            return Err(EBUSY);
        }
        object.before_close()?;
        registry::remove(fid.addr());
        // SAFETY: an open object is a `T` that `give` has created from a box; C does not use its
        // pointer any more.
        unsafe {
            // A transfer that arrives too late is refused, as long as the memory is not reused.
            (*fid).fclass = 0;
            drop(Box::from_raw(fid.cast::<T>()));
        }
        Ok(())
    })
}

/// A reference to an object, which stays open until this is dropped.
pub(crate) struct Ref<T: Object>(NonNull<T>);

impl<T: Object> Ref<T> {
    pub(crate) fn new(object: &T) -> Ref<T> {
        let object = NonNull::from(object);
        registry::add_user(object.addr().get());
        Ref(object)
    }

    /// Whether this is a reference to the object that `other` refers to.
    pub(crate) fn is(&self, other: &Ref<T>) -> bool {
        self.0 == other.0
    }
}

impl<T: Object> Deref for Ref<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: an object with users is not closed.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Object> Drop for Ref<T> {
    fn drop(&mut self) {
        registry::remove_user(self.0.addr().get());
    }
}

/// Copies bytes to a C buffer of `length` bytes, and stores their full number in `length`.
///
/// # Errors
/// `FI_ETOOSMALL`: only the bytes that fit were copied. `FI_EINVAL` if a pointer is null.
///
/// # Safety
/// `length` is null or valid for reads and writes, and `to` is valid for `length` bytes.
pub(crate) unsafe fn copy_out(bytes: &[u8], to: *mut c_void, length: *mut usize) -> Result<()> {
    // SAFETY: by the caller's contract.
    let length = unsafe { length.as_mut() }.ok_or(Errno::EINVAL)?;
    let room = std::mem::replace(length, bytes.len());
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
