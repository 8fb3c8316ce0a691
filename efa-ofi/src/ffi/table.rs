//! Tables of operations (`struct fi_ops_...`) in the layout of C.
//!
//! libfabric's tables grow at their end. Most of its inline functions check the table's `size`
//! before they use a member that a later release has added. `fi_xpu_ctx`, `fi_ep_export_xpu`,
//! `fi_cq_export_xpu` and `fi_cntr_export_xpu` (2.7) do not: they jump through the bytes at the
//! offset of their slot, whether or not the table extends to it. So every table that this provider
//! passes to C is a [`Table`].

/// The number of slots after the operations of a table. From libfabric 1.17 to 2.7 no table has
/// grown by more than 4.
const LATER: usize = 16;

/// A table of operations followed by slots whose functions return `-FI_ENOSYS`. The slots do not
/// count for the table's `size`: callers that check it treat the provider as an older one, which
/// may mean more than returning an error.
#[repr(C)]
pub(crate) struct Table<T> {
    operations: T,
    later: [extern "C" fn() -> isize; LATER],
}

impl<T> Table<T> {
    pub(crate) const fn new(operations: T) -> Table<T> {
        const {
            // No padding precedes the first slot, or separates slots.
            assert!(size_of::<T>().is_multiple_of(size_of::<fn()>()));
            assert!(align_of::<T>() == align_of::<fn()>());
        }
        Table {
            operations,
            later: [later; LATER],
        }
    }

    /// The table for a structure of libfabric, which points to its operations by the type `C`: `T`,
    /// or the initial part of `T`.
    pub(crate) const fn as_c<C>(&'static self) -> *mut C {
        const { assert!(size_of::<C>() <= size_of::<T>()) }
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// The function in slots that have no operation; returns `-FI_ENOSYS`. The calling conventions of
/// the processors that support EFA (x86-64, aarch64) permit more arguments than a function takes,
/// and a caller that expects an `int` reads the lower half of the result.
extern "C" fn later() -> isize {
    -(libc::ENOSYS as isize)
}
