//! Standard output of a command. A write error is reported once, and makes the command fail.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU8, Ordering};

use super::complain;

/// The state of standard output.
static STATE: AtomicU8 = AtomicU8::new(OPEN);

const OPEN: u8 = 0;
/// The reader has closed the pipe (`| head`), which is not a failure.
const UNREAD: u8 = 1;
/// Some output could not be written, for instance on a full disk.
const INCOMPLETE: u8 = 2;

/// Writes `text` to standard output. Returns whether further output is useful: not if the reader
/// has closed the pipe, and not after a write error, which is reported by a line of `program` on
/// standard error the first time.
pub fn print(program: &str, text: &str) -> bool {
    if STATE.load(Ordering::Relaxed) != OPEN {
        return false;
    }
    let mut output = io::stdout().lock();
    let written = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    match written {
        Ok(()) => true,
        Err(error) => {
            fail(program, &error);
            false
        }
    }
}

/// Notes an error of a write to standard output that was made without [`print()`].
pub fn fail(program: &str, error: &io::Error) {
    let state = match error.kind() {
        io::ErrorKind::BrokenPipe => UNREAD,
        _ => INCOMPLETE,
    };
    STATE.store(state, Ordering::Relaxed);
    if state == INCOMPLETE {
        complain(
            program,
            &format!("cannot write to standard output: {error}"),
        );
    }
}

/// Whether output is missing for which its reader waits.
pub fn is_incomplete() -> bool {
    STATE.load(Ordering::Relaxed) == INCOMPLETE
}
