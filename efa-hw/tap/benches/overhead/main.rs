//! The cost of a tap: messages between two endpoints of one process over the emulated device,
//! without a tap, with an idle one, and with one that records.
//!
//! The figures of a shared machine are noisy. Each round runs all variants one after the other. The
//! best run of each counts, and the median of its extra time over the run without a tap in the same
//! round is printed beside it. callgrind counts instructions: of the tap, and of the functions that
//! it calls outside of the library. For long messages the table also has the frames in the capture,
//! the records lost for lack of room, and the time of copying the same bytes once: recording all
//! data takes at least that long.
//!
//! `cargo bench -p efa-tap --bench overhead -- instructions` only counts instructions. The tap, the
//! emulator and its library are expected beside the benchmark: build them first (`cargo build
//! --workspace --release`).

mod callgrind;

use std::error::Error;
use std::process::Command;
use std::time::Instant;

use efa_core::endpoint::{
    Endpoint, EndpointConfig, EndpointError, OperationFlags, PeerId, RecvArgs, SendArgs,
    SourceFilter,
};
use efa_core::nic::{PolledNic as _, UserSlice};
use efa_hw::{DeviceName, HwDevice, HwNic, NicConfig};
use efa_testing::workspace::{built, efa_emu};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The rounds, in each of which every variant is measured once.
const ROUNDS: usize = 15;

/// The program that starts the measured one.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    /// Options of `efa-tap run`, if there is a tap.
    tap: Option<&'static [&'static str]>,
}

