//! Applications that sleep in `fi_cq_sread`: whether they sleep, and which events wake them.
//!
//! The kernel's accounting of the thread shows this: a sleeping thread is not scheduled, and a
//! polling thread does not yield its processor. Neither depends on the load of the machine.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::GROUP;
use super::release::{Release, V1_11, V1_17, V2_1, V2_5, V2_5_OPENMPI};
use crate::harness::{Bench, Cell, CellResult, NotMeasured, Running, failed, installed};

const LIMIT: Duration = Duration::from_secs(120);

/// The program, from the project's directory.
const SOURCE: &str = "conformance/interop/libfabric/sleeper.c";
const HEADER: &str = "/usr/include/rdma/fabric.h";

const MESSAGES: usize = 3;

/// The reason for emulated hosts.
const THREADS: &str = "the kernel's accounting of the sleeping thread is read, on this machine";

/// The program's exit status and output if the queue cannot have a wait object.
const REFUSED: i32 = 3;
const NOT_IMPLEMENTED: &str = "refused: Function not implemented (-38)";

/// The time for which a thread's accounting must be constant for it to count as asleep.
const SETTLED: Duration = Duration::from_millis(100);

/// Quiet times before each message; one of them must have no wake-up.
const QUIETS: u32 = 5;

/// The largest processor time of one poll for messages.
const ONE_LOOK: Duration = Duration::from_micros(500);

/// The way a release sleeps.
#[derive(Clone, Copy, Debug)]
enum Sleep {
    /// It supports no completion queues with wait objects for this fabric, on any device.
    Refused,
    /// It sleeps in the kernel until the device raises an event.
    UntilMessage,
    /// As above, but libfabric also polls its shared memory each millisecond.
    InRounds,
}

struct Case {
    release: Release,
    /// A part of the fabric's name.
    fabric: &'static str,
    /// A suffix of the cell's name, and the environment variable for it.
    variation: Option<(&'static str, [&'static str; 2])>,
    sleep: Sleep,
}

const NO_SHM: (&str, [&str; 2]) = (" without shm", ["FI_EFA_ENABLE_SHM_TRANSFER", "0"]);

const fn case(release: Release, fabric: &'static str, sleep: Sleep) -> Case {
    Case {
        release,
        fabric,
        variation: None,
        sleep,
    }
}

const fn without_shm(release: Release) -> Case {
    Case {
        variation: Some(NO_SHM),
        ..case(release, "efa", Sleep::UntilMessage)
    }
}

const CASES: [Case; 9] = [
    case(V1_11, "EFA-*", Sleep::Refused),
    case(V1_17, "efa", Sleep::Refused),
    case(V2_1, "efa", Sleep::Refused),
    case(V2_1, "efa-direct", Sleep::Refused),
    case(V2_5, "efa-direct", Sleep::UntilMessage),
    case(V2_5, "efa", Sleep::InRounds),
    without_shm(V2_5),
    case(V2_5_OPENMPI, "efa-direct", Sleep::UntilMessage),
    without_shm(V2_5_OPENMPI),
];

pub(super) fn cells() -> Vec<Cell> {
    let cell = |case: &'static Case| {
        let Case {
            release, fabric, ..
        } = case;
        let variation = case.variation.map_or("", |(name, _)| name);
        let name = format!("{} fi_cq_sread -f {fabric}{variation}", release.name);
        Cell::new(GROUP, name, LIMIT, move |bench| measure(bench, case)).emulated_only(THREADS)
    };
    CASES.iter().map(cell).collect()
}

/// Compiles the program against the machine's headers; every release's library has its interface.
fn compile(bench: &Bench) -> Result<PathBuf, NotMeasured> {
    let compiler = installed("cc", "gcc")?;
    if !PathBuf::from(HEADER).is_file() {
        return Err(NotMeasured::Skipped(format!(
            "{HEADER} is missing (Debian package libfabric-dev)"
        )));
    }
    let program = bench.directory().join("sleeper");
    let mut command = Command::new(compiler);
    command
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(bench.lab().file(SOURCE))
        .arg("-lfabric");
    Running::start(bench, format!("compile {SOURCE}"), command)?.success()?;
    Ok(program)
}

