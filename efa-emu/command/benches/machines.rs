//! Stock libfabric between two machines over emulated devices whose fabrics bridges join, encrypted
//! and not, compared with its provider `tcp;ofi_rxm` over the same link: the time of a message of
//! 64 bytes, also with each machine on a processor of its own, the rate of messages from 16 peers
//! to one, and the bandwidth with messages of 1 MiB.
//!
//! The machines are namespaces of this one. All two processes and four threads of the bridges run
//! on the processors of one machine, so this measures the cost of the bridges, not of a network.
//!
//! Rounds are interleaved; the median counts, and the best round is printed beside it. Ratios are
//! to `tcp;ofi_rxm`. Arguments: none, or a filter that `cargo bench` passes on (part of a table's
//! name).

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use network::{ADDRESSES, Binding, Bridges, INTERFACE, Machines};
use programs::{converse, free_port, parse, parse_rate, peers};
use rounds::{Figures, Trips, rounds};

mod hosts;
mod network;
mod programs;
mod rounds;

/// No measurement begins later than this after the start of its table.
const TABLE_TIME: Duration = Duration::from_secs(60);

/// The number of peers of the receiver, and the messages of all of them together.
const PEERS: usize = 16;
const MESSAGES: usize = 200_000;

/// The transport of the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    Tcp,
    Bridges { is_plain: bool },
}

const CARRIERS: [Carrier; 3] = [
    Carrier::Tcp,
    Carrier::Bridges { is_plain: true },
    Carrier::Bridges { is_plain: false },
];

impl Carrier {
    fn name(self) -> &'static str {
        match self {
            Carrier::Tcp => "tcp;ofi_rxm",
            Carrier::Bridges { is_plain: true } => "efa on efa-emu, bridges, plain",
            Carrier::Bridges { is_plain: false } => "efa on efa-emu, bridges, encrypted",
        }
    }

    fn provider(self) -> &'static str {
        match self {
            Carrier::Tcp => "tcp;ofi_rxm",
            Carrier::Bridges { .. } => "efa",
        }
    }
}

/// The quantity that a table compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measure {
    /// Microseconds one way, for 64 bytes.
    Latency,
    /// The same with the programs and the bridge of each machine on their own processor, so that
    /// the scheduler has no influence on who waits for whom.
    BoundLatency,
    /// Messages per second from [`PEERS`] to one.
    Rate,
    /// MB/s of messages of 1 MiB in both directions.
    Bandwidth,
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Measure::Latency => "latency",
            Measure::BoundLatency => "bound-latency",
            Measure::Rate => "rate",
            Measure::Bandwidth => "bandwidth",
        }
    }

    fn heading(self) -> String {
        match self {
            Measure::Latency => "fi_pingpong -e rdm, 64 bytes: us one way".to_owned(),
            Measure::BoundLatency => {
                "the same, each machine's program and bridge on one processor: us one way"
                    .to_owned()
            }
            Measure::Rate => format!("64 bytes from {PEERS} peers to one: messages/s"),
            Measure::Bandwidth => "fi_pingpong -e rdm, 1 MiB: MB/s".to_owned(),
        }
    }

    fn is_better_if_less(self) -> bool {
        matches!(self, Measure::Latency | Measure::BoundLatency)
    }

    /// The processors on which each machine runs.
    fn binding(self) -> Result<Binding, String> {
        match self {
            Measure::BoundLatency => Binding::to_own_processors(),
            Measure::Latency | Measure::Rate | Measure::Bandwidth => Ok(Binding::Anywhere),
        }
    }

    /// The goal for the bridges' ratio to `tcp;ofi_rxm`.
    fn goal(self, is_plain: bool) -> f64 {
        match self {
            Measure::Latency | Measure::BoundLatency => 2.0,
            Measure::Rate => 1.0,
            Measure::Bandwidth if is_plain => 0.6,
            Measure::Bandwidth => 0.3,
        }
    }

    fn best(self, figures: &Figures) -> Option<f64> {
        match self.is_better_if_less() {
            true => figures.least(),
            false => figures.most(),
        }
    }
}

fn main() -> ExitCode {
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    if let Some(arguments) = hosts::Arguments::of_this_process() {
        return hosts::enter(&arguments);
    }
    match run(filter.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("machines: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(filter: Option<&str>) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let machines = match Machines::make(directory.path()) {
        Ok(machines) => machines,
        Err(reason) => {
            println!("not measured: {reason}");
            return Ok(());
        }
    };
    let is_wanted = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    let mut measures = vec![
        Measure::Latency,
        Measure::BoundLatency,
        Measure::Rate,
        Measure::Bandwidth,
    ];
    measures.retain(|measure| is_wanted(measure.name()));
    if !measures.is_empty() {
        println!("median and best of interleaved rounds; ratio of the medians to tcp;ofi_rxm");
        let peers = peers(directory.path())?;
        for measure in measures {
            match measure.binding() {
                Ok(binding) => {
                    Bench::new(&machines, &peers, measure.name(), binding)?.table(measure)
                }
                Err(reason) => println!("\n{}: not measured: {reason}", measure.name()),
            }
        }
    }
    if is_wanted(hosts::NAME) {
        hosts::table(&machines)?;
    }
    Ok(())
}

struct Bench<'a> {
    machines: &'a Machines,
    plain: Bridges,
    encrypted: Bridges,
    binding: Binding,
    /// The program that measures rates.
    peers: &'a Path,
}

