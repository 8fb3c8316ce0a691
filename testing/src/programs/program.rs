//! A program that runs for a bounded time, and what it printed.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use efa_commands::ports::is_listened_on;

use crate::patience::{PATIENCE, Wait};

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// As the system reports it.
    pub status: ExitStatus,
    /// What it has printed.
    pub stdout: String,
    /// What it has complained about.
    pub stderr: String,
}

impl Finished {
    /// This outcome, of a program that has to succeed.
    ///
    /// # Panics
    /// If the program failed; shows what it printed.
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

    /// Checks that all of these parts were printed to standard error.
    #[track_caller]
    pub fn expect_stderr(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.stderr.contains(part), "{part}: {}", self.stderr);
        }
    }

    /// Checks that the program was refused: with exit status 2, and one line on standard error that
    /// has all of these parts.
    #[track_caller]
    pub fn expect_refusal(&self, parts: &[&str]) {
        assert_eq!((self.code(), self.stdout.as_str()), (2, ""), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self.expect_stderr(parts);
    }

    /// The exit status as a shell would report it.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

/// libinfinipath, which Debian's libfabric loads for another vendor's devices, answers SIGTERM by
/// calling `exit` inside the handler. Libraries' destructors then wait for ever for locks that the
/// interrupted code holds: malloc's, or libfabric's own. This leaves the signal to others.
pub const NO_FOREIGN_HANDLER: [(&str, &str); 1] = [("IPATH_NO_BACKTRACE", "1")];

/// A running program, in a process group of its own that ends with this value.
pub struct Program {
    child: Child,
    stdout: Printed,
    stderr: Printed,
    description: String,
    finished: bool,
}

impl Program {
    /// Starts a program, whose output is kept.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(mut command: Command) -> Program {
        let description = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {description}: {error}"));
        Program {
            stdout: Printed::follow(child.stdout.take()),
            stderr: Printed::follow(child.stderr.take()),
            child,
            description,
            finished: false,
        }
    }

    /// The number of its process, and of its group.
    pub fn id(&self) -> i32 {
        self.child.id() as i32
    }

    /// The program that `efa-emu run` started, once it is there.
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

    /// What it has written to standard output so far.
    pub fn printed(&self) -> String {
        self.stdout.so_far()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers. The child was not waited for, so the pid is its own.
        unsafe { libc::kill(self.id(), signal) };
    }

    /// Waits for the end of the program.
    ///
    /// # Panics
    /// If it takes longer than [`PATIENCE`].
    #[track_caller]
    pub fn wait(mut self) -> Finished {
        let wait = Wait::start();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            wait.pause(|| {
                self.end_group();
                let rest = Duration::from_secs(5);
                format!(
                    "{} did not end within {PATIENCE:?}\n--- stdout\n{}\n--- stderr\n{}",
                    self.description,
                    self.stdout.within(rest),
                    self.stderr.within(rest),
                )
            });
        };
        // What the program left running would keep the pipes open.
        self.end_group();
        Finished {
            status,
            stdout: self.stdout.within(PATIENCE),
            stderr: self.stderr.within(PATIENCE),
        }
    }

    /// Waits until what the program has printed to standard output is enough.
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

    fn end_group(&mut self) {
        self.finished = true;
        // SAFETY: takes no pointers. The group is the one that this program was started in.
        unsafe { libc::kill(-self.id(), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.finished {
            self.end_group();
        }
    }
}

/// What a program prints to one of its streams.
struct Printed {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Told when the stream ends.
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

    /// All of it; if it does not end in time, what there is.
    fn within(&self, time: Duration) -> String {
        let _ = self.end.recv_timeout(time);
        self.so_far()
    }
}

/// Waits until somebody listens on a TCP port, without connecting to it.
pub fn wait_for_listener(port: u16, server: &mut Program) {
    let wait = Wait::start();
    loop {
        if is_listened_on(port) {
            return;
        }
        if let Ok(Some(status)) = server.child.try_wait() {
            server.finished = true;
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
