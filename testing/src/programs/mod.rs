//! Programs on emulated hosts: finding what is installed, and running it for a bounded time without
//! leaving any behind.

pub mod exported;

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::patience::{PATIENCE, Wait};
use crate::workspace::efa_emu;
use efa_commands::ports::{free_port, is_listened_on};

/// The path of an installed program, or `None` and a line that says why the test is skipped.
pub fn installed(program: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file());
    if found.is_none() {
        crate::skip(format_args!(
            "{program} is not installed (Debian package {package})"
        ));
    }
    found
}

/// Ends the test, with a line that says why, if a program is not installed.
#[macro_export]
macro_rules! needs {
    ($program:expr, $package:expr) => {
        if $crate::programs::installed($program, $package).is_none() {
            return;
        }
    };
}
pub use needs;

/// Runs a program to its end.
#[track_caller]
pub fn run(command: Command) -> Finished {
    Program::start(command).wait()
}

/// Runs a program that has to succeed; `what` names it in the failure.
#[track_caller]
pub fn succeed(command: Command, what: &str) -> Finished {
    run(command).expect_success(what)
}

/// The words of a command line, which has no quotes.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A fabric of this test's own, so that tests do not meet.
pub struct TestFabric {
    name: String,
}

impl TestFabric {
    /// With a name that no other test has at the same time.
    #[allow(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> TestFabric {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        TestFabric {
            name: format!("test-{}-{count}", std::process::id()),
        }
    }

    /// As `--fabric` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the fabric is as long as anybody takes part in it.
    pub fn directory(&self) -> PathBuf {
        // SAFETY: takes no pointers.
        let user = unsafe { libc::geteuid() };
        Path::new("/dev/shm")
            .join(format!("efa-emu-{user}"))
            .join(&self.name)
    }

    /// `efa-emu run --fabric ... OPTIONS -- COMMAND`, where options and command are one list.
    pub fn run(&self, arguments: &[&str]) -> Command {
        let mut command = efa_emu(&["run", "--fabric", &self.name]);
        command.args(arguments);
        command
    }

    /// `efa-emu run` on a host of its own, without options.
    pub fn host(&self, program: &[&str]) -> Command {
        self.run(&[&["--"], program].concat())
    }

    /// A host that is there without talking.
    pub fn sleeper(&self, host: &str) -> Program {
        let sleeper = Program::start(self.run(&["--host", host, "--", "sleep", "120"]));
        sleeper.inner_id();
        sleeper
    }

    /// Waits until that many hosts are asked to record.
    ///
    /// # Panics
    /// If it takes longer than [`PATIENCE`].
    pub fn wait_for_captures(&self, count: usize) {
        let wait = Wait::start();
        let requested = || {
            let hosts = std::fs::read_dir(self.directory().join("hosts"));
            hosts
                .into_iter()
                .flatten()
                .flatten()
                .map(|host| files_with(&host.path(), ".capture").len())
                .sum::<usize>()
        };
        while requested() != count {
            wait.pause(|| format!("not {count} captures"));
        }
    }

    /// The GIDs of the processes that have a queue pair, as `efa-emu ps` lists them.
    pub fn gids_with_queue_pairs(&self) -> Vec<String> {
        self.ps()
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            // Host, process, "open", GID and at least one queue pair.
            .filter(|fields| fields.len() > 4 && fields[2] == "open")
            .map(|fields| fields[3].to_owned())
            .collect()
    }

    /// What `efa-emu ps` prints.
    pub fn ps(&self) -> String {
        Program::start(efa_emu(&["ps", "--fabric", &self.name]))
            .wait()
            .stdout
    }
}

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

/// Has `command` started by a launcher: a program and its options; nothing changes without one.
pub fn started_by(launcher: &[&str], command: Command) -> Command {
    let [program, options @ ..] = launcher else {
        return command;
    };
    let mut launched = Command::new(program);
    launched
        .args(options)
        .arg(command.get_program())
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    launched
}

