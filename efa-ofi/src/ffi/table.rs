//! Tables of operations (`struct fi_ops_...`) as C sees them.
//!
//! libfabric's tables grow at their end. Its inline functions look at the table's `size` before
//! they use what a later release has added, but not all do: `fi_xpu_ctx`, `fi_ep_export_xpu`,
//! `fi_cq_export_xpu` and `fi_cntr_export_xpu` (2.7) jump through whatever lies where they expect
//! their slot. So every table that this provider gives to C is a [`Table`].

/// Slots behind the operations of a table. From libfabric 1.17 to 2.7 no table has grown by more
/// than 4.
const LATER: usize = 16;

/// A table of operations with slots behind it, whose functions return `-FI_ENOSYS`. They do not
/// count for the table's `size`: callers that look at it do what they do for an older provider,
/// which may be more than to return an error.
#[repr(C)]
pub(crate) struct Table<T> {
    operations: T,
    later: [extern "C" fn() -> isize; LATER],
}

impl<T> Table<T> {
    pub(crate) const fn new(operations: T) -> Table<T> {
        const {
            // There is no gap before the first slot, and none among them.
            assert!(size_of::<T>().is_multiple_of(size_of::<fn()>()));
            assert!(align_of::<T>() == align_of::<fn()>());
        }
        Table {
            operations,
            later: [later; LATER],
        }
    }

    /// The table for a structure of libfabric's, which has a pointer to the operations that it
    /// knows by the type `C`: `T`, or what `T` begins with.
    pub(crate) const fn as_c<C>(&'static self) -> *mut C {
        const { assert!(size_of::<C>() <= size_of::<T>()) }
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// The function in slots that have no operation; returns `-FI_ENOSYS`. The calling conventions of
/// the processors that EFA is for (x86-64, aarch64) permit more arguments than a function takes,
/// and a caller that expects an `int` reads the lower half of the result.
extern "C" fn later() -> isize {
    -(libc::ENOSYS as isize)
}
