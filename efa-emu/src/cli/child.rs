//! Waiting for the program, as a shell's child would be waited for: signals reach it, and its fate
//! becomes ours.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

/// Signals that are meant for the program when somebody sends them to `efa-emu run`.
const FORWARDED: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// Signals that this process takes by waiting for them.
struct Signals {
    waited_for: libc::sigset_t,
    /// The signals that were blocked before, which is how the program gets them.
    blocked_before: libc::sigset_t,
}

impl Signals {
    fn block() -> Signals {
        let mut waited_for = MaybeUninit::uninit();
        let mut blocked_before = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initialises the set that the others then change and read, and
        // `pthread_sigmask` the other set; all signal numbers are valid.
        unsafe {
            libc::sigemptyset(waited_for.as_mut_ptr());
            for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(waited_for.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(
                libc::SIG_BLOCK,
                waited_for.as_ptr(),
                blocked_before.as_mut_ptr(),
            );
            Signals {
                waited_for: waited_for.assume_init(),
                blocked_before: blocked_before.assume_init(),
            }
        }
    }

    /// Lets the program start as if the signals had not been blocked here.
    fn unblock_in(&self, command: &mut Command) {
        let mask = self.blocked_before;
        let unblock = move || {
            // SAFETY: the set is initialised, and the old one is not asked for.
            match unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut())
            } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        // SAFETY: between `fork` and `exec` it makes one call, which is allowed there.
        unsafe { command.pre_exec(unblock) };
    }

    /// The next signal, and whether a process sent it (and not the terminal, which sends to the
    /// program by itself).
    fn wait(&self) -> (i32, bool) {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        loop {
            // SAFETY: the set is initialised, and `info` has room for what the call writes.
            let signal =
                unsafe { libc::sigwaitinfo(&raw const self.waited_for, info.as_mut_ptr()) };
            if signal > 0 {
                // SAFETY: zeroed at first and filled by the successful call.
                let code = unsafe { info.assume_init_ref() }.si_code;
                return (signal, code <= 0);
            }
        }
    }
}

/// Starts the program and waits for its end, passing signals on.
pub(super) fn run(command: &mut Command) -> io::Result<ExitStatus> {
    // Before the start, so that no signal between start and wait ends this process alone.
    let signals = Signals::block();
    signals.unblock_in(command);
    let mut child = command.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let (signal, from_process) = signals.wait();
        if signal != libc::SIGCHLD && from_process {
            forward(&child, signal);
        }
    }
}

fn forward(child: &Child, signal: i32) {
    let Ok(pid) = i32::try_from(child.id()) else {
        return;
    };
    // SAFETY: the child has not been waited for, so the pid is still its own.
    unsafe { libc::kill(pid, signal) };
}

/// The exit status that a shell would report: the program's, or 128 and the signal that ended it.
pub(super) fn shell_status(status: ExitStatus) -> u8 {
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
