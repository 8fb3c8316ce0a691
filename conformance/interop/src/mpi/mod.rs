//! Group `mpi`: MPI libraries over libfabric, with its efa provider and with the engine, and over UCX, two to eight ranks on one to four
//! emulated hosts.
//!
//! The programs, in `conformance/interop/mpi`, verify everything that they receive. Captures show that the
//! data between hosts went through the device.

mod library;
mod own_tests;
mod segments;
mod striping;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) use self::library::{Installation, Layout, Library, Transport};
pub(super) use self::segments::Segments;
use super::harness::traffic::Traffic;
use super::harness::volume::Volume;
use super::harness::{Bench, Cell, CellResult, Lab, Running, Unmet};

const GROUP: &str = "mpi";

/// Generous, because eight busy-waiting ranks share few processors.
const LIMIT: Duration = Duration::from_secs(300);

const MIB: u64 = 1024 * 1024;

/// The parts of the C program.
pub(super) fn parts() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|part| part.name)
}

/// A part of the C program, and the number of bytes that at least one rank of each host must send to another
/// host meanwhile, because the program passes them around a ring of all ranks.
#[derive(Clone, Copy)]
struct Part {
    name: &'static str,
    bytes: u64,
}

const PARTS: [Part; 4] = [
    POINT_TO_POINT,
    WILDCARDS,
    Part {
        name: "collectives",
        bytes: MIB,
    },
    Part {
        name: "rma",
        bytes: MIB,
    },
];

const POINT_TO_POINT: Part = Part {
    name: "p2p",
    bytes: 3 * 8 * MIB,
};

const WILDCARDS: Part = Part {
    name: "wildcards",
    bytes: 0,
};

/// The part of the C program whose window promises one operation only, so that MPICH uses the provider's atomics.
const HINTED: &str = "hinted";

/// The libraries, each with the transports by which it reaches the device.
const COMBINATIONS: [(Library, Transport); 16] = [
    (Library::Mpich, Transport::Libfabric),
    (Library::OpenMpi, Transport::Libfabric),
    (Library::DebianOpenMpi, Transport::Libfabric),
    (Library::IntelMpi, Transport::Libfabric),
    (Library::Mpich, Transport::Engine),
    (Library::OpenMpi, Transport::Engine),
    (Library::DebianOpenMpi, Transport::Engine),
    (Library::IntelMpi, Transport::Engine),
    (Library::Mpich, Transport::EngineAndEfa),
    (Library::OpenMpi, Transport::EngineAndEfa),
    (Library::DebianOpenMpi, Transport::EngineAndEfa),
    (Library::IntelMpi, Transport::EngineAndEfa),
    (Library::Mpich, Transport::UcxSrd),
    (Library::OpenMpi, Transport::UcxSrd),
    (Library::Mpich, Transport::UcxUd),
    (Library::OpenMpi, Transport::UcxUd),
];

const PAIR: Layout = Layout::new(2, 2);
const LAYOUTS: [Layout; 3] = [PAIR, Layout::new(4, 2), Layout::new(8, 4)];
/// As many ranks as the engine is asked for as a provider.
const CROWD: Layout = Layout::new(16, 4);

