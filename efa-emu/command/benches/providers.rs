//! Stock `fi_pingpong` over the emulated device, with libfabric's efa provider and with the engine
//! as its provider `efa_rs`, and with libfabric's other providers, in one run, for the installed
//! libfabric and for Debian 13's; and the message rate of `ib_send_bw`; and the rate of messages
//! from 16 endpoints to one, also with libfabric 2.5.1. Two more tables have both processes on one
//! emulated host, where libfabric's efa provider reaches its peer through libfabric's shared memory
//! unless it is told not to, and `efa_rs` never does.
//!
//! The figures of a shared machine are noisy; their ratios in one run are not. So every round
//! measures every provider once, one after the other, and each provider's best round counts. A
//! ratio is to the shm provider of the same release. Each of the two processes has its own
//! processor, and a real-time priority if the system permits one (`chrt`), so that other processes
//! do not interrupt it.
//!
//! The run time is bounded: measurements begin until a table's time is over, slow providers make
//! fewer round trips, and every process is killed when it takes too long. A provider that the
//! machine lacks is named with the reason.
//!
//! A measurement is the difference of a long and a short run: the providers make their buffer pools
//! in the first exchange (74 MB for libfabric 1.17's efa provider), which `fi_pingpong` counts, and
//! the system provides the pages of each of 8192 receive buffers when it is first written. The
//! short run is long enough for all of them. Arguments: none, or a filter that `cargo bench` passes
//! on (part of a row's name).

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use efa_testing::workspace::{emulator, userland};

use programs::{TIMEOUT, command, converse, ended, free_port, parse, parse_rate, peers};
use rounds::{Figures, Trips, rounds};

mod programs;
mod rounds;

/// No measurement begins later than this after the start of its table.
const TABLE_TIME: Duration = Duration::from_secs(100);
/// The same for the tables of one host.
const SAME_HOST_TIME: Duration = Duration::from_secs(50);

/// The name of the engine as a provider.
const ENGINE: &str = "efa_rs";
/// The number of peers of the receiver, and the messages of all of them together.
const PEERS: usize = 16;
const MESSAGES: usize = 400_000;
/// Longest message of the efa-direct fabric, which sends nothing longer than a packet.
const LONGEST_DIRECT: usize = 8928;

/// The origin of the programs and libraries.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Release {
    /// The releases installed on the machine.
    Installed,
    /// Unpacked by `scripts/userland`; this program starts others.
    Unpacked(PathBuf),
    /// libfabric 2.5.1 of MPICH's wheel, which has no programs: the directories of it and of its
    /// providers.
    Wheel([String; 2]),
}

/// The transport of the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    /// The efa provider over the emulated device, with RDMA.
    Device,
    /// The efa provider over an emulated device without RDMA: it only sends and receives.
    DeviceSendOnly,
    /// The engine, as libfabric's provider `efa_rs`, over the emulated device, with RDMA.
    Engine,
    /// The fabric efa-direct of the efa provider: no protocol above the device's.
    DeviceDirect,
    /// The efa provider between two processes of one emulated host, with libfabric's shared memory
    /// between them or without.
    SameHost { shared_memory: bool },
    /// The engine as `efa_rs` between two processes of one emulated host.
    SameHostEngine,
    /// Another libfabric provider.
    Provider(&'static str),
}

/// One row of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    release: Release,
    carrier: Carrier,
}

