//! Calls of libfabric's interface that this provider does not support, so that each table of
//! operations is complete. They read no argument and return `-FI_ENOSYS`.

use std::ffi::{c_char, c_int, c_void};

use crate::ffi::*;

/// Calls that every object has.
pub(crate) const FID: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: None,
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(ops_open),
    tostr: Some(tostr),
    ops_set: Some(ops_set),
};

/// Defines functions that do nothing and return `-FI_ENOSYS`.
macro_rules! without {
    ($($name:ident($($type:ty),*) -> $result:ty;)*) => {
        $(pub(crate) extern "C" fn $name($(_: $type),*) -> $result {
            -(libc::ENOSYS as $result)
        })*
    };
}

without! {
    bind(*mut fid, *mut fid, u64) -> c_int;
    control(*mut fid, c_int, *mut c_void) -> c_int;
    ops_open(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    tostr(*const fid, *mut c_char, usize) -> c_int;
    ops_set(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int;

    passive_ep(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) -> c_int;

    scalable_ep(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int;
    stx_ctx(*mut fid_domain, *mut fi_tx_attr, *mut *mut fid_stx, *mut c_void) -> c_int;
    srx_ctx(*mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;

    insertsym(
        *mut fid_av, *const c_char, usize, *const c_char, usize, *mut fi_addr_t, u64, *mut c_void
    ) -> c_int;
    insert_auth_key(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64) -> c_int;
    lookup_auth_key(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int;
    set_user_id(*mut fid_av, fi_addr_t, fi_addr_t, u64) -> c_int;

    setname(fid_t, *mut c_void, usize) -> c_int;
    getpeer(*mut fid_ep, *mut c_void, *mut usize) -> c_int;
    connect(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int;
    listen(*mut fid_pep) -> c_int;
    accept(*mut fid_ep, *const c_void, usize) -> c_int;
    reject(*mut fid_pep, fid_t, *const c_void, usize) -> c_int;
    shutdown(*mut fid_ep, u64) -> c_int;

    tx_ctx(*mut fid_ep, c_int, *mut fi_tx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
    rx_ctx(*mut fid_ep, c_int, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
    size_left(*mut fid_ep) -> isize;
}
