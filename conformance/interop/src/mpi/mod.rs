//! Group `mpi`: MPI libraries over libfabric, with its efa provider and with the engine, and over
//! UCX, two to eight ranks on one to four emulated hosts. Most cells are in
//! `conformance/interop/cells/mpi.toml`; here are those that show a fault, and what other groups
//! need of jobs.

mod library;
mod own_tests;
mod segments;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) use self::library::{
    DEBIAN_MPICH, DEBIAN_OPENMPI, Installation, Layout, Library, MPICH, OPENMPI, Transport,
};
pub(super) use self::segments::Segments;
use super::harness::volume::Volume;
use super::harness::{Bench, Cell, CellResult, Lab, Running, Unmet};

const GROUP: &str = "mpi";

/// Generous, because eight busy-waiting ranks share few processors.
const LIMIT: Duration = Duration::from_secs(300);

const MIB: u64 = 1024 * 1024;

/// The parts of the C program.
pub(super) const PARTS: [&str; 4] = ["p2p", WILDCARDS, "collectives", "rma"];

const WILDCARDS: &str = "wildcards";

const PAIR: Layout = Layout::new(2, 2);

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for transport in [Transport::UcxSrd, Transport::UcxUd] {
        let name = format!("{} {} wildcards", MPICH.name, transport.name());
        cells.push(Cell::new(GROUP, name, LIMIT, move |bench| {
            lost_wildcards(bench, transport)
        }));
    }
    cells.push(Cell::new(GROUP, "mpich-4.0.2 ucx-ud", LIMIT, debian_mpich));
    cells.push(own_tests::cell());
    Ok(cells)
}

/// Shows that the job hangs over the device, and also over TCP.
fn lost_wildcards(bench: &Bench, transport: Transport) -> CellResult {
    /// A job that works takes a small part of this time.
    const FOR_EVER: Duration = Duration::from_secs(15);
    let installation = Installation::find(bench, &MPICH)?;
    let words = [installation.compile(bench, "exercise.c")?, WILDCARDS.into()];
    let capture = bench.capture("wildcards");
    let device = installation.job(bench, transport, PAIR, &words, &capture)?;
    // Without the device.
    let mut tcp = Command::new(installation.mpiexec());
    tcp.args(["-n", "2"])
        .args(&words)
        .envs([("MPIR_CVAR_NOLOCAL", "1"), ("MPIR_CVAR_CH4_NETMOD", "ucx")])
        .env("UCX_TLS", "tcp,self");
    let segments = Segments::now();
    let mut jobs = [
        (
            "the device",
            Running::start(bench, "device".into(), device)?,
        ),
        ("TCP", Running::start(bench, "TCP".into(), tcp)?),
    ];
    let begin = Instant::now();
    for (way, job) in &mut jobs {
        if let Some(status) = job.ends_within(FOR_EVER.saturating_sub(begin.elapsed())) {
            return Err(Unmet::Failed(format!(
                "the job over {way} ended ({status}), against what this cell knows"
            )));
        }
    }
    drop(jobs);
    segments.remove_new();
    let sent: Volume = Volume::of_hosts(&capture)?.into_values().sum();
    if sent == Volume::default() {
        return Err(Unmet::Failed("nothing was sent over the device".into()));
    }
    Err(Unmet::Known {
        reason:
            "over UCX MPICH waits for ever for a small message from MPI_ANY_SOURCE that is there \
                 already; UCX_TLS=tcp,self shows it without the device"
                .into(),
        capture,
    })
}

/// A job of two ranks on two hosts that runs until it is killed.
pub(super) struct Job {
    installation: Installation,
    program: PathBuf,
}

impl Job {
    /// Fetches the library and compiles the program.
    pub(super) fn prepare(bench: &Bench) -> Result<Job, Unmet> {
        let installation = Installation::find(bench, &MPICH)?;
        let program = installation.compile(bench, "exercise.c")?;
        Ok(Job {
            installation,
            program,
        })
    }

    /// Starts the job with a rank on each of two hosts, which others may be on as well.
    pub(super) fn start<'a>(
        &self,
        bench: &'a Bench<'a>,
        hosts: [&str; 2],
    ) -> Result<Running<'a>, Unmet> {
        let words = [self.program.clone(), "pingpong".into(), "3600".into()];
        let mut command = Command::new(self.installation.mpiexec());
        for (separator, host) in [None, Some(":")].into_iter().zip(hosts) {
            command
                .args(separator)
                .args(["-n", "1"])
                .arg(&bench.launcher()?.efa_emu)
                .args(["run", "--fabric", bench.fabric(), "--host", host, "--"])
                .args(&words);
        }
        command.envs([
            // The ranks are on one machine, but not on one emulated host.
            ("MPIR_CVAR_NOLOCAL", "1"),
            ("MPIR_CVAR_CH4_NETMOD", "ofi"),
            ("FI_PROVIDER", "efa"),
        ]);
        Running::start(bench, "MPI job".into(), command)
    }
}

/// The number in `NAME: NUMBER checks on ...`.
pub(super) fn checks_of(printed: &str, part: &str) -> Option<u64> {
    printed
        .lines()
        .find_map(|line| line.strip_prefix(part)?.strip_prefix(": "))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Debian builds its MPICH without libfabric. Its UCX, 1.13, has no SRD yet, and its UD asks for a
/// queue pair that no EFA device supports.
fn debian_mpich(bench: &Bench) -> CellResult {
    const REFUSED: &str = "failed to create UD QP TX wr:256 sge:6 inl:64";
    let installation = Installation::find(bench, &DEBIAN_MPICH)?;
    let program = installation.compile(bench, "exercise.c")?;
    let capture = bench.capture("p2p");
    let words = [program, "p2p".into()];
    let mut job = installation.job(bench, Transport::UcxUd, PAIR, &words, &capture)?;
    // The launcher may lose the output of failing ranks.
    job.env("UCX_LOG_FILE", bench.directory().join("ucx-%p.log"));
    let finished = Running::start(bench, "p2p".into(), job)?.wait()?;
    let logs: String = std::fs::read_dir(bench.directory())
        .map_err(Unmet::failed)?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|name| name == "log"))
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        .collect();
    let sent: Volume = Volume::of_hosts(&capture)?.into_values().sum();
    if finished.status.success() || !logs.contains(REFUSED) || sent != Volume::default() {
        return Err(Unmet::Failed(format!(
            "expected `{REFUSED}` and no frame, but it ended ({}), {sent}:\n{logs}",
            finished.status
        )));
    }
    Err(Unmet::Known {
        reason: "built for UCX alone, whose UD asks for a queue pair with 6 SGEs and 64 B inline; \
                 EFA has 2 and 32: no frame is sent"
            .into(),
        capture,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_checks_is_read_from_the_line_of_the_part() {
        let printed = "[warning]\nrma: 2252 checks on 2 ranks in 0.1 s\n";
        assert_eq!(checks_of(printed, "rma"), Some(2252));
        assert_eq!(checks_of(printed, "p2p"), None);
        assert_eq!(checks_of("p2p: none checks", "p2p"), None);
    }
}
