//! Stock `fi_pingpong` over the emulated device beside libfabric's other providers, in one run, for
//! the installed libfabric and for that of Debian 13; and the message rate of `ib_send_bw`.
//!
//! The figures of a shared machine are noise; their ratios in one run are not. So every round
//! measures every provider once, one after the other, and each provider's best round counts. A ratio
//! is to the shm provider of the same release.
//!
//! A measurement is the difference of a long and a short run: the providers make their buffer pools
//! in the first exchange (74 MB for libfabric 1.17's efa provider), which `fi_pingpong` counts, and the
//! system provides the pages of each of 8192 receive buffers when it is first written. The short run is
//! long enough for all of them.
//! Arguments: none, or a filter that `cargo bench` passes on (part of a row's name).

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Longest message of the efa-direct fabric, which sends nothing longer than a packet.
const LONGEST_DIRECT: usize = 8928;

/// Whose programs and libraries run.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Release {
    /// What the machine has installed.
    Installed,
    /// Unpacked by `scripts/userland`; programs start by this one.
    Unpacked(PathBuf),
}

/// What carries the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    /// The efa provider over the emulated device, with RDMA.
    Device,
    /// The efa provider over an emulated device without RDMA: everything is send and receive.
    DeviceSendOnly,
    /// The fabric efa-direct of the efa provider: no protocol above the device's.
    DeviceDirect,
    /// Another libfabric provider.
    Provider(&'static str),
}

/// One line of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    release: Release,
    carrier: Carrier,
}

/// The lines for messages of `size` bytes; those of a release begin with its shm provider.
fn rows(size: usize, releases: &[Release]) -> Vec<Row> {
    let mut rows = Vec::new();
    for release in releases {
        let is_installed = *release == Release::Installed;
        let carriers = [
            (Carrier::Provider("shm"), true),
            (Carrier::Device, true),
            (Carrier::DeviceSendOnly, size > LONGEST_DIRECT),
            (
                Carrier::DeviceDirect,
                !is_installed && size <= LONGEST_DIRECT,
            ),
            (Carrier::Provider("tcp;ofi_rxm"), is_installed),
        ];
        for (carrier, applies) in carriers {
            if applies {
                let release = release.clone();
                rows.push(Row { release, carrier });
            }
        }
    }
    rows
}

impl Row {
    fn command(&self, emulator: &Path, fabric: &str) -> Command {
        let profile = match self.carrier {
            Carrier::Provider(_) => None,
            Carrier::Device | Carrier::DeviceDirect => Some("efa2"),
            Carrier::DeviceSendOnly => Some("efa0"),
        };
        let mut words: Vec<&OsStr> = Vec::new();
        if let Some(profile) = profile {
            words.push(emulator.as_os_str());
            let options = ["run", "--fabric", fabric, "--profile", profile, "--"];
            words.extend(options.map(OsStr::new));
        }
        if let Release::Unpacked(run) = &self.release {
            words.push(run.as_os_str());
        }
        words.push(OsStr::new("fi_pingpong"));
        let provider: &[&str] = match (self.carrier, &self.release) {
            (Carrier::Provider(name), _) => &["-p", name],
            (Carrier::DeviceDirect, _) => &["-p", "efa", "-f", "efa-direct"],
            (_, Release::Installed) => &["-p", "efa"],
            // This release prefers efa-direct.
            (_, Release::Unpacked(_)) => &["-p", "efa", "-f", "efa"],
        };
        words.extend(provider.iter().map(OsStr::new));
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let release = match self.release {
            Release::Installed => "installed",
            Release::Unpacked(_) => "Debian 13",
        };
        let carrier = match self.carrier {
            Carrier::Device => "efa on efa-emu, RDMA read",
            Carrier::DeviceSendOnly => "efa on efa-emu, send only",
            Carrier::DeviceDirect => "efa-direct on efa-emu",
            Carrier::Provider(name) => name,
        };
        f.pad(&format!("{release}: {carrier}"))
    }
}

