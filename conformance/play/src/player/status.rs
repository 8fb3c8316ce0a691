//! Exit statuses of programs.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The exit status of a program that does not support the request.
pub const UNSUPPORTED: i32 = 127;
/// The exit status of this project's programs for wrong usage or environment.
pub(super) const UNFIT: i32 = 2;
/// The exit status of ssh if there is no connection, or if a signal ended the command.
pub(super) const NO_CONNECTION: i32 = 255;
/// The exit statuses of shells for a program that is not found, or cannot be started.
pub(super) const NO_PROGRAM: [i32; 2] = [127, 126];

/// The exit status for a process that ended like this, in the form of shells.
pub fn status_as(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(1)
}
