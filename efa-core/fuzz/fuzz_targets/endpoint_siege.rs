//! Any bytes as the packets of a hostile peer and the calls of an application between them: see
//! `tests/support/siege.rs` for what has to hold.

#![no_main]

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/endpoint/mock.rs"]
mod mock;
#[path = "../../tests/support/siege.rs"]
mod siege;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| siege::run(bytes));
