//! Children that end together with the processes that they start.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which a process is polled.
const TICK: Duration = Duration::from_millis(2);

/// A child in a process group of its own. The group is killed when this is dropped, unless the
/// child was waited for: then another group may have its number.
#[derive(Debug)]
pub struct ProcessGroup {
    /// The first process of the group.
    pub leader: Child,
}

impl ProcessGroup {
    /// Starts a command.
    pub fn start(command: &mut Command) -> io::Result<ProcessGroup> {
        let leader = command.process_group(0).spawn()?;
        Ok(ProcessGroup { leader })
    }

    /// Sends a signal to all processes of the group.
    pub fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers. The number is that of the group as long as a process of the
        // group is left.
        unsafe { libc::kill(-(self.leader.id() as i32), signal) };
    }

    /// Kills all processes of the group.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.leader.wait();
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Ok(None) = self.leader.try_wait() {
            self.kill();
        }
    }
}

/// Waits for the end of a child, for at most `limit`. `None` if it has not ended.
pub fn ends_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if started.elapsed() < limit => thread::sleep(TICK),
            Ok(None) | Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn no_process_of_the_group_is_left() {
        for (script, code) in [
            ("sleep 3600 & exit 3", Some(3)),
            ("sleep 3600 & wait", None),
        ] {
            let mut command = Command::new("sh");
            let command = command.args(["-c", script]).stdout(Stdio::piped());
            let mut group = ProcessGroup::start(command).unwrap();
            let mut output = group.leader.stdout.take().unwrap();
            let limit = code.map_or(Duration::from_millis(1), |_| Duration::MAX);
            let status = ends_within(&mut group.leader, limit);
            assert_eq!(status.and_then(|status| status.code()), code);
            if status.is_some() {
                group.kill();
            }
            drop(group);
            // The output ends with the last process that has it open.
            assert_eq!(output.read(&mut [0]).unwrap(), 0);
        }
    }
}
