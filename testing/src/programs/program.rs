//! A program that runs with a time limit, and its output.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use efa_commands::ports::is_listened_on;
use efa_commands::process_group::ProcessGroup;

use crate::patience::{PATIENCE, Wait};

/// The result of a program.
#[derive(Debug)]
pub struct Finished {
    /// The exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Returns the result of a program that must succeed.
    ///
    /// # Panics
    /// If the program failed, with its output.
    #[track_caller]
    pub fn expect_success(self, what: &str) -> Finished {
        assert!(
            self.status.success(),
            "{what}: {}\n--- stdout\n{}\n--- stderr\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Checks that standard error contains all of these texts.
    #[track_caller]
    pub fn expect_stderr(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.stderr.contains(part), "{part}: {}", self.stderr);
        }
    }

    /// Checks that the program refused its arguments: with exit status 2, and one line on standard
    /// error that contains all of these texts.
    #[track_caller]
    pub fn expect_refusal(&self, parts: &[&str]) {
        assert_eq!((self.code(), self.stdout.as_str()), (2, ""), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self.expect_stderr(parts);
    }

    /// The exit status in the form of a shell.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

/// libinfinipath, which Debian's libfabric loads for another vendor's devices, calls `exit` in a
/// handler of SIGTERM. Libraries' destructors then deadlock on locks that the interrupted code
/// holds: malloc's, or libfabric's own. This variable disables the handler.
pub const NO_FOREIGN_HANDLER: [(&str, &str); 1] = [("IPATH_NO_BACKTRACE", "1")];

/// A running program in its own process group, which is killed when this is dropped.
pub struct Program {
    group: ProcessGroup,
    stdout: Printed,
    stderr: Printed,
    description: String,
}

impl Program {
    /// Starts a program and collects its output.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(mut command: Command) -> Program {
        let description = format!("{command:?}");
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut group = ProcessGroup::start(piped.stdin(Stdio::null()))
            .unwrap_or_else(|error| panic!("cannot start {description}: {error}"));
        Program {
            stdout: Printed::follow(group.leader.stdout.take()),
            stderr: Printed::follow(group.leader.stderr.take()),
            group,
            description,
        }
    }

    /// The id of its process and process group.
    pub fn id(&self) -> i32 {
        self.group.leader.id() as i32
    }

    /// The process id of the program that `efa-emu run` started. Waits until it exists.
    pub fn inner_id(&self) -> i32 {
        let wait = Wait::start();
        let children = format!("/proc/{0}/task/{0}/children", self.id());
        loop {
            let list = std::fs::read_to_string(&children).unwrap_or_default();
            if let Some(child) = list.split_whitespace().next() {
                return child.parse().expect("pids are numbers");
            }
            wait.pause(|| format!("{} started nothing", self.description));
        }
    }

    /// Its standard output so far.
    pub fn printed(&self) -> String {
        self.stdout.so_far()
    }

    /// Its output so far, standard output first.
    pub fn said(&self) -> String {
        self.stdout.so_far() + &self.stderr.so_far()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers. The child was not waited for, so the pid is its own.
        unsafe { libc::kill(self.id(), signal) };
    }

    /// Waits until the program exits.
    ///
    /// # Panics
    /// If it takes longer than [`PATIENCE`].
    #[track_caller]
    pub fn wait(mut self) -> Finished {
        let wait = Wait::start();
        let status = loop {
            if let Some(status) = self.group.leader.try_wait().expect("it is our child") {
                break status;
            }
            wait.pause(|| {
                self.group.kill();
                let rest = Duration::from_secs(5);
                format!(
                    "{} did not end within {PATIENCE:?}\n--- stdout\n{}\n--- stderr\n{}",
                    self.description,
                    self.stdout.within(rest),
                    self.stderr.within(rest),
                )
            });
        };
        // Processes that the program left behind would keep the pipes open.
        self.group.kill();
        Finished {
            status,
            stdout: self.stdout.within(PATIENCE),
            stderr: self.stderr.within(PATIENCE),
        }
    }

    /// As [`Program::wait`]; the exit status, and the output, standard output first.
    #[track_caller]
    pub fn outcome(self) -> (Option<i32>, String) {
        let finished = self.wait();
        (finished.status.code(), finished.stdout + &finished.stderr)
    }

    /// Waits for a line with this text on one of its streams.
    ///
    /// # Panics
    /// If it takes longer than [`PATIENCE`].
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        let wait = Wait::start();
        loop {
            for said in [&self.stdout, &self.stderr].map(Printed::so_far) {
                // A line may be incomplete.
                let mut lines = said
                    .split_inclusive('\n')
                    .filter(|line| line.ends_with('\n'));
                if let Some(line) = lines.find(|line| line.contains(text)) {
                    return line.trim_end().to_owned();
                }
            }
            wait.pause(|| format!("{text:?} was not printed: {}", self.said()));
        }
    }

    /// Waits until the standard output is sufficient.
    ///
    /// # Panics
    /// If it takes longer than [`PATIENCE`].
    #[track_caller]
    pub fn wait_for_output(&self, is_enough: impl Fn(&str) -> bool) {
        let wait = Wait::start();
        loop {
            let printed = self.stdout.so_far();
            if is_enough(&printed) {
                return;
            }
            wait.pause(|| {
                format!(
                    "{} has printed no more than\n{printed}\n--- stderr\n{}",
                    self.description,
                    self.stderr.so_far(),
                )
            });
        }
    }
}

/// The output of a program to one of its streams.
struct Printed {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Disconnected when the stream ends.
    end: Receiver<()>,
}

impl Printed {
    fn follow(pipe: Option<impl Read + Send + 'static>) -> Printed {
        let (ended, end) = channel();
        let mut pipe = pipe.expect("the stream is piped");
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let all = bytes.clone();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                all.lock().unwrap().extend_from_slice(&chunk[..count]);
            }
            let _ = ended.send(());
        });
        Printed { bytes, end }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    /// The whole output, or what was received before the time limit.
    fn within(&self, time: Duration) -> String {
        let _ = self.end.recv_timeout(time);
        self.so_far()
    }
}

/// Waits until a process listens on a TCP port, without connecting to it.
pub fn wait_for_listener(port: u16, server: &mut Program) {
    let wait = Wait::start();
    loop {
        if is_listened_on(port) {
            return;
        }
        if let Ok(Some(status)) = server.group.leader.try_wait() {
            panic!(
                "{} ended before it listened: {status}\n--- stdout\n{}\n--- stderr\n{}",
                server.description,
                server.stdout.within(PATIENCE),
                server.stderr.within(PATIENCE)
            );
        }
        wait.pause(|| format!("{} does not listen", server.description));
    }
}
