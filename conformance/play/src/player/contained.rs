//! Processes that leave nothing behind.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Has the process that a command will start print into pipes, be in a process group of its own,
/// and get SIGTERM when the thread that starts it has ended: if this process is interrupted or
/// killed, no destructor ends its children.
pub fn contain(command: &mut Command) {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let ends_with_us = || {
        // SAFETY: a system call that takes no pointers.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: what runs between fork and exec is one system call, which allocates nothing and takes
    // no lock.
    unsafe { command.pre_exec(ends_with_us) };
}