fn measure(bench: &Bench, case: &Case) -> CellResult {
    let program = compile(bench)?.display().to_string();
    let host = |name| -> Result<_, NotMeasured> {
        let host = case.release.host(bench, name)?;
        Ok(match case.variation {
            Some((_, [variable, value])) => host.env(variable, value),
            None => host,
        })
    };
    let count = MESSAGES.to_string();
    let mut sleeper = host("sleeper")?.start(&[&program, "sleep", case.fabric, &count])?;
    if let Sleep::Refused = case.sleep {
        let finished = sleeper.wait()?;
        let said = finished.stdout.trim();
        if finished.status.code() != Some(REFUSED) || said != NOT_IMPLEMENTED {
            return Err(failed!(
                "{}: not refused\n{said}\n{}",
                finished.status,
                finished.stderr
            ));
        }
        return Ok(format!("fi_cq_open with a wait object: {said}"));
    }
    // The address ends with a full stop.
    sleeper.printed(".\n")?;
    let (thread, address) =
        introduction(&sleeper.output()).ok_or_else(|| failed!("printed `{}`", sleeper.output()))?;
    let (fifo, mut demands) = fifo(bench)?;
    let words = |count| [&program, "send", case.fabric, &address, count, &fifo].map(str::to_owned);
    let mut sender = host("sender")?.start(&words(&count))?;
    sender.printed("ready")?;
    let visitor = host("visitor")?;
    let mut quiet = IdlePeriod::default();
    for message in 1..=MESSAGES {
        let mut attempt = 1;
        loop {
            let before = asleep(bench, thread, case.sleep)?;
            let begin = Instant::now();
            // Another program opens its device and inserts the sleeper's address, but sends
            // nothing.
            visitor.run(&words("0"))?;
            let now = IdlePeriod::between(begin.elapsed(), before, ThreadAccounting::of(thread)?);
            // On a busy machine the acknowledgements of an earlier message may arrive as late as
            // this.
            match now.judge(case.sleep) {
                Err(_) if attempt < QUIETS => attempt += 1,
                judged => {
                    judged?;
                    quiet.add(&now);
                    break;
                }
            }
        }
        demands.write_all(b"x").map_err(NotMeasured::failed)?;
        sleeper.printed(&format!("message {message}\n"))?;
    }
    sender.success()?;
    let finished = sleeper.success()?;
    if !finished.stdout.contains("woken 0 times by nothing") {
        let reason = "fi_cq_sread came back without a message";
        return Err(failed!("{reason}\n{}", finished.stdout));
    }
    Ok(format!("{MESSAGES} messages verified; {quiet}"))
}

/// The sleeping thread and its address, from the program's first line.
fn introduction(printed: &str) -> Option<(u32, String)> {
    let line = printed.lines().next()?.strip_suffix('.')?;
    let (thread, address) = line.strip_prefix("thread ")?.split_once(" address ")?;
    Some((thread.parse().ok()?, address.to_owned()))
}

/// A FIFO for requests: its path for the reader, and its open end for the writer.
fn fifo(bench: &Bench) -> Result<(String, File), NotMeasured> {
    let path = bench.directory().join("demands");
    let mut command = Command::new("mkfifo");
    command.arg(&path);
    Running::start(bench, "mkfifo".into(), command)?.success()?;
    // Opening for reading and writing does not block.
    let file = OpenOptions::new().read(true).write(true).open(&path);
    Ok((
        path.display().to_string(),
        file.map_err(NotMeasured::failed)?,
    ))
}

/// The kernel's accounting of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ThreadAccounting {
    sleeping: bool,
    /// The numbers of voluntary and involuntary context switches.
    voluntary: u64,
    involuntary: u64,
    on_processor: Duration,
}

impl ThreadAccounting {
    fn of(thread: u32) -> Result<ThreadAccounting, NotMeasured> {
        let read = |file: &str| {
            let path = format!("/proc/{thread}/{file}");
            std::fs::read_to_string(&path)
                .map_err(|error| failed!("{path}: {error}; has it ended?"))
        };
        let (status, schedule) = (read("status")?, read("schedstat")?);
        ThreadAccounting::parse(&status, &schedule)
            .ok_or_else(|| failed!("no accounts of a thread in\n{status}{schedule}"))
    }

