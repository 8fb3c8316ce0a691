//! mpi4py's own tests over the engine as libfabric's provider, compared with libfabric's efa
//! provider.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::library::{GROUP, Installation, Layout, OPENMPI, Transport};
use crate::harness::volume::Volume;
use crate::harness::{Bench, Cell, CellResult, NotMeasured, Running};

const MIB: u64 = 1024 * 1024;

/// Both runs took nine minutes on a machine with ten times more runnable processes than processors.
const LIMIT: Duration = Duration::from_secs(1800);

/// A run with fewer tests than this is incomplete.
const LEAST_TESTS: u64 = 2000;

/// Excluded tests: those that start further processes. With them the launcher ends the job on two
/// hosts, over either provider (`NO PATH TO TARGET`, `PRTE has lost communication with a remote
/// daemon`).
const LEFT_OUT: [&str; 4] = ["-e", "dynproc", "-e", "spawn"];

/// Separates the reports of the ranks, and hides failed tests from the exit status. A launcher
/// kills the other ranks when one of them fails.
const KEPT_APART: &str = r#""$0" "$@" 2> "$REPORTS/$OMPI_COMM_WORLD_RANK"; true"#;

pub(super) fn cell() -> Cell {
    let name = format!("{} efa_rs mpi4py's own tests", OPENMPI.name);
    Cell::new(GROUP, name, LIMIT, not_one_failure_more)
}

fn not_one_failure_more(bench: &Bench) -> CellResult {
    let installation = Installation::find(bench, &OPENMPI)?;
    let source = bench.userland("pypi-mpi4py")?;
    let tests = source.directory().join("source/test/main.py");
    let stock = run_tests(bench, &installation, Transport::Libfabric, &tests)?;
    let ours = run_tests(bench, &installation, Transport::Engine, &tests)?;
    let more: Vec<&String> = ours.failed.difference(&stock.failed).collect();
    let (ran, failed) = (ours.ran, ours.failed.len());
    match more.is_empty() && ours.ran == stock.ran {
        true => Ok(format!(
            "{ran} tests, {failed} fail, all of them over efa as well"
        )),
        false => Err(NotMeasured::Failed(format!(
            "{ran} tests, over efa {}; these fail over efa_rs alone: {more:?}",
            stock.ran
        ))),
    }
}

/// The report of all ranks.
#[derive(PartialEq, Eq, Debug)]
struct Report {
    /// The number of tests of each rank.
    ran: u64,
    /// The tests that fail on at least one rank.
    failed: BTreeSet<String>,
}

fn run_tests(
    bench: &Bench,
    installation: &Installation,
    transport: Transport,
    tests: &Path,
) -> Result<Report, NotMeasured> {
    let reports = bench.directory().join(transport.name());
    std::fs::create_dir_all(&reports).map_err(NotMeasured::failed)?;
    let mut words = vec![Path::new("sh"), Path::new("-c"), Path::new(KEPT_APART)];
    words.extend([installation.interpreter(), tests, Path::new("-q")]);
    words.extend(LEFT_OUT.map(Path::new));
    let capture = bench.capture(transport.name());
    let mut job = installation.job(bench, transport, Layout::PAIR, &words, &capture)?;
    job.env("REPORTS", &reports);
    Running::start(bench, transport.name().into(), job)?.success()?;
    let sent = Volume::of_hosts(&capture)?;
    if sent.len() < Layout::PAIR.hosts || sent.values().any(|sent| sent.bytes < MIB) {
        return Err(NotMeasured::Failed(format!(
            "over {} the tests did not go through the device: see {}",
            transport.name(),
            capture.display()
        )));
    }
    // It is large, and is not needed any more.
    let _ = std::fs::remove_file(&capture);
    let mut all = Vec::new();
    for rank in 0..Layout::PAIR.ranks {
        let file = reports.join(rank.to_string());
        let text = std::fs::read(&file).map_err(|error| {
            NotMeasured::Failed(format!(
                "rank {rank} has left no {}: {error}",
                file.display()
            ))
        })?;
        let text = String::from_utf8_lossy(&text);
        all.push(report_of(&text).ok_or_else(|| {
            let last = text.lines().last().unwrap_or_default();
            let file = file.display();
            NotMeasured::Failed(format!(
                "rank {rank} did not come to its end ({file}): {last}"
            ))
        })?);
    }
    let ran = all.iter().map(|report| report.ran).min().unwrap_or(0);
    if ran < LEAST_TESTS {
        return Err(NotMeasured::Failed(format!(
            "over {} {ran} tests were run, and there are more than {LEAST_TESTS}",
            transport.name()
        )));
    }
    let failed = all.into_iter().flat_map(|report| report.failed).collect();
    Ok(Report { ran, failed })
}

/// The report of one rank; `None` if it is incomplete.
fn report_of(text: &str) -> Option<Report> {
    let ran = text.lines().find_map(|line| {
        let (ran, _) = line.strip_prefix("Ran ")?.split_once(" tests in ")?;
        ran.parse().ok()
    })?;
    let failed = text.lines().filter_map(|line| {
        let test = ["FAIL: ", "ERROR: "]
            .iter()
            .find_map(|kind| line.strip_prefix(kind))?;
        Some(test.to_owned())
    });
    Some(Report {
        ran,
        failed: failed.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_its_number_and_the_failures() {
        let text = "\
======================================================================
FAIL: testRevoke (test_ulfm.TestULFMSelf.testRevoke)
----------------------------------------------------------------------
AssertionError: False is not true
======================================================================
ERROR: testGet (test_rma.TestRMA.testGet)
----------------------------------------------------------------------
Ran 2079 tests in 259.594s

FAILED (failures=1, errors=1, skipped=122)
";
        let failed = [
            "testGet (test_rma.TestRMA.testGet)",
            "testRevoke (test_ulfm.TestULFMSelf.testRevoke)",
        ];
        let expected = Report {
            ran: 2079,
            failed: failed.map(str::to_owned).into(),
        };
        assert_eq!(report_of(text), Some(expected));
        let until_then: String = text.lines().take(4).collect();
        assert_eq!(report_of(&until_then), None);
    }
}
