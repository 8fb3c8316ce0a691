//! Any bytes as a packet: the parser, the walk along the field tables, and their agreement.

#![no_main]

#[path = "../../tests/wire/invariants.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| invariants::check(bytes));