/// A cell's work with a library over a transport.
type Program = fn(&Bench, Library, Transport, Layout) -> CellResult;

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for (library, transport) in COMBINATIONS {
        let name = format!("{} {}", library.name(), transport.name());
        let program = |language: &str, layout: Layout, run: Program| {
            let Layout { ranks, hosts, .. } = layout;
            Cell::new(
                GROUP,
                format!("{name} {language} {ranks} ranks {hosts} hosts"),
                LIMIT,
                move |bench| run(bench, library, transport, layout),
            )
        };
        for layout in LAYOUTS {
            cells.push(program("C", layout, c_program));
            cells.push(program("mpi4py", layout, python_program));
        }
        if matches!(transport, Transport::Engine | Transport::EngineAndEfa) {
            cells.push(program("C", CROWD, c_program));
        }
        if loses_wildcards(library, transport) {
            cells.push(Cell::new(
                GROUP,
                format!("{name} wildcards"),
                LIMIT,
                move |bench| lost_wildcards(bench, library, transport),
            ));
        }
    }
    for transport in [Transport::Libfabric, Transport::Engine] {
        cells.push(Cell::new(
            GROUP,
            format!(
                "{} {} hinted window",
                Library::Mpich.name(),
                transport.name()
            ),
            LIMIT,
            move |bench| hinted_window(bench, transport),
        ));
    }
    cells.push(Cell::new(
        GROUP,
        "mpich-5.0.2 one host, no settings",
        LIMIT,
        unaware,
    ));
    cells.push(Cell::new(GROUP, "mpich-4.0.2 ucx-ud", LIMIT, debian_mpich));
    cells.push(own_tests::cell());
    cells.extend(striping::cells());
    Ok(cells)
}

/// Runs a job to its end and checks the volume that left each host.
fn volume_of(
    bench: &Bench,
    installation: &Installation,
    transport: Transport,
    layout: Layout,
    program: &[PathBuf],
    part: Part,
) -> Result<(String, Volume), Unmet> {
    let capture = bench.capture(part.name);
    let job = installation.job(bench, transport, layout, program, &capture)?;
    let finished = Running::start(bench, part.name.into(), job)?.success()?;
    let hosts = Volume::of_hosts(&capture)?;
    if let Some((host, sent)) = hosts.iter().find(|(_, sent)| sent.bytes < part.bytes) {
        return Err(Unmet::Failed(format!(
            "{}: {host} has sent {sent}, but {} bytes must have gone to others: see {}",
            part.name,
            part.bytes,
            capture.display()
        )));
    }
    // It has hundreds of megabytes, and is evaluated.
    let _ = std::fs::remove_file(&capture);
    Ok((finished.stdout, hosts.into_values().sum()))
}

fn c_program(bench: &Bench, library: Library, transport: Transport, layout: Layout) -> CellResult {
    let installation = Installation::find(bench, library)?;
    let program = installation.compile(bench, "exercise.c")?;
    let mut sum = Volume::default();
    let mut checks = 0;
    for part in PARTS {
        if part.name == WILDCARDS.name && loses_wildcards(library, transport) {
            continue;
        }
        let words = [program.clone(), part.name.into()];
        let (printed, volume) = volume_of(bench, &installation, transport, layout, &words, part)?;
        checks += checks_of(&printed, part.name)
            .ok_or_else(|| Unmet::Failed(format!("{} printed {printed:?}", part.name)))?;
        sum += volume;
    }
    Ok(format!("{checks} checks, {sum}"))
}

/// Returns whether the library loses small messages that arrive before a receive from `MPI_ANY_SOURCE`. MPICH
/// does over UCX, with every transport of UCX.
fn loses_wildcards(library: Library, transport: Transport) -> bool {
    library == Library::Mpich && matches!(transport, Transport::UcxSrd | Transport::UcxUd)
}

