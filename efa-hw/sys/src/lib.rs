//! The structures of libibverbs, generated from the headers that are installed.
//!
//! Nothing is linked: who calls the library loads it at run time. What is a symbol and what is an
//! entry of a context's or a queue's table, the manual pages `ibv_*(3)` and the headers say.
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
