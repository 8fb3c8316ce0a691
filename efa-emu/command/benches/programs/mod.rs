//! Starts the programs of a benchmark, and ends them in any case.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use efa_commands::ports;
use efa_commands::process_group::{ProcessGroup, ends_within};

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

/// Starts a program, which `what` names.
pub(crate) fn start(command: &mut Command, what: &str) -> Result<ProcessGroup, String> {
    ProcessGroup::start(command).map_err(|error| format!("cannot start {what}: {error}"))
}

/// Waits for the end of a program, for at most `patience`.
pub(crate) fn wait(program: &mut ProcessGroup, patience: Duration) -> Result<ExitStatus, String> {
    let status = ends_within(&mut program.leader, patience);
    // `efa-emu run` has a child too.
    program.kill();
    status.ok_or_else(|| format!("no end in {} s", patience.as_secs()))
}

/// Waits for the end of a program, and kills it if that takes too long.
pub(crate) fn ended(command: &mut Command, patience: Duration) -> Result<ExitStatus, String> {
    wait(&mut start(command, "a program")?, patience)
}

/// Starts a server, and a client that is started again until the server listens. Returns the
/// client's output. No process is left when this returns, at the latest after [`TIMEOUT`].
pub(crate) fn converse(
    mut server: Command,
    client: impl Fn() -> Command,
) -> Result<Vec<String>, String> {
    let begin = Instant::now();
    let mut server = start(server.stdout(Stdio::null()), "the server")?;
    // The client fails at once if the server does not listen yet.
    loop {
        let mut child = start(client().stdout(Stdio::piped()), "the client")?;
        let output = child.leader.stdout.take();
        let status = wait(&mut child, TIMEOUT.saturating_sub(begin.elapsed()))?;
        if status.success() {
            let lines = output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines().map_while(Result::ok));
            return Ok(lines.collect());
        }
        if let Ok(Some(server)) = server.leader.try_wait() {
            return Err(format!(
                "the server ended ({server}), the client, too ({status})"
            ));
        }
        if begin.elapsed() > TIMEOUT {
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
