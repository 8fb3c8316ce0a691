//! Group `corpus`: the whole corpus of traces against each release of stock libfabric.

use std::time::Duration;

use super::harness::{Bench, Cell, CellResult, CellsError, Lab, NotMeasured};
use super::libfabric::release::{RELEASES, Release};
use efa_play::libfabric::Provider;
use efa_suite::json::Report;

const GROUP: &str = "corpus";
const LIMIT: Duration = Duration::from_secs(1200);

/// The number of traces that run simultaneously. They mostly wait for timers of stock libfabric.
const JOBS: &str = "4";

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, CellsError> {
    Ok(Vec::from(RELEASES.map(|release| {
        let name = format!("{} in every place of every trace", release.name);
        Cell::new(GROUP, name, LIMIT, move |bench| {
            judge(bench, release, Provider::EFA)
        })
    })))
}

/// The cells of the group of the engine as a provider.
pub(super) fn cells_of_engine(_: &Lab) -> Result<Vec<Cell>, CellsError> {
    Ok(Vec::from(RELEASES.map(|release| {
        let name = format!("in {}: corpus", release.name);
        let cell = Cell::new(Provider::ENGINE, name, LIMIT, move |bench| {
            judge(bench, release, Provider::ENGINE)
        });
        cell.emulated_only("the peers are scripted, which only emulated devices let")
    })))
}

/// Tests a provider of a release with the suite's command.
fn judge(bench: &Bench, release: Release, provider: &str) -> CellResult {
    let userland = release.userland(bench)?;
    let library = release.library(userland.as_ref());
    let conformance = &bench.launcher()?.efa_conformance;
    // Software of another Debian release needs its own dynamic linker, which its `run` starts.
    let runner = userland.map(|userland| format!("{} ", userland.runner().display()));
    let dut = format!(
        "exec:{}{} drive libfabric --libfabric {} --provider {provider}",
        runner.unwrap_or_default(),
        conformance.display(),
        library.display()
    );
    let report = |name: &str| bench.directory().join(name).display().to_string();
    let (json, html) = (report("results.json"), report("results.html"));
    let captures = report("failed");
    let traces = bench.lab().file("traces").display().to_string();
    let program = conformance.display().to_string();
    let words = [
        &program,
        "run",
        &traces,
        "--backend",
        "hw",
        "--dut",
        &dut,
        "--jobs",
        JOBS,
        "--json",
        &json,
        "--html",
        &html,
        "--captures",
        &captures,
    ];
    let host = bench.host("suite");
    // A program started by another release's dynamic linker cannot determine its path, and finds no
    // files next to itself.
    let host = match provider {
        Provider::EFA => host,
        plug_in => host.option("--provider", plug_in),
    };
    let finished = host.start(&words)?.wait()?;
    // The report contains the results up to the end of the run, even an abnormal one.
    let found = Report::read(json.as_ref());
    match found {
        Ok(report) if finished.status.success() => {
            let tested = &report.under_test;
            // The cell must test the release in its name.
            if tested.version() != Some(release.version) {
                return Err(NotMeasured::failed(format_args!("{tested} was under test")));
            }
            Ok(format!("{tested}: {}", report.summary))
        }
        _ => {
            let last: Vec<&str> = finished.stdout.lines().rev().take(30).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            Err(NotMeasured::failed(format_args!(
                "{}\n{}\n{}\nsee {html}",
                finished.status,
                last.join("\n"),
                finished.stderr
            )))
        }
    }
}
