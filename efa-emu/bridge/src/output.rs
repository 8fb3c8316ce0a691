//! Messages of the bridge, with the name of its command.

use std::io::{self, Write as _};

pub(crate) const PROGRAM: &str = "efa-emu bridge";

/// Writes a line to standard error.
pub(crate) fn complain(reason: &str) {
    efa_commands::complain(PROGRAM, reason);
}

/// Writes a line to standard output, if anybody still reads it.
pub(crate) fn report(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
