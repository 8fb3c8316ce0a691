//! Processes that leave no children behind.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Prepares a command: its process prints to pipes, has a separate process group, and gets SIGTERM
/// when the thread that started it ends, because no destructor ends the children of an interrupted
/// or killed process.
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
    // SAFETY: between fork and exec runs only one system call, which allocates nothing and takes no
    // lock.
    unsafe { command.pre_exec(ends_with_us) };
}
