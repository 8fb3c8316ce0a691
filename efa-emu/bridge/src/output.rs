//! Messages of the bridge, prefixed with its program's name.

use std::io::{self, Write as _};

pub(crate) const PROGRAM: &str = "efa-emu bridge";

/// Writes a line to standard error.
pub(crate) fn complain(reason: &str) {
    efa_commands::complain(PROGRAM, reason);
}

/// Writes a line to standard output, if that is still open.
pub(crate) fn report(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
