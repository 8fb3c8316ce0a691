//! Stock `fi_pingpong` over the emulated device beside libfabric's other providers, in one run.
//!
//! The figures of a shared machine are noise; their ratios in one run are not. So every round
//! measures every provider once, one after the other, and each provider's best round counts.
//!
//! A measurement is the difference of a long and a short run: the providers make their buffer pools
//! in the first exchange (74 MB for libfabric 1.17's efa provider), which `fi_pingpong` counts.
//! Arguments: none, or a filter that `cargo bench` passes on (part of a row's name).

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(20);

/// What carries the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    /// The efa provider over the emulated device, with RDMA.
    Device,
    /// The efa provider over an emulated device without RDMA: everything is send and receive.
    DeviceSendOnly,
    /// Another libfabric provider.
    Provider(&'static str),
}

impl Carrier {
    const ALL: [Carrier; 5] = [
        Carrier::Provider("shm"),
        Carrier::Device,
        Carrier::DeviceSendOnly,
        Carrier::Provider("tcp;ofi_rxm"),
        Carrier::Provider("udp;ofi_rxd"),
    ];

    fn command(self, emulator: &Path, fabric: &str) -> Command {
        let profile = match self {
            Carrier::Provider(name) => {
                let mut command = Command::new("fi_pingpong");
                command.args(["-p", name]);
                return command;
            }
            Carrier::Device => "efa2",
            Carrier::DeviceSendOnly => "efa0",
        };
        let mut command = Command::new(emulator);
        command.args(["run", "--fabric", fabric, "--profile", profile, "--"]);
        command.args(["fi_pingpong", "-p", "efa"]);
        command
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Carrier::Device => "efa on efa-emu, RDMA read",
            Carrier::DeviceSendOnly => "efa on efa-emu, send/receive only",
            Carrier::Provider(name) => name,
        })
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
    println!("stock fi_pingpong -e rdm, best of {ROUNDS} interleaved rounds; ratio to shm");
    for (size, round_trips) in [
        (64, 100_000),
        (8192, 20_000),
        (65_536, 5_000),
        (1_048_576, 1_000),
    ] {
        let name = format!("pingpong/{size}");
        if filter.is_some_and(|filter| !name.contains(filter)) {
            continue;
        }
        println!("\n{name} B, {round_trips} round trips");
        println!(
            "{:<36} {:>10} {:>8} {:>12} {:>8} {:>10}",
            "provider", "us one-way", "ratio", "MB/s", "ratio", "Mmsg/s"
        );
        let mut best: Vec<Result<f64, String>> =
            vec![Err("not measured".to_owned()); Carrier::ALL.len()];
        for _ in 0..ROUNDS {
            for (best, carrier) in best.iter_mut().zip(Carrier::ALL) {
                let measured = one_way(carrier, &emulator, &fabric, size, round_trips);
                *best = match (&*best, measured) {
                    (Ok(old), Ok(new)) => Ok(old.min(new)),
                    (Ok(old), Err(_)) => Ok(*old),
                    (Err(_), measured) => measured,
                };
            }
        }
        let shm = best[0]
            .clone()
            .map_err(|error| format!("the shm provider failed: {error}"))?;
        for (carrier, measured) in Carrier::ALL.iter().zip(best) {
            match measured {
                Ok(microseconds) => println!(
                    "{:<36} {:>10.2} {:>7.2}x {:>12.0} {:>7.2}x {:>10.3}",
                    carrier.to_string(),
                    microseconds,
                    microseconds / shm,
                    size as f64 / microseconds,
                    shm / microseconds,
                    1.0 / microseconds,
                ),
                Err(error) => println!("{:<36} failed: {error}", carrier.to_string()),
            }
        }
    }
    Ok(())
}

/// Microseconds of half a round trip once both sides have warmed up.
fn one_way(
    carrier: Carrier,
    emulator: &Path,
    fabric: &str,
    size: usize,
    round_trips: usize,
) -> Result<f64, String> {
    let warm_up = round_trips / 100;
    let total = |round_trips: usize| {
        let mean = mean_one_way(carrier, emulator, fabric, size, round_trips)?;
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
    carrier: Carrier,
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
    let mut server = carrier.command(emulator, fabric);
    base(&mut server);
    server
        .args(["-B", &port])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let start = Instant::now();
    let server = Guard(
        server
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?,
    );

    // The client gives up at once if nobody listens yet, so it is tried until the server does.
    loop {
        let mut client = carrier.command(emulator, fabric);
        base(&mut client);
        client
            .args(["-P", &port, "127.0.0.1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut client = client
            .spawn()
            .map_err(|error| format!("cannot start the client: {error}"))?;
        let output = client.stdout.take();
        let mut client = Guard(client);
        while client
            .0
            .try_wait()
            .map_err(|error| error.to_string())?
            .is_none()
        {
            if start.elapsed() > TIMEOUT {
                return Err(format!("no result in {} s", TIMEOUT.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let measured = output
            .into_iter()
            .flat_map(|output| BufReader::new(output).lines().map_while(Result::ok))
            .filter_map(|line| parse(&line))
            .last();
        if let Some(microseconds) = measured {
            drop(server);
            return Ok(microseconds);
        }
        if start.elapsed() > TIMEOUT / 2 {
            return Err("the client printed no result".to_owned());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
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
