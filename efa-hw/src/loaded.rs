//! The functions of libibverbs and libefa, which are loaded at the first search for a device. A
//! program that can work without a device therefore starts without the libraries.
//!
//! The data path does not use them: posting and polling are calls through the objects' own tables.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use efa_verbs_sys as ffi;
use libloading::os::unix::{Library, RTLD_NOW};

use crate::efadv::{AhAttr, Cq, CqInitAttr, DeviceAttr, QpInitAttr};
use crate::error::OpenError;

/// Declares functions of shared libraries: the table of their addresses, code to fill it, and for
/// each a function of the same name that calls it.
macro_rules! functions {
    ($($library:literal: {
        $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*
    })*) => {
        /// The addresses of the functions.
        struct Functions {
            $($($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*)*
        }

        impl Functions {
            fn load() -> Result<Functions, OpenError> {
                $(
                    // SAFETY: when these libraries are loaded, they only look for drivers.
                    let loaded = unsafe { Library::open(Some($library), RTLD_NOW) };
                    let library = loaded.map_err(|source| OpenError::Library {
                        library: $library,
                        source,
                    })?;
                    $(
                        // SAFETY: the type is that of the library's header. `dlsym` returns the
                        // default version of the symbol, which is the header's.
                        let found = unsafe { library.get(stringify!($name).as_bytes()) };
                        let $name = *found.map_err(|source| OpenError::Symbol {
                            library: $library,
                            symbol: stringify!($name),
                            source,
                        })?;
                    )*
                    // The functions are used until the program ends.
                    std::mem::forget(library);
                )*
                Ok(Functions { $($($name,)*)* })
            }
        }

        $($(
            /// # Safety
            /// The contract of the function in the library.
            pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller's.
                unsafe { (functions().$name)($($argument),*) }
            }
        )*)*
    };
}

functions! {
    "libibverbs.so.1": {
        fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ffi::ibv_device;
        fn ibv_free_device_list(list: *mut *mut ffi::ibv_device);
        fn ibv_get_device_name(device: *mut ffi::ibv_device) -> *const c_char;
        fn ibv_open_device(device: *mut ffi::ibv_device) -> *mut ffi::ibv_context;
        fn ibv_close_device(context: *mut ffi::ibv_context) -> c_int;
        fn ibv_query_device(
            context: *mut ffi::ibv_context, attr: *mut ffi::ibv_device_attr
        ) -> c_int;
        fn ibv_query_port(
            context: *mut ffi::ibv_context, port: u8, attr: *mut ffi::_compat_ibv_port_attr
        ) -> c_int;
        fn ibv_query_gid(
            context: *mut ffi::ibv_context, port: u8, index: c_int, gid: *mut ffi::ibv_gid
        ) -> c_int;
        fn ibv_alloc_pd(context: *mut ffi::ibv_context) -> *mut ffi::ibv_pd;
        fn ibv_dealloc_pd(pd: *mut ffi::ibv_pd) -> c_int;
        fn ibv_reg_mr(
            pd: *mut ffi::ibv_pd, address: *mut c_void, length: usize, access: c_int
        ) -> *mut ffi::ibv_mr;
        fn ibv_reg_dmabuf_mr(
            pd: *mut ffi::ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int
        ) -> *mut ffi::ibv_mr;
        fn ibv_dereg_mr(mr: *mut ffi::ibv_mr) -> c_int;
        fn ibv_create_ah(pd: *mut ffi::ibv_pd, attr: *mut ffi::ibv_ah_attr) -> *mut ffi::ibv_ah;
        fn ibv_destroy_ah(ah: *mut ffi::ibv_ah) -> c_int;
        fn ibv_destroy_cq(cq: *mut ffi::ibv_cq) -> c_int;
        fn ibv_create_comp_channel(context: *mut ffi::ibv_context) -> *mut ffi::ibv_comp_channel;
        fn ibv_destroy_comp_channel(channel: *mut ffi::ibv_comp_channel) -> c_int;
        fn ibv_get_cq_event(
            channel: *mut ffi::ibv_comp_channel, cq: *mut *mut ffi::ibv_cq, context: *mut *mut c_void
        ) -> c_int;
        fn ibv_ack_cq_events(cq: *mut ffi::ibv_cq, count: c_uint);
        fn ibv_destroy_qp(qp: *mut ffi::ibv_qp) -> c_int;
        fn ibv_destroy_srq(srq: *mut ffi::ibv_srq) -> c_int;
        fn ibv_modify_qp(qp: *mut ffi::ibv_qp, attr: *mut ffi::ibv_qp_attr, mask: c_int) -> c_int;
        fn ibv_qp_to_qp_ex(qp: *mut ffi::ibv_qp) -> *mut ffi::ibv_qp_ex;
    }
    "libefa.so.1": {
        fn efadv_query_device(
            context: *mut ffi::ibv_context, attr: *mut DeviceAttr, length: u32
        ) -> c_int;
        fn efadv_query_ah(ah: *mut ffi::ibv_ah, attr: *mut AhAttr, length: u32) -> c_int;
        fn efadv_create_qp_ex(
            context: *mut ffi::ibv_context,
            attr: *mut ffi::ibv_qp_init_attr_ex,
            efa_attr: *mut QpInitAttr,
            length: u32
        ) -> *mut ffi::ibv_qp;
        fn efadv_create_cq(
            context: *mut ffi::ibv_context,
            attr: *mut ffi::ibv_cq_init_attr_ex,
            efa_attr: *mut CqInitAttr,
            length: u32
        ) -> *mut ffi::ibv_cq_ex;
        fn efadv_cq_from_ibv_cq_ex(cq: *mut ffi::ibv_cq_ex) -> *mut Cq;
    }
}

