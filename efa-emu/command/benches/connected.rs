//! A reliable connection of the profile `tm`, compared with SRD of the same device and with
//! libfabric's and UCX's shared memory, in one run: microseconds of one way for 64 bytes, and
//! megabytes per second of messages of 1 MiB.
//!
//! SRD and RC are measured by perftest (SRD reads 1 MiB, since it sends nothing longer than a
//! packet), UCX by `ucx_perftest`, over RC on the level of transports, and libfabric by
//! `fi_pingpong`. Rounds are interleaved, and the best of each row counts: other work of the
//! machine makes figures worse only. Programs that the machine lacks are named with the reason.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::Duration;

use efa_testing::workspace::{emulator, userland};

use programs::{command, converse, free_port, parse};
use rounds::{Figures, rounds};

mod programs;
#[expect(dead_code, reason = "not every benchmark needs all of it")]
mod rounds;

/// No measurement begins later than this after the start of its table.
const TABLE_TIME: Duration = Duration::from_secs(100);

const SMALL: usize = 64;
const LARGE: usize = 1 << 20;

/// The program that measures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MeasuringProgram {
    Perftest,
    Ucx,
    Libfabric,
}

struct Row {
    name: &'static str,
    program: MeasuringProgram,
    /// The profile of the emulated device, if there is one.
    profile: Option<&'static str>,
    /// The program and its options for messages of 64 bytes, and of 1 MiB.
    words: [&'static str; 2],
}

const ROWS: [Row; 5] = [
    Row {
        name: "SRD on efa-emu",
        program: MeasuringProgram::Perftest,
        profile: Some("efa1"),
        words: [
            "ib_send_lat -c SRD -x 0 -s 64 -n 20000",
            "ib_read_bw -c SRD -x 0 -s 1048576 -n 500",
        ],
    },
    Row {
        name: "RC on efa-emu",
        program: MeasuringProgram::Perftest,
        profile: Some("tm"),
        words: [
            "ib_send_lat -c RC -x 0 -s 64 -n 20000",
            "ib_send_bw -c RC -x 0 -s 1048576 -n 500",
        ],
    },
    // On the level of transports: the message protocols of this release need UD with more buffers
    // than the device has.
    Row {
        name: "UCX, RC on efa-emu",
        program: MeasuringProgram::Ucx,
        profile: Some("tm"),
        words: [
            "UCX_TLS=rc_v ucx_perftest -f -x rc_verbs -d rdmap0s0:1 -t am_lat -D bcopy -s 64 -n 20000",
            "UCX_TLS=rc_v ucx_perftest -f -x rc_verbs -d rdmap0s0:1 -t put_bw -D zcopy -s 1048576 -n 300",
        ],
    },
    Row {
        name: "UCX, posix",
        program: MeasuringProgram::Ucx,
        profile: None,
        words: [
            "UCX_TLS=posix ucx_perftest -f -t tag_lat -s 64 -n 20000",
            "UCX_TLS=posix ucx_perftest -f -t tag_bw -s 1048576 -n 300",
        ],
    },
    Row {
        name: "libfabric, shm",
        program: MeasuringProgram::Libfabric,
        profile: None,
        words: [
            "fi_pingpong -p shm -e rdm -S 64 -I 20000",
            "fi_pingpong -p shm -e rdm -S 1048576 -I 500",
        ],
    },
];

impl Row {
    /// The result of one run: microseconds one way, or megabytes per second.
    fn measure(&self, size: usize) -> Result<f64, String> {
        let emulator = emulator();
        let fabric = format!("bench-connected-{}", std::process::id());
        let port = free_port()?.to_string();
        let unpacked = match self.program {
            MeasuringProgram::Ucx => {
                let directory = userland("ucx-debian12");
                Some(directory.ok_or("there is no UCX")?.join("run"))
            }
            _ => None,
        };
        let words = self.words[usize::from(size == LARGE)];
        // Each side has its own processor.
        let side = |host: &str, cpu: &str| {
            let mut all: Vec<&OsStr> = ["taskset", "-c", cpu].map(OsStr::new).to_vec();
            if let Some(profile) = self.profile {
                all.push(emulator.as_os_str());
                let run = ["run", "--fabric", &fabric, "--profile", profile, "--host"];
                all.extend(run.map(OsStr::new));
                all.extend([host, "--"].map(OsStr::new));
            }
            if let Some(run) = &unpacked {
                let (variable, rest) = words.split_once(' ').unwrap_or((words, ""));
                all.extend(["env", variable].map(OsStr::new));
                all.push(run.as_os_str());
                all.extend(rest.split(' ').map(OsStr::new));
            } else {
                all.extend(words.split(' ').map(OsStr::new));
            }
            command(&all)
        };
        let flags: [&[&str]; 2] = match self.program {
            MeasuringProgram::Libfabric => [&["-B", &port], &["-P", &port, "127.0.0.1"]],
            _ => [&["-p", &port], &["-p", &port, "127.0.0.1"]],
        };
        let mut server = side("a", "0");
        server.args(flags[0]);
        let client = || {
            let mut client = side("b", "1");
            client.args(flags[1]);
            client
        };
        let printed = converse(server, client)?;
        let found = printed.iter().find_map(|line| self.figure(line, size));
        found.ok_or_else(|| format!("the client printed {printed:?}"))
    }

    fn figure(&self, line: &str, size: usize) -> Option<f64> {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let number = |column: usize| columns.get(column)?.parse::<f64>().ok();
        let is_small = size == SMALL;
        match self.program {
            // `64 20000 3.30 11.9 5.81 ...`: bytes, messages, least, most, typical; or bytes,
            // messages, best, mean.
            MeasuringProgram::Perftest if columns.first() == Some(&size.to_string().as_str()) => {
                number(if is_small { 4 } else { 3 })
            }
            // `20000 1.2 1.2 1.2 50 50 800 800`: messages; typical, mean, mean of all; the last two
            // likewise as MB/s.
            MeasuringProgram::Ucx if number(0).is_some() => number(if is_small { 1 } else { 5 }),
            MeasuringProgram::Libfabric => {
                let microseconds = parse(line)?;
                Some(if is_small {
                    microseconds
                } else {
                    size as f64 / microseconds
                })
            }
            _ => None,
        }
    }
}

fn table(size: usize) {
    let unit = if size == SMALL { "us" } else { "MB/s" };
    let mut all = ROWS.map(|row| (row, Figures::new()));
    rounds(&format!("{size} B"), TABLE_TIME, |is_over| {
        for (row, figures) in &mut all {
            if !is_over() && figures.is_hopeful() {
                figures.add(row.measure(size));
            }
        }
        true
    });
    println!("{size} B, best of the rounds; the ratio is to the first row");
    println!("{:<20} {unit:>9} {:>7} {:>7}", "", "ratio", "rounds");
    let mut first = None;
    for (row, figures) in &all {
        let best = match size == SMALL {
            true => figures.least(),
            false => figures.most(),
        };
        let Some(best) = best else {
            println!("{:<20} not measured: {}", row.name, figures.reason);
            continue;
        };
        let ratio = best / *first.get_or_insert(best);
        let count = figures.count();
        println!("{:<20} {best:>9.2} {ratio:>6.2}x {count:>7}", row.name);
    }
}

fn main() -> ExitCode {
    // `cargo test --benches` only checks that this starts.
    if !std::env::args().any(|argument| argument == "--test") {
        table(SMALL);
        table(LARGE);
    }
    ExitCode::SUCCESS
}
