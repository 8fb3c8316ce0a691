//! Cells that show faults of stock software.

use std::process::Command;
use std::time::{Duration, Instant};

use super::library::{DEBIAN_MPICH, GROUP, Installation, Layout, MPICH, Transport};
use super::parts::WILDCARDS;
use super::segments::Segments;
use crate::harness::volume::Volume;
use crate::harness::{Bench, Cell, CellResult, CellsError, Lab, NotMeasured, Running, failed};

/// Generous, because eight busy-waiting ranks share few processors.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn cells(_: &Lab) -> Result<Vec<Cell>, CellsError> {
    let mut cells = Vec::new();
    for transport in [Transport::UcxSrd, Transport::UcxUd] {
        let name = format!("{} {} wildcards", MPICH.name, transport.name());
        cells.push(Cell::new(GROUP, name, LIMIT, move |bench| {
            lost_wildcards(bench, transport)
        }));
    }
    cells.push(Cell::new(GROUP, "mpich-4.0.2 ucx-ud", LIMIT, debian_mpich));
    Ok(cells)
}

/// Shows that the job hangs over the device, and also over TCP.
fn lost_wildcards(bench: &Bench, transport: Transport) -> CellResult {
    /// Counts as forever: a working job needs a small part of this time.
    const FOR_EVER: Duration = Duration::from_secs(15);
    let installation = Installation::find(bench, &MPICH)?;
    let words = [installation.compile(bench, "exercise.c")?, WILDCARDS.into()];
    let capture = bench.capture("wildcards");
    let device = installation.job(bench, transport, Layout::PAIR, &words, &capture)?;
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
            return Err(failed!(
                "the job over {way} ended ({status}), against what this cell knows"
            ));
        }
    }
    drop(jobs);
    segments.remove_new();
    let sent: Volume = Volume::of_hosts(&capture)?.into_values().sum();
    if sent == Volume::default() {
        return Err(failed!("nothing was sent over the device"));
    }
    Err(NotMeasured::Known {
        reason:
            "over UCX MPICH waits for ever for a small message from MPI_ANY_SOURCE that is there \
                 already; UCX_TLS=tcp,self shows it without the device"
                .into(),
        capture,
    })
}

/// Debian builds its MPICH without libfabric. Its UCX, 1.13, has no SRD yet, and its UD requests a
/// queue pair that no EFA device supports.
fn debian_mpich(bench: &Bench) -> CellResult {
    const REFUSED: &str = "failed to create UD QP TX wr:256 sge:6 inl:64";
    let installation = Installation::find(bench, &DEBIAN_MPICH)?;
    let program = installation.compile(bench, "exercise.c")?;
    let capture = bench.capture("p2p");
    let words = [program, "p2p".into()];
    let mut job = installation.job(bench, Transport::UcxUd, Layout::PAIR, &words, &capture)?;
    // The launcher may lose the output of failing ranks.
    job.env("UCX_LOG_FILE", bench.directory().join("ucx-%p.log"));
    let finished = Running::start(bench, "p2p".into(), job)?.wait()?;
    let logs: String = std::fs::read_dir(bench.directory())
        .map_err(NotMeasured::failed)?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|name| name == "log"))
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        .collect();
    let sent: Volume = Volume::of_hosts(&capture)?.into_values().sum();
    if finished.status.success() || !logs.contains(REFUSED) || sent != Volume::default() {
        return Err(failed!(
            "expected `{REFUSED}` and no frame, but it ended ({}), {sent}:\n{logs}",
            finished.status
        ));
    }
    Err(NotMeasured::Known {
        reason: "built for UCX alone, whose UD asks for a queue pair with 6 SGEs and 64 B inline; \
                 EFA has 2 and 32: no frame is sent"
            .into(),
        capture,
    })
}