/// A function of libibverbs that not all of its releases have.
///
/// # Errors
/// [`OpenError::Library`] if it is not installed.
///
/// # Safety
/// `T` is the function's type.
pub(crate) unsafe fn optional<T: Copy>(name: &str) -> Result<Option<T>, OpenError> {
    const LIBRARY: &str = "libibverbs.so.1";
    // SAFETY: when the library is loaded, it only looks for drivers.
    let loaded = unsafe { Library::open(Some(LIBRARY), RTLD_NOW) };
    let library = loaded.map_err(|source| OpenError::Library {
        library: LIBRARY,
        source,
    })?;
    // SAFETY: by the caller's contract.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    let found = found.ok().map(|found| *found);
    // The function is used until the program ends.
    std::mem::forget(library);
    Ok(found)
}

/// An entry of the table that surrounds a context, which the header's inline functions call: `None`
/// if the library has no function there. The context has to be open.
macro_rules! around {
    ($context:expr, $name:ident) => {{
        use std::mem::offset_of;
        const NEEDED: usize =
            size_of::<ffi::verbs_context>() - offset_of!(ffi::verbs_context, $name);
        let context: *mut ffi::ibv_context = $context;
        let around = context
            .wrapping_byte_sub(offset_of!(ffi::verbs_context, context))
            .cast::<ffi::verbs_context>();
        // SAFETY: the context is open. With this mark it is inside such a structure, which grows at
        // its start, and whose size is directly before the context.
        unsafe {
            let is_extended = (*context).abi_compat.addr() == usize::MAX;
            let has_call = is_extended && (*around).sz >= NEEDED;
            has_call.then(|| (*around).$name).flatten()
        }
    }};
}
pub(crate) use around;

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Loads the libraries, unless they are loaded.
///
/// # Errors
/// [`OpenError::Library`] if one is not installed, [`OpenError::Symbol`] if it lacks a function.
pub(crate) fn load() -> Result<(), OpenError> {
    if FUNCTIONS.get().is_none() {
        let _ = FUNCTIONS.set(Functions::load()?);
    }
    Ok(())
}

fn functions() -> &'static Functions {
    FUNCTIONS
        .get()
        .expect("every object comes from a device, and opening it loads the libraries")
}
