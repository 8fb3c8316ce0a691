//! Messages of the command, prefixed with its name.

pub(crate) const PROGRAM: &str = "efa-emu";

/// Writes a line to standard error.
pub(crate) fn complain(reason: &str) {
    efa_commands::complain(PROGRAM, reason);
}

/// Writes to standard output; see [`efa_commands::output::print()`].
pub(crate) fn print(text: &str) -> bool {
    efa_commands::output::print(PROGRAM, text)
}
