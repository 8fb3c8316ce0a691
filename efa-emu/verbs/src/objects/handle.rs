//! Handles: objects that contain the C structure for programs.

use core::cell::UnsafeCell;

/// The C structure of an object. The library writes it while the object is made, and afterwards
/// only the fields whose users say how. Programs read it, and may write it, at any time.
#[repr(transparent)]
pub(crate) struct CStruct<T>(UnsafeCell<T>);

// SAFETY: a shared reference provides only an address. Code that dereferences it has a separate
// contract; the pointers in the structure are addresses for the program.
unsafe impl<T> Send for CStruct<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for CStruct<T> {}

impl<T> CStruct<T> {
    pub(crate) const fn new(value: T) -> Self {
        CStruct(UnsafeCell::new(value))
    }

    /// The structure's address, the same as long as the object does not move.
    pub(crate) const fn pointer(&self) -> *mut T {
        self.0.get()
    }
}

/// A type with the C structure `C` for programs.
pub(crate) trait Handle {
    /// The C structure.
    type C;

    /// The program's handle: the address of a `C` inside the object, by which the registry finds
    /// the object. It is stable as long as the object does not move, and may be written through.
    fn c_pointer(&self) -> *mut Self::C;
}

/// Implements [`Handle`] for objects whose [`CStruct`] is, or begins with, the program's structure.
macro_rules! handle {
    ($object:ty, $c:ty) => {
        impl $crate::objects::handle::Handle for $object {
            type C = $c;

            fn c_pointer(&self) -> *mut $c {
                self.c.pointer().cast()
            }
        }
    };
}

/// As `handle!`, for objects of the data path, which begin with their structure: a program's
/// pointer is followed without a lookup in the registry.
macro_rules! data_path_handle {
    ($object:ident, $c:ty) => {
        impl $crate::objects::handle::Handle for $object {
            type C = $c;

            fn c_pointer(&self) -> *mut $c {
                // The pointer is derived from the whole object, because `from_pointer` gets the
                // object back; only the content of the cell is written.
                const { assert!(core::mem::offset_of!($object, c) == 0) };
                core::ptr::from_ref(self).cast_mut().cast()
            }
        }

        impl $object {
            /// The object behind a pointer of the data path; `None` for a null pointer.
            ///
            /// # Safety
            /// `pointer` is null or an object of this library and type that was not destroyed long
            /// ago.
            #[inline]
            pub(crate) unsafe fn from_pointer<'a>(pointer: *const $c) -> Option<&'a $object> {
                // SAFETY: the C structure is at the start of the `repr(C)` object, which is valid
                // by contract.
                unsafe { pointer.cast::<$object>().as_ref() }
            }
        }
    };
}

pub(crate) use {data_path_handle, handle};
