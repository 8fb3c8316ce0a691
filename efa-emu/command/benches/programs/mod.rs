//! Starts the programs of a benchmark, and ends them in any case.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use efa_commands::ports;
use rustix::process::{Pid, Signal, kill_process_group};

/// The longest time of two processes from start to result.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);

/// A program with its arguments, as a command.
pub(crate) fn command(words: &[&OsStr]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command.stderr(Stdio::null());
    // Otherwise libinfinipath, which Debian's libfabric loads, installs a signal handler.
    command.env("IPATH_NO_BACKTRACE", "1");
    command
}

/// A child in its own process group, which is killed when this value is dropped: `efa-emu run` has
/// a child too.
pub(crate) struct Guard(pub(crate) Child);

impl Guard {
    pub(crate) fn start(command: &mut Command, what: &str) -> Result<Guard, String> {
        let child = command.process_group(0).spawn();
        child
            .map(Guard)
            .map_err(|error| format!("cannot start {what}: {error}"))
    }

    /// Waits for the end, for at most `patience`.
    pub(crate) fn wait(&mut self, patience: Duration) -> Result<ExitStatus, String> {
        let start = Instant::now();
        loop {
            match self.0.try_wait().map_err(|error| error.to_string())? {
                Some(status) => return Ok(status),
                None if start.elapsed() > patience => {
                    return Err(format!("no end in {} s", patience.as_secs()));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both calls fail only if no process of the group is left.
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Waits for the end of a program, and kills it if that takes too long.
pub(crate) fn ended(command: &mut Command, patience: Duration) -> Result<ExitStatus, String> {
    Guard::start(command, "a program")?.wait(patience)
}

/// Starts a server, and a client that is started again until the server listens. Returns the
/// client's output. No process is left when this returns, at the latest after [`TIMEOUT`].
pub(crate) fn converse(
    mut server: Command,
    client: impl Fn() -> Command,
) -> Result<Vec<String>, String> {
    let start = Instant::now();
    let mut server = Guard::start(server.stdout(Stdio::null()), "the server")?;
    // The client fails at once if the server does not listen yet.
    loop {
        let mut child = Guard::start(client().stdout(Stdio::piped()), "the client")?;
        let output = child.0.stdout.take();
        let status = child.wait(TIMEOUT.saturating_sub(start.elapsed()))?;
        if status.success() {
            let lines = output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines().map_while(Result::ok));
            return Ok(lines.collect());
        }
        if let Ok(Some(server)) = server.0.try_wait() {
            return Err(format!(
                "the server ended ({server}), the client, too ({status})"
            ));
        }
        if start.elapsed() > TIMEOUT {
            return Err(format!("the client failed: {status}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `64 20k =20k 2.4m 0.01s 184.12 0.35 2.88`: bytes, sent, acknowledged, total, time, MB/s, us,
/// M/s.
pub(crate) fn parse(line: &str) -> Option<f64> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, _, time, _, latency, _] = columns[..] else {
        return None;
    };
    if !time.ends_with('s') {
        return None;
    }
    latency
        .parse()
        .ok()
        .filter(|microseconds| *microseconds > 0.0)
}

/// A port for a server that is about to be started.
pub(crate) fn free_port() -> Result<u16, String> {
    ports::free_port().map_err(|error| format!("cannot find a free TCP port: {error}"))
}

/// Compiles the program that measures the rate of messages from several peers to one.
#[allow(dead_code, reason = "not every benchmark measures that")]
pub(crate) fn peers(directory: &Path) -> Result<PathBuf, String> {
    let program = directory.join("peers");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/programs/peers.c");
    let words = [
        "gcc".as_ref(),
        "-O2".as_ref(),
        "-o".as_ref(),
        program.as_ref(),
        source.as_ref(),
        "-lfabric".as_ref(),
    ];
    match ended(&mut command(&words), TIMEOUT)? {
        status if status.success() => Ok(program),
        status => Err(format!(
            "gcc {}: {status}; it takes the Debian package libfabric-dev",
            source.display()
        )),
    }
}

/// The messages per second that the sender of [`peers`] printed.
#[allow(dead_code, reason = "not every benchmark measures that")]
pub(crate) fn parse_rate(printed: &[String]) -> Result<f64, String> {
    let rate = |line: &String| line.strip_prefix("rate ")?.parse().ok();
    let printed = printed.iter().find_map(rate);
    printed.ok_or_else(|| "the sender printed no result".to_owned())
}
