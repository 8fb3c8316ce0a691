//! The `efa-emu` command.
fn main() {}