/// The rows for messages of `size` bytes; the rows of a release begin with its shm provider.
fn rows(size: usize, releases: &[Release]) -> Vec<Row> {
    let mut rows = Vec::new();
    for release in releases {
        let is_installed = *release == Release::Installed;
        let carriers = [
            (Carrier::Provider("shm"), true),
            (Carrier::Device, true),
            (Carrier::Engine, true),
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

/// The rows for two processes of one emulated host.
fn same_host_rows(releases: &[Release]) -> Vec<Row> {
    let carriers = [
        Carrier::Provider("shm"),
        Carrier::SameHost {
            shared_memory: true,
        },
        Carrier::SameHost {
            shared_memory: false,
        },
        Carrier::SameHostEngine,
    ];
    let of = |release: &Release| {
        carriers.map(|carrier| Row {
            release: release.clone(),
            carrier,
        })
    };
    releases.iter().flat_map(of).collect()
}

/// One of the two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConversationSide {
    Server,
    Client,
}

/// How the two processes are bound to processors.
#[derive(Clone, Debug)]
struct Placement {
    /// The words before each side's program.
    words: [Vec<&'static str>; 2],
    /// A description for the reader of the tables.
    description: &'static str,
}

impl Placement {
    /// The best placement that this machine permits.
    fn find() -> Placement {
        let works = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).arg("true");
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let status = command.stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        let choices: [(&[&'static str], &'static str); 2] = [
            (
                &["chrt", "-r", "10"],
                "a processor for each process, real-time priority",
            ),
            (
                &[],
                "a processor for each process, ordinary priority (chrt -r is not permitted)",
            ),
        ];
        for (priority, description) in choices {
            let words = ["0", "1"].map(|cpu| [&["taskset", "-c", cpu], priority].concat());
            if words.iter().all(|words| works(words)) {
                return Placement { words, description };
            }
        }
        Placement {
            words: [Vec::new(), Vec::new()],
            description: "the processors that the system chooses (taskset -c 0 and 1 do not work)",
        }
    }

    fn words(&self, side: ConversationSide) -> &[&'static str] {
        &self.words[side as usize]
    }
}

/// The common inputs of all measurements.
struct Bench {
    emulator: PathBuf,
    fabric: String,
    placement: Placement,
}

impl Row {
    fn is_engine(&self) -> bool {
        matches!(self.carrier, Carrier::Engine | Carrier::SameHostEngine)
    }

    /// The words before a program that runs with the row's libfabric, on its own host.
    fn starter<'a>(&'a self, bench: &'a Bench) -> Vec<&'a OsStr> {
        let profile = match self.carrier {
            Carrier::Provider(_) => None,
            Carrier::Device
            | Carrier::Engine
            | Carrier::DeviceDirect
            | Carrier::SameHost { .. }
            | Carrier::SameHostEngine => Some("efa2"),
            Carrier::DeviceSendOnly => Some("efa0"),
        };
        let mut words: Vec<&OsStr> = Vec::new();
        if let Carrier::SameHost { shared_memory } = self.carrier {
            let setting = match shared_memory {
                true => "FI_EFA_ENABLE_SHM_TRANSFER=1",
                false => "FI_EFA_ENABLE_SHM_TRANSFER=0",
            };
            words.extend(["env", setting].map(OsStr::new));
        }
        if let Some(profile) = profile {
            words.push(bench.emulator.as_os_str());
            let options = ["run", "--fabric", &bench.fabric, "--profile", profile];
            words.extend(options.map(OsStr::new));
            if matches!(
                self.carrier,
                Carrier::SameHost { .. } | Carrier::SameHostEngine
            ) {
                words.extend(["--host", "both"].map(OsStr::new));
            }
            if self.is_engine() {
                words.extend(["--provider", ENGINE].map(OsStr::new));
            }
            words.push(OsStr::new("--"));
        }
        match &self.release {
            Release::Installed => {}
            Release::Unpacked(run) => words.push(run.as_os_str()),
            Release::Wheel(variables) => {
                words.push(OsStr::new("env"));
                words.extend(variables.iter().map(OsStr::new));
            }
        }
        words
    }

    /// `program` with the row's libfabric and provider, on its own host.
    fn words<'a>(&'a self, bench: &'a Bench, program: &'static str) -> Vec<&'a OsStr> {
        let mut words = self.starter(bench);
        words.push(OsStr::new(program));
        let (provider, fabric) = match (self.carrier, &self.release) {
            (Carrier::Provider(name), _) => (name, None),
            _ if self.is_engine() => (ENGINE, None),
            (Carrier::DeviceDirect, _) => ("efa", Some("efa-direct")),
            (_, Release::Installed) => ("efa", None),
            // These releases prefer efa-direct.
            (_, Release::Unpacked(_) | Release::Wheel(_)) => ("efa", Some("efa")),
        };
        words.extend(["-p", provider].map(OsStr::new));
        words.extend(
            fabric
                .iter()
                .flat_map(|fabric| ["-f", fabric])
                .map(OsStr::new),
        );
        words.extend(["-e", "rdm"].map(OsStr::new));
        words
    }

    /// The reason why the provider cannot be measured on this machine, if any.
    fn missing(&self, bench: &Bench) -> Option<String> {
        // `fi_info` uses the full names of endpoint types.
        let mut words = self.words(bench, "fi_info");
        words.truncate(words.len() - 2);
        words.extend(["-t", "FI_EP_RDM"].map(OsStr::new));
        let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        match ended(command(&words).stdout(Stdio::null()), TIMEOUT) {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("`{}`: {status}", shown.join(" "))),
            Err(error) => Some(format!("`{}`: {error}", shown.join(" "))),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let release = match self.release {
            Release::Installed => "installed",
            Release::Unpacked(_) => "Debian 13",
            Release::Wheel(_) => "2.5.1",
        };
        let carrier = match self.carrier {
            Carrier::Device => "efa on efa-emu, RDMA read",
            Carrier::Engine => "efa_rs on efa-emu, RDMA read",
            Carrier::DeviceSendOnly => "efa on efa-emu, send only",
            Carrier::DeviceDirect => "efa-direct on efa-emu",
            Carrier::SameHost {
                shared_memory: true,
            } => "efa, one host, shm",
            Carrier::SameHost {
                shared_memory: false,
            } => "efa, one host, device",
            Carrier::SameHostEngine => "efa_rs, one host, device",
            Carrier::Provider(name) => name,
        };
        f.pad(&format!("{release}: {carrier}"))
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
    let bench = Bench {
        emulator: emulator(),
        fabric: format!("bench-{}", std::process::id()),
        placement: Placement::find(),
    };
    let mut releases = vec![Release::Installed];
    let debian13 = userland("debian13").map(|directory| directory.join("run"));
    releases.extend(debian13.map(Release::Unpacked));
    println!(
        "stock fi_pingpong -e rdm, best of interleaved rounds; ratio to shm; {}",
        bench.placement.description
    );
    for (size, trips) in [
        (
            64,
            Trips {
                warm_up: 12_000,
                most: 100_000,
            },
        ),
        (
            1_048_576,
            Trips {
                warm_up: 100,
                most: 1_000,
            },
        ),
    ] {
        let name = format!("pingpong/{size}");
        if filter.is_none_or(|filter| name.contains(filter)) {
            println!(
                "\n{name} B, {} round trips after {}",
                trips.most, trips.warm_up
            );
            let heading = format!("{size} B");
            table(
                &bench,
                &heading,
                size,
                trips,
                rows(size, &releases),
                TABLE_TIME,
            );
        }
        let name = format!("one-host/{size}");
        if filter.is_none_or(|filter| name.contains(filter)) {
            println!("\n{name} B, both processes on one emulated host");
            let heading = format!("one host, {size} B");
            let rows = same_host_rows(&releases);
            table(&bench, &heading, size, trips, rows, SAME_HOST_TIME);
        }
    }
    if filter.is_none_or(|filter| "peers".contains(filter)) {
        let wheel = userland("pypi-mpich").map(|directory| {
            let library = directory.join("venv/lib/mpich");
            let providers = library.join("libfabric");
            Release::Wheel([
                format!("LD_LIBRARY_PATH={}", library.display()),
                format!("FI_PROVIDER_PATH={}", providers.display()),
            ])
        });
        releases.extend(wheel);
        rates(&bench, &releases)?;
    }
    if filter.is_none_or(|filter| "ib_send_bw".contains(filter)) {
        println!("\nib_send_bw -c SRD, 64 B, one queue pair, one core for each side");
        let mut rates = Figures::new();
        rounds("ib_send_bw", TABLE_TIME, |_| {
            rates.add(message_rate(&bench));
            rates.is_hopeful()
        });
        match rates.most() {
            Some(rate) => println!("{rate:.3} Mmsg/s, best of {}", rates.count()),
            None => println!("not measured: {}", rates.reason),
        }
    }
    Ok(())
}

/// Measures all providers at one size and prints a line for each.
fn table(bench: &Bench, heading: &str, size: usize, trips: Trips, rows: Vec<Row>, time: Duration) {
    let mut figures: Vec<Figures> = rows
        .iter()
        .map(|row| match row.missing(bench) {
            None => Figures::new(),
            Some(reason) => Figures::missing(reason),
        })
        .collect();
    rounds(heading, time, |is_over| {
        for (figures, row) in figures.iter_mut().zip(&rows) {
            if figures.is_hopeful() && !is_over() {
                let mean = |round_trips| mean_one_way(row, bench, size, round_trips);
                figures.add(trips.one_way(mean));
            }
        }
        figures.iter().any(Figures::is_hopeful)
    });
    println!(
        "{:<38} {:>10} {:>8} {:>10} {:>8} {:>8} {:>6}",
        "provider", "us one-way", "ratio", "MB/s", "ratio", "Mmsg/s", "rounds"
    );
    let mut shm = None;
    for (row, figures) in rows.iter().zip(figures) {
        if row.carrier == Carrier::Provider("shm") {
            shm = figures.least();
        }
        let Some(microseconds) = figures.least() else {
            println!("{row:<38} not measured: {}", figures.reason);
            continue;
        };
        let ratio =
            |of: &dyn Fn(f64) -> f64| shm.map_or("-".into(), |shm| format!("{:.2}x", of(shm)));
        println!(
            "{row:<38} {microseconds:>10.2} {:>8} {:>10.0} {:>8} {:>8.3} {:>6}",
            ratio(&|shm| microseconds / shm),
            size as f64 / microseconds,
            ratio(&|shm| shm / microseconds),
            1.0 / microseconds,
            figures.count(),
        );
    }
}

/// Measures the rate of messages from several endpoints of one process to one endpoint of another,
/// and prints a row for each provider.
fn rates(bench: &Bench, releases: &[Release]) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let program = peers(directory.path())?;
    let mut rows: Vec<Row> = releases
        .iter()
        .map(|release| Row {
            release: release.clone(),
            carrier: Carrier::Device,
        })
        .collect();
    rows.push(Row {
        release: Release::Installed,
        carrier: Carrier::Engine,
    });
    println!(
        "\npeers: tagged messages of 64 B, {PEERS} endpoints of one process to one of another"
    );
    let mut figures: Vec<Figures> = rows.iter().map(|_| Figures::new()).collect();
    rounds("peers", SAME_HOST_TIME, |is_over| {
        for (figures, row) in figures.iter_mut().zip(&rows) {
            if figures.is_hopeful() && !is_over() {
                figures.add(rate(row, bench, &program));
            }
        }
        figures.iter().any(Figures::is_hopeful)
    });
    println!("{:<38} {:>10} {:>6}", "provider", "Mmsg/s", "rounds");
    for (row, figures) in rows.iter().zip(figures) {
        match figures.most() {
            Some(rate) => println!("{row:<38} {:>10.3} {:>6}", rate / 1e6, figures.count()),
            None => println!("{row:<38} not measured: {}", figures.reason),
        }
    }
    Ok(())
}

/// The messages per second that the receiver of the program [`peers`] reports.
fn rate(row: &Row, bench: &Bench, program: &Path) -> Result<f64, String> {
    let port = free_port()?.to_string();
    let provider = if row.is_engine() { ENGINE } else { "efa" };
    let (peers, messages) = (PEERS.to_string(), MESSAGES.to_string());
    let side = |side, peer: &[&str]| {
        let mut words: Vec<&OsStr> = bench.placement.words(side).iter().map(OsStr::new).collect();
        words.extend(row.starter(bench));
        words.push(program.as_os_str());
        let options = [provider, &peers, "64", &messages, &port];
        words.extend(options.iter().chain(peer).map(OsStr::new));
        command(&words)
    };
    let client = || side(ConversationSide::Client, &["127.0.0.1"]);
    parse_rate(&converse(side(ConversationSide::Server, &[]), client)?)
}

/// Millions of messages per second that `ib_send_bw` reports for its client.
fn message_rate(bench: &Bench) -> Result<f64, String> {
    let port = free_port()?.to_string();
    let emulator = bench.emulator.as_os_str();
    let program = ["run", "--fabric", &bench.fabric, "--", "ib_send_bw"];
    let options = [
        "-c", "SRD", "-x", "0", "-F", "-s", "64", "-n", "400000", "-p", &port,
    ];
    let side = |side, peer: &[&str]| {
        let mut words: Vec<&OsStr> = bench.placement.words(side).iter().map(OsStr::new).collect();
        words.push(emulator);
        words.extend(program.iter().chain(&options).chain(peer).map(OsStr::new));
        command(&words)
    };
    let output = converse(side(ConversationSide::Server, &[]), || {
        side(ConversationSide::Client, &["127.0.0.1"])
    })?;
    // `#bytes #iterations peak average MsgRate`
    let rate = |line: &String| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        match columns[..] {
            ["64", _, _, _, rate] => rate.parse().ok(),
            _ => None,
        }
    };
    let printed = output.iter().filter_map(rate).next_back();
    printed.ok_or_else(|| "the client printed no result".to_owned())
}

/// Runs one server and one client. Returns the client's microseconds per transfer.
fn mean_one_way(row: &Row, bench: &Bench, size: usize, round_trips: usize) -> Result<f64, String> {
    let (port, size) = (free_port()?.to_string(), size.to_string());
    let round_trips = round_trips.to_string();
    let side = |side, peer: &[&str]| {
        let mut words: Vec<&OsStr> = bench.placement.words(side).iter().map(OsStr::new).collect();
        words.extend(row.words(bench, "fi_pingpong"));
        words.extend(["-I", &round_trips, "-S", &size].map(OsStr::new));
        words.extend(peer.iter().map(OsStr::new));
        command(&words)
    };
    let client = || side(ConversationSide::Client, &["-P", &port, "127.0.0.1"]);
    let output = converse(side(ConversationSide::Server, &["-B", &port]), client)?;
    let printed = output.iter().filter_map(|line| parse(line)).next_back();
    printed.ok_or_else(|| "the client printed no result".to_owned())
}
