//! One measurement in a separate process.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use efa_play::libfabric::Provider;

use crate::ends::{CoreEnds, Ends, StockEnds};

/// The first argument of a process that measures.
pub(crate) const CHILD: &str = "child";

/// Messages before the measurement. Runs of different lengths have the same number, so that they
/// cancel in the difference.
const WARM_UP: usize = 1000;

/// A measured implementation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Implementation {
    pub(crate) name: String,
    /// The argument of the child process: `core`, or the path of a libfabric.
    pub(crate) argument: String,
    /// The provider of a libfabric.
    pub(crate) provider: &'static str,
    /// The directory of a libfabric's own providers, if they are separate files.
    pub(crate) providers: Option<PathBuf>,
    /// The program that starts others with the libfabric, if it needs its own C library.
    pub(crate) runner: Option<PathBuf>,
}

impl Implementation {
    pub(crate) const ENGINE: &str = "core";

    pub(crate) fn is_engine(&self) -> bool {
        self.argument == Self::ENGINE
    }
}

/// The messages of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Workload {
    /// Bytes of a message.
    pub(crate) length: usize,
    /// The most messages in flight.
    pub(crate) window: usize,
    pub(crate) messages: usize,
}

impl Workload {
    pub(crate) const fn new(length: usize, window: usize, messages: usize) -> Self {
        Workload {
            length,
            window,
            messages,
        }
    }

    /// The arguments of a child process.
    pub(crate) fn arguments(self) -> [String; 3] {
        [self.length, self.window, self.messages].map(|number| number.to_string())
    }
}

/// Nanoseconds per message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sample {
    pub(crate) wall: f64,
    /// The time of the process with all its threads, in user and kernel mode.
    pub(crate) processor: f64,
}

impl Sample {
    pub(crate) fn min(self, other: Sample) -> Sample {
        Sample {
            wall: self.wall.min(other.wall),
            processor: self.processor.min(other.processor),
        }
    }

    pub(crate) fn describe(self, workload: Workload) -> String {
        if workload.length <= 1024 {
            format!("{:.2} M/s ({:.0} ns)", 1e3 / self.wall, self.processor)
        } else {
            let microseconds = self.processor / 1e3;
            let rate = workload.length as f64 * 1e3 / self.wall;
            format!("{rate:.0} MB/s ({microseconds:.1} us)")
        }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {} {}", self.wall, self.processor)
    }
}

/// A command that measures, on an emulated host; `prefix` is a program that runs it.
pub(crate) fn command(
    emulator: &Path,
    contender: &Implementation,
    workload: Workload,
    prefix: &[String],
) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let fabric = format!("bench-engine-{}", std::process::id());
    let mut command = Command::new(emulator);
    command.args(["run", "--fabric", &fabric]);
    if contender.provider == Provider::ENGINE {
        command.args(["--provider", contender.provider]);
    }
    command
        .arg("--")
        .args(prefix)
        .args(&contender.runner)
        .arg(own)
        .args([CHILD, &contender.argument, contender.provider])
        .args(workload.arguments())
        .env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
    if let Some(providers) = &contender.providers {
        command.env("FI_PROVIDER_PATH", providers);
    }
    Ok(command)
}

/// Measures in a separate process.
pub(crate) fn run(
    emulator: &Path,
    contender: &Implementation,
    workload: Workload,
) -> Result<Sample, String> {
    let output = command(emulator, contender, workload, &[])?
        .output()
        .map_err(|error| format!("cannot start {}: {error}", emulator.display()))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let numbers = printed
        .lines()
        .find_map(|line| line.strip_prefix("sample "))
        .and_then(|line| {
            let mut numbers = line.split_whitespace().map(str::parse::<f64>);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        });
    match numbers {
        Some((wall, processor)) => Ok(Sample { wall, processor }),
        None => Err(format!(
            "{} printed no sample: {}",
            contender.name,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// The main function of the child process.
pub(crate) fn child(arguments: &[String]) -> Result<Sample, String> {
    let [contender, provider, numbers @ ..] = arguments else {
        return Err("no contender and provider were named".into());
    };
    let numbers: Vec<usize> = numbers
        .iter()
        .map(|number| number.parse().map_err(|error| format!("{number}: {error}")))
        .collect::<Result<_, _>>()?;
    let [length, window, messages] = numbers[..] else {
        return Err("length, window and messages are needed".into());
    };
    let workload = Workload::new(length, window, messages);
    match contender.as_str() {
        Implementation::ENGINE => sample(&mut CoreEnds::open(workload)?, workload),
        library => sample(
            &mut StockEnds::open(Path::new(library), provider, workload)?,
            workload,
        ),
    }
}

fn sample(ends: &mut impl Ends, workload: Workload) -> Result<Sample, String> {
    exchange(ends, workload.window, WARM_UP.min(workload.messages))?;
    let (processor, wall) = (processor_time(), Instant::now());
    exchange(ends, workload.window, workload.messages)?;
    let (wall, processor) = (wall.elapsed(), processor_time() - processor);
    let messages = workload.messages as f64;
    Ok(Sample {
        wall: wall.as_secs_f64() * 1e9 / messages,
        processor: processor / messages,
    })
}

/// Sends messages, with at most a window of them in flight.
fn exchange(ends: &mut impl Ends, window: usize, messages: usize) -> Result<(), String> {
    let (mut posted, mut sent, mut completed, mut received) = (0, 0, 0, 0);
    while completed < messages || received < messages {
        while posted < messages && posted - received < window && ends.recv(posted)? {
            posted += 1;
        }
        while sent < posted && sent - completed < window && ends.send(sent)? {
            sent += 1;
        }
        completed += ends.poll_sender()?;
        received += ends.poll_receiver()?;
    }
    Ok(())
}

/// Nanoseconds of processor time of this process so far.
fn processor_time() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one `timespec`. It cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