/// Shows that the job hangs over the device, and also over TCP.
fn lost_wildcards(bench: &Bench, library: Library, transport: Transport) -> CellResult {
    /// A job that works takes a small part of this time.
    const FOR_EVER: Duration = Duration::from_secs(15);
    let installation = Installation::find(bench, library)?;
    let words = [
        installation.compile(bench, "exercise.c")?,
        WILDCARDS.name.into(),
    ];
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

/// Fetch and add by atomics of the provider, for which MPICH has no descriptor of its result's memory. The efa provider of
/// the wheel reads one nevertheless, and the job crashes.
fn hinted_window(bench: &Bench, transport: Transport) -> CellResult {
    /// What the launcher prints of a rank that SIGSEGV has ended.
    const CRASHED: &str = "EXIT CODE: 11";
    let installation = Installation::find(bench, Library::Mpich)?;
    let words = [installation.compile(bench, "exercise.c")?, HINTED.into()];
    let capture = bench.capture(HINTED);
    let job = installation.job(bench, transport, PAIR, &words, &capture)?;
    let finished = Running::start(bench, HINTED.into(), job)?.wait()?;
    let traffic = Traffic::of(&capture)?;
    if transport == Transport::Libfabric {
        let crashed = [&finished.stdout, &finished.stderr]
            .iter()
            .any(|printed| printed.contains(CRASHED));
        if finished.status.success() || !crashed {
            return Err(Unmet::Failed(format!(
                "expected `{CRASHED}`, but it ended ({})",
                finished.status
            )));
        }
        return Err(Unmet::Known {
            reason: "fi_fetch_atomicmsg without descriptors, as MPICH calls it, crashes in the efa provider, \
                     which copies result_desc unchecked"
                .into(),
            capture,
        });
    }
    let checks = checks_of(&finished.stdout, HINTED);
    let fetches = traffic.count("FETCH_RTA") + traffic.count("DC_FETCH_RTA");
    match (finished.status.success(), checks, fetches) {
        (true, Some(checks), 1..) => Ok(format!("{checks} checks, {traffic}")),
        _ => Err(Unmet::Failed(format!(
            "{}, {traffic}, it printed {:?}",
            finished.status, finished.stdout
        ))),
    }
}

/// A job of two ranks on two hosts that runs until it is killed.
pub(super) struct Job {
    installation: Installation,
    program: PathBuf,
}

impl Job {
    /// Fetches the library and compiles the program.
    pub(super) fn prepare(bench: &Bench) -> Result<Job, Unmet> {
        let installation = Installation::find(bench, Library::Mpich)?;
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

fn python_program(
    bench: &Bench,
    library: Library,
    transport: Transport,
    layout: Layout,
) -> CellResult {
    let installation = Installation::find(bench, library)?;
    let words = installation.python(bench, "exercise.py")?;
    let part = Part {
        name: "python",
        bytes: 9 * MIB,
    };
    let (printed, volume) = volume_of(bench, &installation, transport, layout, &words, part)?;
    let verified = printed
        .lines()
        .filter(|line| line.contains("verified on"))
        .count();
    if verified != 3 {
        return Err(Unmet::Failed(format!(
            "not all parts were run: {printed:?}"
        )));
    }
    Ok(format!("{verified} parts, {volume}"))
}

/// `efa-emu run -- mpiexec -n 4 PROGRAM` without further settings. All ranks are on one host, and the library
/// chooses the transport.
fn unaware(bench: &Bench) -> CellResult {
    let installation = Installation::find(bench, Library::Mpich)?;
    let program = installation.compile(bench, "exercise.c")?;
    let mpiexec = installation.mpiexec();
    let host = bench
        .host("h0")
        .env("MPIR_CVAR_CH4_NETMOD", "ofi")
        .env("FI_PROVIDER", "efa");
    let words = [
        mpiexec.as_os_str(),
        "-n".as_ref(),
        "4".as_ref(),
        program.as_os_str(),
        "p2p".as_ref(),
    ];
    let finished = host.run(&words)?;
    let checks = checks_of(&finished.stdout, "p2p")
        .ok_or_else(|| Unmet::Failed(format!("it printed {:?}", finished.stdout)))?;
    Ok(format!("{checks} checks"))
}

/// Debian builds its MPICH without libfabric. Its UCX, 1.13, has no SRD yet, and its UD asks for a queue
/// pair that no EFA device supports.
fn debian_mpich(bench: &Bench) -> CellResult {
    const REFUSED: &str = "failed to create UD QP TX wr:256 sge:6 inl:64";
    let installation = Installation::find(bench, Library::DebianMpich)?;
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
