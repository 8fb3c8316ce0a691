//! Compares the protocol engine with stock libfabric's efa provider over the same emulated device:
//! the engine by itself, and as the provider `efa_rs` behind the same calls as stock's.
//!
//! Two tables: instructions of a 64-byte tagged eager message, sender and receiver together,
//! counted by callgrind without those of the device; and message rate and bandwidth, which include
//! the device. Sender and receiver are in one process and one thread, so that one figure covers
//! both, and no figure depends on scheduling.
//!
//! `cargo bench -p efa-play --bench engine -- [instructions|rate|rate/BYTES]`

mod callgrind;
mod ends;
mod measure;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use efa_play::libfabric::{Library, Provider};
use efa_testing::workspace;
use measure::{Implementation, Sample, Workload};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [child, rest @ ..] = arguments.as_slice()
        && child == measure::CHILD
    {
        return report(measure::child(rest).map(|sample| println!("{sample}")));
    }
    // Without this argument `cargo test` runs this, which only checks that it starts.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let wants = |table: &str| wanted.is_none_or(|wanted| wanted == table);
    report((|| {
        let emulator = workspace::emulator();
        workspace::built("libefa_emu_verbs.so");
        if wants("instructions") {
            instructions(&emulator)?;
        }
        let wanted =
            |workload: &Workload| wants("rate") || wants(&format!("rate/{}", workload.length));
        let workloads: Vec<Workload> = RATES.into_iter().filter(wanted).collect();
        if !workloads.is_empty() {
            rate(&emulator, &workloads)?;
        }
        Ok(())
    })())
}

fn report(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("engine: {message}");
            ExitCode::from(2)
        }
    }
}

/// libfabric 2.5.1 from the package index, or the machine's own where that cannot be fetched.
fn stock() -> Implementation {
    let script = workspace::root().join("scripts/userland");
    let fetched = Command::new(script).arg("pypi-mpich").output();
    if let Ok(output) = fetched
        && output.status.success()
    {
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let directory = Path::new(printed.trim()).join("venv/lib/mpich");
        return Implementation {
            name: "libfabric 2.5.1".into(),
            argument: directory.join("libfabric.so.1").display().to_string(),
            provider: Provider::EFA,
            providers: Some(directory.join("libfabric")),
            runner: None,
        };
    }
    println!("libfabric 2.5.1 cannot be fetched; the machine's own takes its place");
    system()
}

fn system() -> Implementation {
    Implementation {
        name: "the machine's libfabric".into(),
        argument: Library::DEFAULT.into(),
        provider: Provider::EFA,
        providers: None,
        runner: None,
    }
}

/// libfabric 2.1 of Debian 13, if it can be fetched.
fn debian13() -> Option<Implementation> {
    Some(Implementation {
        name: "libfabric 2.1 of Debian 13".into(),
        runner: Some(workspace::userland("debian13")?.join("run")),
        ..system()
    })
}

/// The engine in the machine's libfabric.
fn plug_in() -> Implementation {
    Implementation {
        name: "efa_rs in that libfabric".into(),
        provider: Provider::ENGINE,
        ..system()
    }
}

/// All contenders, ours first.
fn contenders() -> Vec<Implementation> {
    let mut contenders = vec![engine(), plug_in(), stock()];
    contenders.extend(debian13());
    if !contenders.contains(&system()) {
        contenders.push(system());
    }
    contenders
}

fn engine() -> Implementation {
    Implementation {
        name: "efa-core and efa-hw".into(),
        argument: Implementation::ENGINE.into(),
        provider: Provider::EFA,
        providers: None,
        runner: None,
    }
}

fn instructions(emulator: &Path) -> Result<(), String> {
    const SHORT: Workload = Workload::new(64, 64, 2_000);
    const LONG: Workload = Workload::new(64, 64, 6_000);
    println!("instructions per 64-byte tagged eager message, sender and receiver");
    println!(
        "(a run of 6,000 messages less one of 2,000; device: libefa_emu_verbs.so and what it calls)"
    );
    println!(
        "{:<26} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "", "all", "device", "harness", "protocol", "ours/its"
    );
    let mut first = None;
    for contender in &contenders() {
        let short = callgrind::count(emulator, contender, SHORT)?;
        let long = callgrind::count(emulator, contender, LONG)?;
        let per = |pick: fn(&callgrind::Counts) -> u64| {
            let messages = (LONG.messages - SHORT.messages) as f64;
            (pick(&long) as f64 - pick(&short) as f64) / messages
        };
        let (all, device) = (per(|counts| counts.all), per(|counts| counts.device));
        let harness = per(|counts| counts.harness);
        let protocol = all - device - harness;
        let ours = *first.get_or_insert(protocol);
        println!(
            "{:<26} {all:>8.0} {device:>8.0} {harness:>8.0} {protocol:>8.0} {:>8.2}",
            contender.name,
            ours / protocol
        );
    }
    println!();
    Ok(())
}

/// The messages whose rates are measured.
const RATES: [Workload; 5] = [
    Workload::new(64, 64, 200_000),
    Workload::new(8 << 10, 64, 50_000),
    Workload::new(64 << 10, 16, 10_000),
    Workload::new(1 << 20, 4, 1_000),
    Workload::new(64 << 20, 2, 16),
];

fn rate(emulator: &Path, workloads: &[Workload]) -> Result<(), String> {
    const ROUNDS: usize = 8;
    // The longest time until the last round of a workload begins, so that this ends in time on a
    // slow machine.
    const TIME: Duration = Duration::from_secs(40);
    let contenders = contenders();
    println!(
        "tagged messages, best of at most {ROUNDS} interleaved rounds; processor time in brackets"
    );
    println!(
        "(the last columns: how many times the rate of this line the engine has, by itself and as efa_rs)"
    );
    println!(
        "{:<10} {:<26} {:>26} {:>8} {:>8}",
        "bytes", "", "rate", "engine", "efa_rs"
    );
    for &workload in workloads {
        let mut best: Vec<Option<Sample>> = vec![None; contenders.len()];
        let (begin, mut rounds) = (Instant::now(), 0);
        for round in 0..ROUNDS {
            if begin.elapsed() > TIME {
                break;
            }
            rounds += 1;
            // Each goes first in turn, because each finds the caches as the one before left them.
            for turn in 0..contenders.len() {
                let index = (round + turn) % contenders.len();
                let sample = measure::run(emulator, &contenders[index], workload)?;
                best[index] = Some(best[index].map_or(sample, |best| best.min(sample)));
            }
        }
        let best: Vec<Sample> = best.into_iter().flatten().collect();
        for (contender, sample) in contenders.iter().zip(&best) {
            println!(
                "{:<10} {:<26} {:>26} {:>7.2}x {:>7.2}x",
                workload.length,
                contender.name,
                sample.describe(workload),
                sample.wall / best[0].wall,
                sample.wall / best[1].wall
            );
        }
        if rounds < ROUNDS {
            println!("           {rounds} rounds: there was no time for more");
        }
    }
    Ok(())
}
