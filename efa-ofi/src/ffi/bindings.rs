//! Generated from libfabric's headers by `build.rs`.
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    missing_docs,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// No address (`FI_ADDR_UNSPEC`), which the headers define by a cast.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
