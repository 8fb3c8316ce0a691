//! libfabric's C interface, generated from the headers that are installed.
//!
//! Nothing is linked: who calls libfabric loads it at run time, and looks up the few functions that
//! are symbols by the types below. All others are entries of operation tables, to which each object
//! points. A table starts with its own size in bytes, and an entry exists only if the size covers
//! it. Structures only grow at their end, from release to release.
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    missing_docs,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "these are the C library's names; its manual pages fi_*(3) describe them"
)]

use std::ffi::{c_char, c_int, c_void};

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// No address (`FI_ADDR_UNSPEC`), which the headers define by a cast.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;

/// `fi_getinfo(3)`.
pub type fi_getinfo_t = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;
/// `fi_dupinfo(3)`; for NULL it creates an empty structure, as `fi_allocinfo` does.
pub type fi_dupinfo_t = unsafe extern "C" fn(info: *const fi_info) -> *mut fi_info;
/// `fi_freeinfo(3)`.
pub type fi_freeinfo_t = unsafe extern "C" fn(info: *mut fi_info);
/// `fi_fabric(3)`.
pub type fi_fabric_t = unsafe extern "C" fn(
    attributes: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int;
/// `fi_version(3)`.
pub type fi_version_t = unsafe extern "C" fn() -> u32;
/// `fi_strerror(3)`.
pub type fi_strerror_t = unsafe extern "C" fn(errno: c_int) -> *const c_char;
/// `fi_tostr(3)`; `kind` is an `enum fi_type`.
pub type fi_tostr_t = unsafe extern "C" fn(data: *const c_void, kind: c_int) -> *const c_char;
/// `fi_log_enabled` of `rdma/providers/fi_log.h`.
pub type fi_log_enabled_t =
    unsafe extern "C" fn(provider: *const fi_provider, level: u32, subsystem: u32) -> c_int;
/// `fi_log` of `rdma/providers/fi_log.h`.
pub type fi_log_t = unsafe extern "C" fn(
    provider: *const fi_provider,
    level: u32,
    subsystem: u32,
    function: *const c_char,
    line: c_int,
    format: *const c_char,
    ...
);