/// Ends the child if it is still there.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only when the child is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> ExitCode {
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    match run(filter.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("providers: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(filter: Option<&str>) -> Result<(), String> {
    let emulator = emulator()?;
    let fabric = format!("bench-{}", std::process::id());
    let mut releases = vec![Release::Installed];
    match unpacked() {
        Ok(run) => releases.push(Release::Unpacked(run)),
        Err(error) => println!("libfabric of Debian 13 is not measured: {error}"),
    }
    println!("stock fi_pingpong -e rdm, best of {ROUNDS} interleaved rounds; ratio to shm");
    for (size, warm_up, round_trips) in [(64, 10_000, 100_000), (1_048_576, 100, 1_000)] {
        let name = format!("pingpong/{size}");
        if filter.is_some_and(|filter| !name.contains(filter)) {
            continue;
        }
        println!("\n{name} B, {round_trips} round trips");
        println!(
            "{:<38} {:>10} {:>8} {:>10} {:>8} {:>8}",
            "provider", "us one-way", "ratio", "MB/s", "ratio", "Mmsg/s"
        );
        let rows = rows(size, &releases);
        let mut best: Vec<Result<f64, String>> = vec![Err("not measured".to_owned()); rows.len()];
        for _ in 0..ROUNDS {
            for (best, row) in best.iter_mut().zip(&rows) {
                let measured = one_way(row, &emulator, &fabric, size, (warm_up, round_trips));
                *best = match (&*best, measured) {
                    (Ok(old), Ok(new)) => Ok(old.min(new)),
                    (Ok(old), Err(_)) => Ok(*old),
                    (Err(_), measured) => measured,
                };
            }
        }
        let mut shm = f64::NAN;
        for (row, measured) in rows.iter().zip(best) {
            let microseconds = match measured {
                Ok(microseconds) => microseconds,
                Err(error) => {
                    println!("{row:<38} failed: {error}");
                    continue;
                }
            };
            if row.carrier == Carrier::Provider("shm") {
                shm = microseconds;
            }
            println!(
                "{row:<38} {microseconds:>10.2} {:>7.2}x {:>10.0} {:>7.2}x {:>8.3}",
                microseconds / shm,
                size as f64 / microseconds,
                shm / microseconds,
                1.0 / microseconds,
            );
        }
    }
    if filter.is_none_or(|filter| "ib_send_bw".contains(filter)) {
        println!("\nib_send_bw -c SRD, 64 B, one queue pair, one core for each side");
        let best = (0..ROUNDS)
            .map(|_| message_rate(&emulator, &fabric))
            .reduce(|best, next| match (best, next) {
                (Ok(best), Ok(next)) => Ok(best.max(next)),
                (Ok(best), Err(_)) | (Err(_), Ok(best)) => Ok(best),
                (error, Err(_)) => error,
            });
        match best {
            Some(Ok(rate)) => println!("{rate:.3} Mmsg/s, best of {ROUNDS}"),
            Some(Err(error)) => println!("failed: {error}"),
            None => {}
        }
    }
    Ok(())
}

/// What starts programs of Debian 13, fetched if it is not here yet.
fn unpacked() -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/userland");
    let output = Command::new(&script)
        .arg("debian13")
        .output()
        .map_err(|error| format!("{}: {error}", script.display()))?;
    let directory = String::from_utf8_lossy(&output.stdout);
    match directory.lines().last() {
        Some(directory) if output.status.success() => Ok(Path::new(directory).join("run")),
        _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Millions of messages per second that `ib_send_bw` reports for its client.
fn message_rate(emulator: &Path, fabric: &str) -> Result<f64, String> {
    let port = free_port()?.to_string();
    let side = |peer: &[&str]| {
        let mut command = Command::new(emulator);
        command
            .args(["run", "--fabric", fabric, "--", "ib_send_bw"])
            .args(["-c", "SRD", "-x", "0", "-F", "-s", "64", "-n", "400000"])
            .args(["-p", &port])
            .args(peer)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let server = side(&[]).stdout(Stdio::null()).spawn();
    let _server = Guard(server.map_err(|error| format!("cannot start the server: {error}"))?);
    let output = first_output(|| side(&["127.0.0.1"]))?;
    // `#bytes #iterations peak average MsgRate`
    output
        .iter()
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            match columns[..] {
                ["64", _, _, _, rate] => rate.parse().ok(),
                _ => None,
            }
        })
        .next_back()
        .ok_or_else(|| "the client printed no result".to_owned())
}

/// What a client prints that is tried until its server listens.
fn first_output(client: impl Fn() -> Command) -> Result<Vec<String>, String> {
    let start = Instant::now();
    // The client gives up at once if nobody listens yet.
    loop {
        let mut child = client()
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the client: {error}"))?;
        let output = child.stdout.take();
        let mut child = Guard(child);
        let status = loop {
            match child.0.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if start.elapsed() > TIMEOUT => {
                    return Err(format!("no result in {} s", TIMEOUT.as_secs()));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if status.success() {
            let lines = output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines().map_while(Result::ok));
            return Ok(lines.collect());
        }
        if start.elapsed() > TIMEOUT / 2 {
            return Err(format!("the client failed: {status}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Microseconds of half a round trip once both sides have warmed up.
fn one_way(
    row: &Row,
    emulator: &Path,
    fabric: &str,
    size: usize,
    (warm_up, round_trips): (usize, usize),
) -> Result<f64, String> {
    let total = |round_trips: usize| {
        let mean = mean_one_way(row, emulator, fabric, size, round_trips)?;
        Ok::<f64, String>(mean * round_trips as f64)
    };
    let difference = total(warm_up + round_trips)? - total(warm_up)?;
    if difference > 0.0 {
        Ok(difference / round_trips as f64)
    } else {
        Err("the short run took longer than the long one".to_owned())
    }
}

/// The `efa-emu` of the profile that the benchmark was built with.
fn emulator() -> Result<PathBuf, String> {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_efa-emu"));
    let library = path.with_file_name("libefa_emu_verbs.so");
    if library.exists() {
        Ok(path)
    } else {
        Err(format!(
            "{} does not exist; run `cargo build --workspace --release`",
            library.display()
        ))
    }
}

/// One server and one client, from start to the client's table: its microseconds per transfer.
fn mean_one_way(
    row: &Row,
    emulator: &Path,
    fabric: &str,
    size: usize,
    round_trips: usize,
) -> Result<f64, String> {
    let port = free_port()?.to_string();
    let base = |command: &mut Command| {
        command
            .args([
                "-e",
                "rdm",
                "-I",
                &round_trips.to_string(),
                "-S",
                &size.to_string(),
            ])
            .stdin(Stdio::null());
    };
    let mut server = row.command(emulator, fabric);
    base(&mut server);
    server
        .args(["-B", &port])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let server = Guard(
        server
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?,
    );

    let _server = server;
    let output = first_output(|| {
        let mut client = row.command(emulator, fabric);
        base(&mut client);
        client
            .args(["-P", &port, "127.0.0.1"])
            .stderr(Stdio::null());
        client
    })?;
    output
        .iter()
        .filter_map(|line| parse(line))
        .next_back()
        .ok_or_else(|| "the client printed no result".to_owned())
}

/// `64 20k =20k 2.4m 0.01s 184.12 0.35 2.88`: bytes, sent, acknowledged, total, time, MB/s, us, M/s.
fn parse(line: &str) -> Option<f64> {
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

fn free_port() -> Result<u16, String> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("cannot find a free TCP port: {error}"))
}