impl<'a> Bench<'a> {
    /// Joins the machines by bridges for the carrier of this name.
    fn new(
        machines: &'a Machines,
        peers: &'a Path,
        name: &str,
        binding: Binding,
    ) -> Result<Self, String> {
        let join = |kind, port, options: &[&str]| {
            machines.join(&format!("{name}-{kind}"), port, options, binding)
        };
        Ok(Bench {
            machines,
            plain: join("plain", 61346, &["--plain"])?,
            encrypted: join("encrypted", 61345, &[])?,
            binding,
            peers,
        })
    }

    fn table(&self, measure: Measure) {
        println!("\n{}: {}", measure.name(), measure.heading());
        let mut rows = CARRIERS.map(|carrier| {
            let figures = self.missing(carrier).map(Figures::missing);
            (carrier, figures.unwrap_or_else(Figures::new))
        });
        rounds(measure.name(), TABLE_TIME, |is_over| {
            for (carrier, figures) in &mut rows {
                if figures.is_hopeful() && !is_over() {
                    figures.add(self.measure(measure, *carrier));
                }
            }
            rows.iter().any(|(_, figures)| figures.is_hopeful())
        });
        println!(
            "{:<36} {:>10} {:>10} {:>8} {:>18} {:>6}",
            "", "median", "best", "ratio", "goal", "rounds"
        );
        let mut tcp = None;
        for (carrier, figures) in &rows {
            let name = carrier.name();
            let sorted = figures.sorted();
            let (Some(best), Some(median)) = (measure.best(figures), sorted.get(sorted.len() / 2))
            else {
                println!("{name:<36} not measured: {}", figures.reason);
                continue;
            };
            let (ratio, goal) = match *carrier {
                Carrier::Tcp => {
                    tcp = Some(*median);
                    Default::default()
                }
                Carrier::Bridges { is_plain } => {
                    let goal = measure.goal(is_plain);
                    tcp.map(|tcp| assess(measure, median / tcp, goal))
                        .unwrap_or_default()
                }
            };
            println!(
                "{name:<36} {median:>10.1} {best:>10.1} {ratio:>8} {goal:>18} {:>6}",
                figures.count()
            );
        }
    }

    fn measure(&self, measure: Measure, carrier: Carrier) -> Result<f64, String> {
        match measure {
            Measure::Latency | Measure::BoundLatency => {
                let trips = Trips {
                    warm_up: 10_000,
                    most: 100_000,
                };
                self.one_way(carrier, 64, trips)
            }
            Measure::Rate => self.rate(carrier),
            Measure::Bandwidth => {
                let trips = Trips {
                    warm_up: 100,
                    most: 2_000,
                };
                const SIZE: usize = 1 << 20;
                let microseconds = self.one_way(carrier, SIZE, trips)?;
                Ok(SIZE as f64 / microseconds)
            }
        }
    }

    /// The start of a command; the program's arguments follow.
    fn program(&self, machine: usize, carrier: Carrier, program: &Path) -> Command {
        let mut command = match carrier {
            Carrier::Tcp => {
                let mut command = self.machines.bound(machine, self.binding, "env".as_ref());
                command.arg(format!("FI_TCP_IFACE={INTERFACE}"));
                command
            }
            Carrier::Bridges { is_plain } => {
                let bridges = if is_plain {
                    &self.plain
                } else {
                    &self.encrypted
                };
                self.machines
                    .on_host(machine, self.binding, &bridges.fabric)
            }
        };
        command.arg(program);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        // Otherwise libinfinipath, which Debian's libfabric loads, installs a signal handler.
        command.env("IPATH_NO_BACKTRACE", "1");
        command
    }

    /// The reason why the carrier cannot be measured on this machine, if any.
    fn missing(&self, carrier: Carrier) -> Option<String> {
        let mut command = self.program(0, carrier, "fi_info".as_ref());
        command.args(["-p", carrier.provider(), "-t", "FI_EP_RDM"]);
        match command.stderr(Stdio::piped()).output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Microseconds of a message one way.
    fn one_way(&self, carrier: Carrier, size: usize, trips: Trips) -> Result<f64, String> {
        trips.one_way(|round_trips| {
            let port = free_port()?.to_string();
            let side = |machine, peer: &[&str]| {
                let mut command = self.program(machine, carrier, "fi_pingpong".as_ref());
                command.args(["-p", carrier.provider(), "-e", "rdm"]);
                command.args(["-I", &round_trips.to_string(), "-S", &size.to_string()]);
                command.args(peer);
                command
            };
            let output = converse(side(0, &["-B", &port]), || {
                side(1, &["-P", &port, ADDRESSES[0]])
            })?;
            let printed = output.iter().filter_map(|line| parse(line)).next_back();
            printed.ok_or_else(|| "the client printed no result".to_owned())
        })
    }

    /// Messages per second.
    fn rate(&self, carrier: Carrier) -> Result<f64, String> {
        let port = free_port()?.to_string();
        let side = |machine, peer: &[&str]| {
            let mut command = self.program(machine, carrier, self.peers);
            command.args([carrier.provider(), &PEERS.to_string(), "64"]);
            command.args([&MESSAGES.to_string(), &port]).args(peer);
            command
        };
        let output = converse(side(0, &[]), || side(1, &[ADDRESSES[0]]))?;
        parse_rate(&output)
    }
}

/// A ratio and its goal.
fn assess(measure: Measure, ratio: f64, goal: f64) -> (String, String) {
    let (is_met, sign) = match measure.is_better_if_less() {
        true => (ratio <= goal, "<="),
        false => (ratio >= goal, ">="),
    };
    let verdict = if is_met { "met" } else { "missed" };
    (
        format!("{ratio:.2}x"),
        format!("{sign} {goal:.1}x {verdict}"),
    )
}
