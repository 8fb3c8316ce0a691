//! Any bytes as the packets of a hostile peer and the calls of an application between them: see
//! `testing/src/siege.rs` for what has to hold.

#![no_main]

use efa_testing::siege;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| siege::run(bytes));
