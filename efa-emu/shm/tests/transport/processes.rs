//! Children: this test binary, started again in another role.

use efa_testing::patience::PATIENCE;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

/// The environment variable that makes a child of this binary.
const ROLE: &str = "EFA_EMU_TEST_ROLE";
const ROOT: &str = "EFA_EMU_TEST_ROOT";
const SEED: &str = "EFA_EMU_TEST_SEED";

/// The prefix of lines from child to parent; all other output comes from the test harness.
const MARK: &str = "@ ";

/// Starts a child in the given role, with the fabric below `root`.
fn command(role: &str, root: &Path, seed: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture"])
        .env(ROLE, role)
        .env(ROOT, root)
        .env(SEED, seed.to_string());
    command
}

/// Runs a child that needs no commands until it exits normally. Returns its output on standard
/// error.
pub(crate) fn errors_of(role: &str, root: &Path, seed: u64) -> String {
    let output = command(role, root, seed)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    errors
}

/// A running child, killed when dropped.
pub(crate) struct Process {
    child: Child,
    words: Receiver<String>,
}

impl Process {
    /// Starts a child in the given role, with the fabric below `root`.
    pub(crate) fn start(role: &str, root: &Path, seed: u64) -> Process {
        let mut child = command(role, root, seed)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, words) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { break };
                if let Some(at) = line.find(MARK)
                    && sender.send(line[at + MARK.len()..].to_owned()).is_err()
                {
                    break;
                }
            }
        });
        Process { child, words }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Writes a line to the child.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
    }

    /// The next line that the child writes.
    pub(crate) fn hear(&mut self) -> String {
        match self.words.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the child says nothing"),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the child ended: {:?}", self.child.wait())
            }
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the process is our child and not reaped, so the number is its own.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Waits until the child has stopped.
    pub(crate) fn wait_until_stopped(&self) {
        let mut status = 0;
        // SAFETY: the process is our child and not reaped; `status` is valid for the write.
        let changed = unsafe { libc::waitpid(self.pid(), &raw mut status, libc::WUNTRACED) };
        assert_eq!(changed, self.pid());
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
    }

    /// Kills the child and waits until it has ended.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the child's normal exit.
    pub(crate) fn finish(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A child's side of the conversation.
pub(crate) struct Parent {
    pub(crate) root: std::path::PathBuf,
    pub(crate) seed: u64,
}

impl Parent {
    pub(crate) fn say(&self, line: &str) {
        // At the start of a line, whatever the harness has printed before.
        println!("\n{MARK}{line}");
        std::io::stdout().flush().unwrap();
    }

    /// The next line that the parent writes; `None` when it has closed the pipe.
    pub(crate) fn hear(&self) -> Option<String> {
        let mut line = String::new();
        match std::io::stdin().lock().read_line(&mut line).unwrap() {
            0 => None,
            _ => Some(line.trim_end().to_owned()),
        }
    }
}

/// The role of this process and its parent, if it is a child.
pub(crate) fn role() -> Option<(String, Parent)> {
    let role = std::env::var(ROLE).ok()?;
    // SAFETY: asks the kernel to end this process with its parent; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let parent = Parent {
        root: std::env::var_os(ROOT).unwrap().into(),
        seed: std::env::var(SEED).unwrap().parse().unwrap(),
    };
    Some((role, parent))
}