const fn tap(name: &'static str, options: &'static [&'static str]) -> Variant {
    Variant {
        name,
        tap: Some(options),
    }
}

const NO_TAP: Variant = Variant {
    name: "no tap",
    tap: None,
};
const IDLE: Variant = tap("idle", &["--idle"]);
const HEADERS_ONLY: Variant = tap("headers only", &["--headers-only"]);
const EVERYTHING: Variant = tap("everything", &[]);
/// Has room for all data of the measured program, so that nothing is lost.
const NOTHING_LOST: Variant = tap("nothing lost", &["--buffer", "1024"]);

/// Exchanges of the short run under callgrind, and how many more the long run has.
const FEW: u32 = 1_000;
const MORE: u32 = 4_000;

/// An endpoint with memory for one message.
struct End {
    endpoint: Endpoint<HwNic>,
    memory: UserSlice,
    begun: Instant,
}

impl End {
    fn open(length: usize) -> Result<End> {
        let mut nic = HwDevice::open(&DeviceName::First)?.open_nic(NicConfig::default())?;
        let memory = nic.allocate(length)?;
        Ok(End {
            endpoint: Endpoint::new(nic, EndpointConfig::default())?,
            memory,
            begun: Instant::now(),
        })
    }

    fn progress(&mut self) {
        let now = efa_core::endpoint::Instant::START + self.begun.elapsed();
        self.endpoint.progress(now);
    }

    fn receive(&mut self) -> Result<()> {
        self.endpoint
            .recv(RecvArgs::new(SourceFilter::Any, &[self.memory.into()], 1))?;
        Ok(())
    }

    fn send(&mut self, peer: PeerId) -> Result<()> {
        let data = [self.memory.into()];
        let send = SendArgs {
            flags: OperationFlags::empty(),
            ..SendArgs::new(peer, &data, 0)
        };
        loop {
            match self.endpoint.send(send) {
                Ok(()) => return Ok(()),
                Err(EndpointError::TryAgain) => self.progress(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Sends a message from one end to the other, and returns when it has arrived.
fn pass(from: &mut End, to: &mut End, peer: PeerId) -> Result<()> {
    to.receive()?;
    from.send(peer)?;
    loop {
        from.progress();
        to.progress();
        if let Some(completion) = to.endpoint.poll_completion() {
            completion?;
            return Ok(());
        }
    }
}

/// The measured program: nanoseconds of a message.
fn messages(length: usize, count: u32) -> Result<f64> {
    let (mut one, mut other) = (End::open(length)?, End::open(length)?);
    let to_other = one.endpoint.insert_address(other.endpoint.address())?;
    let to_one = other.endpoint.insert_address(one.endpoint.address())?;
    let mut exchange = |rounds: u32| -> Result<()> {
        for _ in 0..rounds {
            pass(&mut one, &mut other, to_other)?;
            pass(&mut other, &mut one, to_one)?;
        }
        Ok(())
    };
    // Handshakes, and the pages of the receive buffers.
    exchange(count / 4 + 2)?;
    let begun = Instant::now();
    exchange(count)?;
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(2 * count))
}

/// The measured program: nanoseconds of a poll of an empty completion queue.
fn polls(count: u32) -> Result<f64> {
    let mut nic = HwDevice::open(&DeviceName::First)?.open_nic(NicConfig::default())?;
    let mut completions = Vec::new();
    let mut poll = |count: u32| {
        (0..count)
            .map(|_| nic.poll(&mut completions, 16))
            .sum::<usize>()
    };
    let mut found = poll(count / 4);
    let begun = Instant::now();
    found += poll(count);
    let time = begun.elapsed();
    assert_eq!(found, 0, "nobody sends");
    Ok(time.as_nanos() as f64 / f64::from(count))
}

/// The measured program: nanoseconds of copying this many bytes, which were just written, to memory
/// that is not in the cache, as the tap does.
fn copies(length: usize, count: u32) -> f64 {
    /// The size of the tap's buffer.
    const RING: usize = 16 << 20;
    let mut ring = vec![1_u8; RING.max(length)];
    let mut data = vec![2_u8; length];
    let mut copied = std::time::Duration::ZERO;
    for index in 0..count as usize {
        data.fill(index as u8);
        let at = index * length % (ring.len() - length + 1);
        let begun = Instant::now();
        ring[at..at + length].copy_from_slice(std::hint::black_box(&data));
        copied += begun.elapsed();
        std::hint::black_box(&ring);
    }
    copied.as_nanos() as f64 / f64::from(count)
}

/// This program, which measures `work` on an emulated host, under a tap and after the words of a
/// wrapper if there are any.
fn program(variant: Variant, wrapper: &[String], work: &[&str]) -> Result<Command> {
    let fabric = format!("overhead-{}", std::process::id());
    let mut command = efa_emu(&["run", "-q", "--fabric", &fabric, "--"]);
    if let Some(options) = variant.tap {
        command.arg(built("efa-tap"));
        command.args(["run", "--pcap", "/dev/null"]);
        command.args(options).arg("--");
    }
    command.args(wrapper).arg(std::env::current_exe()?);
    command.arg("child").args(work);
    Ok(command)
}

/// The results of a run.
#[derive(Clone, Copy)]
struct Measured {
    nanoseconds: f64,
    /// Frames in the capture, and records that were lost.
    frames: u64,
    dropped: u64,
}

/// Runs a measurement with a variant.
fn measure(variant: Variant, work: &[&str]) -> Result<Measured> {
    let output = program(variant, &[], work)?.output()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = || format!("{said}{errors}");
    // `/dev/null: 14 frames of 1 host, 1000 bytes, 0 dropped`
    let before = |word: &str| {
        let line = errors.lines().find(|line| line.contains(" dropped"))?;
        let words: Vec<&str> = line.split([' ', ',']).collect();
        let at = words.iter().position(|found| *found == word)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    Ok(Measured {
        nanoseconds: said.parse().map_err(|_| reason())?,
        frames: before("frames").unwrap_or(0),
        dropped: before("dropped").unwrap_or(0),
    })
}

/// Measures variants, of which the first one has no tap.
fn table(what: &str, work: &[&str], variants: &[Variant]) -> Result<()> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let times = variants.iter().map(|variant| measure(*variant, work));
        rounds.push(times.collect::<Result<Vec<Measured>>>()?);
    }
    println!("\n{what}, {ROUNDS} rounds");
    println!(
        "{:<14} {:>10} {:>10} {:>16} {:>12} {:>10} {:>10}",
        "", "best, ns", "more", "more, median", "of the rate", "frames", "dropped"
    );
    let best = |index: usize| {
        let times = rounds.iter().map(|round| round[index].nanoseconds);
        times.fold(f64::INFINITY, f64::min)
    };
    for (index, variant) in variants.iter().enumerate() {
        let more = |round: &Vec<Measured>| round[index].nanoseconds - round[0].nanoseconds;
        let mut more: Vec<f64> = rounds.iter().map(more).collect();
        more.sort_by(f64::total_cmp);
        // The counts of the best run.
        let of_best = rounds.iter().map(|round| round[index]);
        let of_best = of_best.min_by(|a, b| a.nanoseconds.total_cmp(&b.nanoseconds));
        println!(
            "{:<14} {:>10.1} {:>10.1} {:>16.1} {:>12.3} {:>10} {:>10}",
            variant.name,
            best(index),
            best(index) - best(0),
            more[more.len() / 2],
            best(0) / best(index),
            of_best.map_or(0, |run| run.frames),
            of_best.map_or(0, |run| run.dropped),
        );
    }
    Ok(())
}

/// Counts the tap's instructions for messages of 64 bytes, both ends together.
fn instructions() -> Result<()> {
    println!("\n64 bytes: instructions of the tap");
    println!(
        "{:<14} {:>12} {:>10} {:>10}",
        "", "per message", "calls", "per call"
    );
    for variant in [IDLE, HEADERS_ONLY, EVERYTHING] {
        let counted = |exchanges: u32| -> Result<callgrind::Counts> {
            // The program first exchanges a quarter and two more.
            let work = ["messages", "64", &exchanges.to_string()];
            callgrind::count(|wrapper| program(variant, wrapper, &work))
        };
        let (few, many) = (counted(FEW)?, counted(FEW + MORE)?);
        let messages = f64::from(2 * (MORE + MORE / 4));
        let [instructions, calls] = [
            many.instructions.saturating_sub(few.instructions),
            many.calls.saturating_sub(few.calls),
        ]
        .map(|count| count as f64 / messages);
        println!(
            "{:<14} {instructions:>12.0} {calls:>10.1} {:>10.1}",
            variant.name,
            instructions / calls
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["child", "messages", length, count] => {
            println!("{}", messages(length.parse()?, count.parse()?)?);
            Ok(())
        }
        ["child", "copies", length, count] => {
            println!("{}", copies(length.parse()?, count.parse()?));
            Ok(())
        }
        ["child", "polls", count] => {
            println!("{}", polls(count.parse()?)?);
            Ok(())
        }
        _ if words.contains(&"instructions") => instructions(),
        // `cargo test --benches` only checks that it starts.
        _ if words.contains(&"--test") => Ok(()),
        _ => {
            let all = [NO_TAP, IDLE, HEADERS_ONLY, EVERYTHING];
            table("an empty poll", &["polls", "1000000"], &all[..2])?;
            table("64 bytes", &["messages", "64", "20000"], &all)?;
            let all = [NO_TAP, IDLE, HEADERS_ONLY, EVERYTHING, NOTHING_LOST];
            table("1 MiB", &["messages", "1048576", "200"], &all)?;
            table("a copy of 1 MiB", &["copies", "1048576", "500"], &all[..1])?;
            instructions()
        }
    }
}
