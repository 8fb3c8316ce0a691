//! Waits for the program so that a shell sees no difference: signals are passed to it, and this
//! process ends in the same way.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use super::signals::Signals;

/// SIGCHLD, and the signals that are meant for the program when they are sent to `efa-emu run`.
const TAKEN: [i32; 9] = [
    libc::SIGCHLD,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// Starts the program, passes signals to it, and waits for its end. Calls `meanwhile` repeatedly,
/// after the time that it returned or earlier.
pub fn run(
    command: &mut Command,
    mut meanwhile: impl FnMut() -> Duration,
) -> io::Result<ExitStatus> {
    // Before the start, so that no signal between start and wait kills only this process.
    let signals = Signals::take(&TAKEN);
    signals.unblock_in(command);
    let mut child = command.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let Some(signal) = signals.wait_for(meanwhile()) else {
            continue;
        };
        // Signals of the terminal reach the program directly.
        if signal.number != libc::SIGCHLD && signal.from_process {
            forward(&child, signal.number);
        }
    }
}

/// The reason why a program does not start, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program was named by a path at which there is no file.
    #[error("cannot run {}: there is no such file: check the path", .0.display())]
    NoFile(OsString),
    /// The program was named without a directory, and no directory of `PATH` has it.
    #[error("cannot run {}: no directory of PATH has it: install it, or give its path", .0.display())]
    NotInPath(OsString),
    /// The file is a directory, is not permitted to be run, or is in no format that the system
    /// runs.
    #[error("cannot run {}: it is not an executable file: check it with `ls -l`", .0.display())]
    NotExecutable(OsString),
    /// The limit of processes is reached.
    #[error("cannot run {}: {NO_MORE_PROCESSES}", .0.display())]
    NoMoreProcesses(OsString),
    /// Any other reason.
    #[error("cannot run {}: {source}", program.display())]
    System {
        /// The program as it was named.
        program: OsString,
        /// The reason of the system.
        source: io::Error,
    },
}

/// The reason why the program does not start.
pub fn cannot_start(program: &OsStr, error: io::Error) -> StartError {
    let by_path = program.as_bytes().contains(&b'/');
    let program = program.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound if by_path => StartError::NoFile(program),
        io::ErrorKind::NotFound => StartError::NotInPath(program),
        io::ErrorKind::PermissionDenied => StartError::NotExecutable(program),
        io::ErrorKind::WouldBlock => StartError::NoMoreProcesses(program),
        _ => StartError::System {
            program,
            source: error,
        },
    }
}

const NO_MORE_PROCESSES: &str = "the system permits no more processes: raise `ulimit -u`, or the number of processes of \
                                 the container";

/// The reason why this process could not be forked, and the remedy.
pub fn cannot_fork() -> io::Error {
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(NO_MORE_PROCESSES),
        _ => error,
    }
}

fn forward(child: &Child, signal: i32) {
    let Ok(pid) = i32::try_from(child.id()) else {
        return;
    };
    // SAFETY: the child has not been waited for, so the pid still belongs to it.
    unsafe { libc::kill(pid, signal) };
}

/// Ends this process as the program ended, if necessary by the same signal, so that the caller sees
/// the signal. MPICH's launcher ends a job when a signal ends one of its processes, but not when a
/// process exits with the status that a shell reports for the signal.
///
/// Destructors of the caller do not run if it was a signal.
pub fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        die_of(signal);
    }
    ExitCode::from(shell_status(status))
}

/// Returns if the signal does not end this process.
fn die_of(signal: i32) {
    // SAFETY: all calls get valid pointers to initialised values, or none, and the default action
    // runs no code of this program.
    unsafe {
        // The program has written its core dump, if permitted; one of this process would replace
        // it.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut only = core::mem::zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, core::ptr::null_mut());
        libc::raise(signal);
    }
}

/// The exit status that a shell would report: the program's, or 128 plus the number of its signal.
fn shell_status(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => (128 + signal) as u8,
        (None, None) => u8::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_a_shell() {
        assert_eq!(shell_status(ExitStatus::from_raw(0)), 0);
        assert_eq!(shell_status(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(shell_status(ExitStatus::from_raw(libc::SIGKILL)), 137);
    }
}
