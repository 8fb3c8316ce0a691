//! Ping-pongs between clients that access their queues themselves, as libfabric's data path direct
//! does, compared with the same client with calls: two programs, and eight.
//!
//! Rounds are interleaved, and each figure is the median of the rounds. The programs wait by
//! polling, and are not bound to processors: the device must work well then, too. Arguments: none,
//! or the arguments of `cargo bench`.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitCode, Stdio};

use efa_commands::process_group::ProcessGroup;
use efa_testing::workspace::emulator;

use programs::{TIMEOUT, command, ended, start, wait};

#[expect(dead_code, reason = "not every benchmark needs all of it")]
mod programs;

/// Seconds of each measurement.
const SECONDS: &str = "2";
const ROUNDS: usize = 5;
/// The number of pairs of programs, and the highest permitted ratio of the queues to calls.
const PAIRS: [(usize, f64); 2] = [(1, 1.5), (4, 3.0)];
const WAYS: [&str; 2] = ["calls", "queues"];

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("direct: {message}");
            ExitCode::from(2)
        }
    }
}

fn measure() -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let program = client(directory.path())?;
    println!("64 bytes, us one way; the ratio is that of the medians");
    println!("programs  way        mean   median     99 %   ratio    goal");
    for (pairs, goal) in PAIRS {
        let mut rounds = WAYS.map(|_| Vec::new());
        for round in 0..ROUNDS {
            for (way, figures) in WAYS.iter().zip(&mut rounds) {
                let fabric = format!("bench-direct-{}-{pairs}-{round}-{way}", std::process::id());
                figures.extend(exchange(&program, &fabric, way, pairs)?);
            }
        }
        let [calls, queues] = rounds.map(|figures| Figures::medians(&figures));
        println!("{:>8}  calls  {calls}", 2 * pairs);
        let ratio = queues.median / calls.median;
        println!("{:>8}  queues {queues} {ratio:>7.2} {goal:>7.2}", 2 * pairs);
    }
    Ok(())
}

/// Microseconds one way.
#[derive(Clone, Copy, Debug)]
struct Figures {
    mean: f64,
    median: f64,
    late: f64,
}

impl Figures {
    /// Parses the output of the first program of a pair: `9 messages, directly, us: mean 3.14
    /// median 3.01 99 % 4.20`.
    fn parse(line: &str) -> Option<Figures> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let behind = |name: &str, by: usize| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + by)?.parse().ok()
        };
        Some(Figures {
            mean: behind("mean", 1)?,
            median: behind("median", 1)?,
            late: behind("99", 2)?,
        })
    }

    fn medians(all: &[Figures]) -> Figures {
        let of = |figure: fn(&Figures) -> f64| {
            let mut figures: Vec<f64> = all.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        Figures {
            mean: of(|figures| figures.mean),
            median: of(|figures| figures.median),
            late: of(|figures| figures.late),
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figures { mean, median, late } = self;
        write!(f, "{mean:>8.2} {median:>8.2} {late:>8.2}")
    }
}

/// Compiles the client.
fn client(directory: &Path) -> Result<PathBuf, String> {
    let program = directory.join("direct");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../efa-hw/tap/tests/tap/direct.c");
    let mut words = ["gcc", "-O2", "-o"].map(OsStr::new).to_vec();
    words.extend([program.as_os_str(), source.as_os_str()]);
    words.extend(["-lefa", "-libverbs"].map(OsStr::new));
    match ended(&mut command(&words), TIMEOUT)? {
        status if status.success() => Ok(program),
        status => Err(format!(
            "gcc {}: {status}; it takes the Debian package libibverbs-dev",
            source.display()
        )),
    }
}

/// One of the two programs.
struct BenchedProgram {
    program: ProcessGroup,
    output: BufReader<ChildStdout>,
}

impl BenchedProgram {
    fn start(
        program: &Path,
        fabric: &str,
        host: &str,
        words: &[&str],
    ) -> Result<BenchedProgram, String> {
        let mut command = Command::new(emulator());
        command.args(["run", "--fabric", fabric, "--host", host, "--"]);
        command.arg(program).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = start(&mut command, "the client")?;
        let output = program.leader.stdout.take().ok_or("no standard output")?;
        let output = BufReader::new(output);
        Ok(BenchedProgram { program, output })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        match read.map_err(|error| error.to_string())? {
            0 => Err("the client printed nothing".to_owned()),
            _ => Ok(line),
        }
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let input = self
            .program
            .leader
            .stdin
            .as_mut()
            .ok_or("no standard input")?;
        let written = input.write_all(line.as_bytes());
        written.map_err(|error| error.to_string())
    }
}

/// Runs pairs of programs at the same time. Returns the output of the first of each.
fn exchange(program: &Path, fabric: &str, way: &str, pairs: usize) -> Result<Vec<Figures>, String> {
    let mut all = Vec::new();
    for pair in 0..pairs {
        let start = |side: &str| {
            let host = format!("{side}{pair}");
            BenchedProgram::start(program, fabric, &host, &[SECONDS, way, side])
        };
        all.push([start("first")?, start("second")?]);
    }
    let addresses = all.iter_mut().map(|[first, second]| {
        let addresses = [first.line()?, second.line()?];
        Ok::<_, String>(addresses)
    });
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    for ([first, second], [of_first, of_second]) in all.iter_mut().zip(&addresses) {
        second.tell(of_first)?;
        first.tell(of_second)?;
    }
    let figures = all.iter_mut().map(|[first, second]| {
        for side in [&mut *first, second] {
            let status = wait(&mut side.program, TIMEOUT)?;
            if !status.success() {
                return Err(format!("the client failed: {status}"));
            }
        }
        let line = first.line()?;
        Figures::parse(&line).ok_or_else(|| format!("the client printed: {line}"))
    });
    figures.collect()
}