/// A server program and a client program that agree on a TCP port, each under an `efa-emu run`.
pub struct Dialogue<'a> {
    fabric: &'a TestFabric,
    port: String,
    arguments: Vec<&'a str>,
    server_port: &'a str,
    client_port: &'a str,
    /// Added to both programs' environments.
    pub environment: &'a [(&'a str, &'a str)],
    /// A program with options that starts each `efa-emu run`, for example in namespaces of its own.
    pub launcher: &'a [&'a str],
    /// What the client runs instead of the server's arguments.
    pub client_arguments: Option<Vec<&'a str>>,
}

impl<'a> Dialogue<'a> {
    /// `fi_pingpong` over the efa provider, with so many rounds of messages of `size` bytes, and
    /// `further` options.
    pub fn pingpong(
        fabric: &'a TestFabric,
        rounds: &'a str,
        size: &'a str,
        further: &[&'a str],
    ) -> Dialogue<'a> {
        let program = ["fi_pingpong", "-p", "efa", "-e", "rdm"];
        let messages = ["-I", rounds, "-S", size];
        let arguments = [&program[..], &messages, further].concat();
        Dialogue::new(fabric, &arguments, "-B", "-P")
    }

    /// Both sides run `arguments`; the server gets the port behind the option `server_port`, the
    /// client gets it behind `client_port`, and the address of the server.
    pub fn new(
        fabric: &'a TestFabric,
        arguments: &[&'a str],
        server_port: &'a str,
        client_port: &'a str,
    ) -> Dialogue<'a> {
        Dialogue {
            fabric,
            port: free_port().expect("there are free ports").to_string(),
            arguments: arguments.to_vec(),
            server_port,
            client_port,
            environment: &[],
            launcher: &[],
            client_arguments: None,
        }
    }

    fn command(&self, options: &[&str], arguments: &[&str], tail: &[&str]) -> Command {
        let mut command = self
            .fabric
            .run(&[options, &["--"], arguments, tail].concat());
        command.envs(self.environment.iter().copied());
        started_by(self.launcher, command)
    }

    /// Starts the server with these options of `efa-emu run`, and waits until it listens.
    pub fn server(&self, options: &[&str]) -> Program {
        let tail = [self.server_port, &self.port];
        let mut server = Program::start(self.command(options, &self.arguments, &tail));
        wait_for_listener(self.port.parse().expect("a port"), &mut server);
        server
    }

    /// Starts the client.
    pub fn client(&self, options: &[&str]) -> Program {
        let tail = [self.client_port, &self.port, "127.0.0.1"];
        let arguments = self.client_arguments.as_ref().unwrap_or(&self.arguments);
        Program::start(self.command(options, arguments, &tail))
    }

    /// Runs both to their end.
    ///
    /// # Panics
    /// If one of them fails; shows what they printed.
    #[track_caller]
    pub fn run(&self, server_options: &[&str], client_options: &[&str]) -> [Finished; 2] {
        let server = self.server(server_options);
        let client = self.client(client_options).wait();
        let server = if client.status.success() {
            server.wait()
        } else {
            // It would wait for the client for ever.
            server.signal(libc::SIGTERM);
            server.wait()
        };
        assert!(
            client.status.success() && server.status.success(),
            "{:?}\nserver {}: {}{}\nclient {}: {}{}",
            self.arguments,
            server.status,
            server.stdout,
            server.stderr,
            client.status,
            client.stdout,
            client.stderr
        );
        [server, client]
    }
}

/// Files whose names contain `part`, for checks that nothing stays behind.
pub fn files_with(directory: &Path, part: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains(part))
        .collect()
}

/// Makes these system calls fail with `ENOSYS` in the calling thread and in the processes that it
/// starts.
pub fn forbid(calls: &[libc::c_long]) {
    forbid_with(libc::ENOSYS, calls);
}

/// As [`forbid`], with this error.
pub fn forbid_with(error: i32, calls: &[libc::c_long]) {
    let step = |code: u32, jump_if: u8, jump_else: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: jump_else,
        k,
    };
    let give = |value| step(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // The number of the call is at the start of what a filter sees.
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls {
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        filter.push(step(equal, 0, 1, *call as u32));
        filter.push(give(libc::SECCOMP_RET_ERRNO | error as u32));
    }
    filter.push(give(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: a whole program, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        let answer = libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program);
        assert_eq!(answer, 0);
    }
}
