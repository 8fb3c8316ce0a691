//! Standard output of a command: what cannot be written is told once, and the command has not
//! succeeded then.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU8, Ordering};

use super::complain;

/// The state of standard output.
static STATE: AtomicU8 = AtomicU8::new(OPEN);

const OPEN: u8 = 0;
/// The reader has ended (`| head`), which is no failure.
const UNREAD: u8 = 1;
/// Something that was to be written is missing, on a full disk for instance.
const INCOMPLETE: u8 = 2;

/// Writes `text` to standard output. Returns whether more is of use: not if its reader has ended,
/// and not if something could not be written, of which a line of `program` on standard error tells
/// the first time.
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

/// Takes notice of an error with which standard output was written in another way than by
/// [`print()`].
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

/// Whether something is missing in standard output that its reader waits for.
pub fn is_incomplete() -> bool {
    STATE.load(Ordering::Relaxed) == INCOMPLETE
}