    /// Reads the files `status` and `schedstat` of proc.
    fn parse(status: &str, schedule: &str) -> Option<ThreadAccounting> {
        let value = |name: &str| {
            let mut lines = status.lines();
            lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        let nanoseconds = schedule.split_whitespace().next()?.parse().ok()?;
        Some(ThreadAccounting {
            sleeping: value("State")?.starts_with('S'),
            voluntary: value("voluntary_ctxt_switches")?.parse().ok()?,
            involuntary: value("nonvoluntary_ctxt_switches")?.parse().ok()?,
            on_processor: Duration::from_nanos(nanoseconds),
        })
    }
}

/// Waits until the thread sleeps.
fn asleep(bench: &Bench, thread: u32, sleep: Sleep) -> Result<ThreadAccounting, NotMeasured> {
    loop {
        let before = ThreadAccounting::of(thread)?;
        thread::sleep(SETTLED);
        let after = ThreadAccounting::of(thread)?;
        // A thread that sleeps in rounds never stays long in one state.
        if matches!(sleep, Sleep::InRounds) || before.sleeping && before == after {
            return Ok(after);
        }
        if bench.left().is_zero() {
            return Err(failed!("the thread does not fall asleep: {after:?}"));
        }
    }
}

/// Times without messages.
#[derive(Debug, Default)]
struct IdlePeriod {
    time: Duration,
    voluntary: u64,
    involuntary: u64,
    on_processor: Duration,
}

impl IdlePeriod {
    fn between(time: Duration, before: ThreadAccounting, after: ThreadAccounting) -> IdlePeriod {
        IdlePeriod {
            time,
            voluntary: after.voluntary - before.voluntary,
            involuntary: after.involuntary - before.involuntary,
            on_processor: after.on_processor - before.on_processor,
        }
    }

    fn add(&mut self, other: &IdlePeriod) {
        self.time += other.time;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
        self.on_processor += other.on_processor;
    }

    fn judge(&self, sleep: Sleep) -> Result<(), NotMeasured> {
        let slept = match sleep {
            Sleep::Refused => true,
            Sleep::UntilMessage => self.voluntary + self.involuntary == 0,
            Sleep::InRounds => {
                let rounds = u32::try_from(self.voluntary).unwrap_or(u32::MAX);
                rounds > 0 && self.on_processor < ONE_LOOK * rounds
            }
        };
        match slept {
            true => Ok(()),
            false => Err(failed!("no message came, but {self}")),
        }
    }
}

impl std::fmt::Display for IdlePeriod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let IdlePeriod {
            time,
            voluntary,
            involuntary,
            on_processor,
        } = self;
        write!(
            f,
            "in {:.1} s of quiet the thread woke {voluntary} times, lost its processor {involuntary} \
             times, and used {} us of it",
            time.as_secs_f32(),
            on_processor.as_micros()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_accounts_are_parsed() {
        let printed = "thread 812 address 0a0b.\nmessage 1\n";
        assert_eq!(introduction(printed), Some((812, "0a0b".into())));
        assert_eq!(introduction("thread 812 address 0a0b"), None);
        let status = "Name:\tsleeper\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t4\n\
                      nonvoluntary_ctxt_switches:\t77\n";
        let accounts = ThreadAccounting::parse(status, "994423 1014123 2\n").unwrap();
        let expected = ThreadAccounting {
            sleeping: true,
            voluntary: 4,
            involuntary: 77,
            on_processor: Duration::from_nanos(994_423),
        };
        assert_eq!(accounts, expected);
        assert_eq!(ThreadAccounting::parse(status, ""), None);
    }

    /// A polling thread uses its processor until the kernel preempts it.
    #[test]
    fn a_polling_thread_does_not_sleep() {
        let quiet = |voluntary, involuntary, on_processor| IdlePeriod {
            time: Duration::from_secs(1),
            voluntary,
            involuntary,
            on_processor,
        };
        let polling = quiet(0, 200, Duration::from_millis(400));
        assert!(polling.judge(Sleep::UntilMessage).is_err());
        assert!(polling.judge(Sleep::InRounds).is_err());
        let rounds = quiet(900, 1, Duration::from_millis(9));
        assert!(rounds.judge(Sleep::UntilMessage).is_err());
        assert_eq!(rounds.judge(Sleep::InRounds), Ok(()));
        let asleep = quiet(0, 0, Duration::ZERO);
        assert_eq!(asleep.judge(Sleep::UntilMessage), Ok(()));
    }
}
