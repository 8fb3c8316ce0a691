//! The limit that the system sets on the size of a process's files (`ulimit -f`).
//!
//! A process that exceeds the limit is killed by the signal `SIGXFSZ`, without a message. The
//! device runs inside programs of others, so it checks the limit first.

use std::io::{self, ErrorKind};

use rustix::process::{Resource, getrlimit};

/// Checks that this process may create a file of `length` bytes.
///
/// # Errors
/// [`ErrorKind::FileTooLarge`], with a text that names limit and remedy.
pub fn check(length: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if length > limit => Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!(
                "{length} bytes are needed, and this process may only make files of {limit} bytes: \
                 raise the limit (`ulimit -f unlimited`)"
            ),
        )),
        _ => Ok(()),
    }
}
