//! Processes of a host.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval of checks whether processes have exited.
const PAUSE: Duration = Duration::from_millis(2);

/// The two results of a fork.
pub(crate) enum Forked {
    Child,
    Parent(i32),
}

/// Forks the calling process, which must have no other thread, so that the child can run ordinary
/// code.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the process has one thread, so no other thread holds a lock that the child would
    // need.
    match unsafe { libc::fork() } {
        0 => Ok(Forked::Child),
        child @ 1.. => Ok(Forked::Parent(child)),
        _ => Err(efa_commands::child::cannot_fork()),
    }
}

/// Exits a forked child, without running the parent's destructors.
pub(crate) fn leave(status: i32) -> ! {
    // SAFETY: exits the process immediately.
    unsafe { libc::_exit(status) }
}

pub(crate) fn wait_for(child: i32) {
    let mut status = 0;
    // SAFETY: the pointer is to a local variable.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// A child that has exited, and its status from `waitpid`. `None` if none has.
pub(crate) fn ended_child() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the pointer is to a local variable.
    let child = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (child > 0).then_some((child, status))
}

/// Returns whether the calling process has children, including exited ones.
fn has_children() -> bool {
    // SAFETY: no information is requested, so no pointer is used.
    let found = unsafe {
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, std::ptr::null_mut(), flags)
    };
    found == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ECHILD)
}

/// Closes all descriptors except for the standard streams when a program is executed: they may
/// belong to the starter of this process and are not meant for its programs.
pub(crate) fn keep_descriptors() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call takes no pointers, and closes nothing.
    let marked = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if marked == 0 {
        return Ok(());
    }
    // Linux before 5.11, and containers that forbid unknown system calls.
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(descriptor) = number.filter(|number| *number >= FIRST as i32) {
            // SAFETY: the call takes no pointers. A descriptor that was closed meanwhile is
            // refused.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Makes the calling process the parent of its descendants that lose theirs.
pub(crate) fn adopt_orphans() {
    // SAFETY: the call takes no pointers. It cannot fail since Linux 3.4.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Sends a signal to a process or, if the number is negative, to a process group. It may have
/// exited.
pub(crate) fn signal(process: i32, signal: i32) {
    // SAFETY: the call takes no pointers.
    unsafe { libc::kill(process, signal) };
}

/// Ends all descendants of the calling process, which has adopted its orphans: sends SIGTERM, and
/// SIGKILL after `grace`. Descendants that are left after the same time again are abandoned.
pub(crate) fn end_descendants(grace: Duration) {
    let started = Instant::now();
    let mut asked = Vec::new();
    loop {
        // Reaps zombies.
        while ended_child().is_some() {}
        // A process without children has no descendants, because orphans become its children. If
        // each of many hosts scanned all processes of the machine, this would take quadratic time.
        if !has_children() || started.elapsed() > 2 * grace {
            return;
        }
        let descendants = descendants(std::process::id() as i32);
        let killing = started.elapsed() >= grace;
        for process in descendants {
            if killing {
                signal(process, libc::SIGKILL);
            } else if !asked.contains(&process) {
                signal(process, libc::SIGTERM);
                signal(process, libc::SIGCONT);
                asked.push(process);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Kills all processes of the user that were started with these variables. Orphans of an exited
/// parent are not descendants any more. A process in `execve` has no environment for a moment, and
/// is checked again.
pub(crate) fn kill_where(variables: &[(&str, &OsStr)]) {
    let wanted: Vec<_> = variables
        .iter()
        .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
        .collect();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let environment = environment_of(&entry.path());
        let has = |wanted: &Vec<u8>| {
            environment
                .split(|byte| *byte == 0)
                .any(|set| set == wanted)
        };
        let process = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(process) = process.filter(|_| wanted.iter().all(has)) {
            signal(process, libc::SIGKILL);
        }
    }
}

/// The environment with which a process was started, from its directory in `/proc`. It is also
/// empty for kernel threads and other users' processes; their executables cannot be read.
fn environment_of(process: &Path) -> Vec<u8> {
    // `execve` replaces the memory first and sets the location of the environment at its end.
    const LOOKS: usize = 20;
    for _ in 0..LOOKS {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        if !environment.is_empty() || fs::read_link(process.join("exe")).is_err() {
            return environment;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Vec::new()
}

/// The descendants of a process that are running or stopped.
fn descendants(ancestor: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent_in(&stat) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![ancestor];
    while let Some(process) = next.pop() {
        let of_process = children.remove(&process).unwrap_or_default();
        next.extend(&of_process);
        found.extend(of_process);
    }
    found
}

/// The parent's id in `/proc/PID/stat`; `None` if the process has exited.
fn parent_in(stat: &str) -> Option<i32> {
    // The name in parentheses may contain any characters.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    (state != "Z").then(|| fields.next()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_read_after_any_process_name() {
        assert_eq!(parent_in("12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("12 (a ) Z (b) R 8 12"), Some(8));
        assert_eq!(parent_in("12 (sh) Z 7 12 12 0"), None);
        assert_eq!(parent_in(""), None);
    }

    #[test]
    fn processes_are_found_by_their_environment() {
        let name = format!("EFA_EMU_TEST_{}", std::process::id());
        let start = |value: &str| {
            let mut command = std::process::Command::new("sleep");
            let child = command.arg("60").env(&name, value).spawn().unwrap();
            // The kernel shows it after `execve`, which may be after `spawn` returns.
            let environ = format!("/proc/{}/environ", child.id());
            while fs::read(&environ).unwrap().is_empty() {
                std::thread::sleep(PAUSE);
            }
            child
        };
        let (mut meant, mut other) = (start("a"), start("ab"));
        kill_where(&[(&name, OsStr::new("a"))]);
        let status = meant.wait().unwrap();
        let survived = other.try_wait().unwrap().is_none();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!status.success() && survived);
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sh -c 'sleep 60; true'; true"])
            .spawn()
            .unwrap();
        let own = std::process::id() as i32;
        let shell_id = shell.id() as i32;
        let deadline = Instant::now() + Duration::from_secs(60);
        let below = loop {
            let below = descendants(shell_id);
            if below.len() == 2 || Instant::now() > deadline {
                break below;
            }
            std::thread::sleep(PAUSE);
        };
        let all = descendants(own);
        for process in &below {
            signal(*process, libc::SIGKILL);
        }
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert_eq!(below.len(), 2);
        assert!(all.contains(&shell_id) && below.iter().all(|process| all.contains(process)));
    }
}
