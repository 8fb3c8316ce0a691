//! The functions that the inline functions of `verbs.h` call through the structure around a
//! context.

use core::ffi::c_void;
use core::mem::offset_of;

use efa_verbs_sys as ffi;

/// `abi_compat` of a context inside a `verbs_context`.
const EXTENDED: usize = usize::MAX;

pub(crate) type CreateCq = unsafe extern "C" fn(
    *mut ffi::ibv_context,
    *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex;
pub(crate) type CreateQp =
    unsafe extern "C" fn(*mut ffi::ibv_context, *mut ffi::ibv_qp_init_attr_ex) -> *mut ffi::ibv_qp;

/// The end of `verbs_context`, which grows at its start.
#[repr(C)]
pub(crate) struct VerbsContextEnd {
    pub(crate) create_cq_ex: Option<CreateCq>,
    private: *mut c_void,
    query_device_ex: *mut c_void,
    flows: [*mut c_void; 5],
    pub(crate) create_qp_ex: Option<CreateQp>,
    shared_queues: [*mut c_void; 4],
    abi_placeholder: u64,
    /// The size of the whole structure.
    size: usize,
    context: ffi::ibv_context,
}

/// The `verbs_context` around a context, if it has these functions.
///
/// # Safety
/// The context is valid.
pub(crate) unsafe fn of(context: *mut ffi::ibv_context) -> Option<*mut VerbsContextEnd> {
    // SAFETY: by contract.
    if unsafe { (*context).abi_compat }.addr() != EXTENDED {
        return None;
    }
    let end = context
        .wrapping_byte_sub(offset_of!(VerbsContextEnd, context))
        .cast::<VerbsContextEnd>();
    // SAFETY: the field shows that the context is inside such a structure, whose last fields have
    // always existed.
    let size = unsafe { (*end).size };
    (size >= size_of::<VerbsContextEnd>()).then_some(end)
}
