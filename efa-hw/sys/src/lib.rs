//! The structures of libibverbs, generated from the installed headers.
//!
//! The library is not linked: users load it at run time. The headers and the manual pages
//! `ibv_*(3)` show which functions are symbols, and which are entries in the table of a context or
//! queue.
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    missing_docs,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "these are the C library's names; its manual pages ibv_*(3) describe them"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
