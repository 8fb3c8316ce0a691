//! The conformance suite on the command line.
fn main() {}
