//! The conformance suite on the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    efa_conformance::cli::main()
}
