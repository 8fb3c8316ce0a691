//! `run`: replaying traces.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::{Outcome, complain, say};
use crate::libfabric::Library;
use crate::replay::emu::Emu;
use crate::replay::hw::{Hw, Stock};
use crate::suite::progress::Progress;
use crate::suite::{self, Case, Summary};
use crate::trace::Trace;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendChoice {
    /// The deterministic emulator, in this process.
    Emu,
    /// Verbs: an EFA device, or the emulated one of `efa-emu run`.
    Hw,
    /// Both.
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dut {
    /// The protocol engine of efa-core.
    Core,
    /// Stock libfabric; only with `--backend hw`.
    Libfabric,
}

#[derive(clap::Args)]
pub(super) struct Run {
    /// Traces, or directories of traces.
    #[arg(default_value = "traces")]
    traces: Vec<PathBuf>,
    /// Where the two sides meet.
    #[arg(long, value_enum, default_value = "emu")]
    backend: BackendChoice,
    /// What is under test.
    #[arg(long, value_enum, default_value = "core")]
    dut: Dut,
    /// The libfabric to put under test.
    #[arg(long, value_name = "PATH", default_value = Library::DEFAULT)]
    libfabric: PathBuf,
    /// Also replay each trace in this many different networks that reorder, lose and refuse packets;
    /// the applications must see the same.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seeds: u64,
    /// Only traces whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as a page of HTML.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(arguments: &Run) -> Outcome {
    let paths = match suite::find(&arguments.traces, "pcapng", arguments.filter.as_deref()) {
        Ok(paths) => paths,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    if arguments.dut == Dut::Libfabric && arguments.backend != BackendChoice::Hw {
        let problem = "stock libfabric talks to verbs only; put it under test with --backend hw";
        return complain(problem, Outcome::Unfit);
    }
    let wants = |choice| arguments.backend == choice || arguments.backend == BackendChoice::All;
    let mut emu = wants(BackendChoice::Emu).then(Emu::orderly);
    let mut hw = None;
    if wants(BackendChoice::Hw) {
        match Hw::open_device() {
            Ok(device) => hw = Some(device),
            Err(error) => return complain(error, Outcome::Unfit),
        }
    }
    let mut stock = (arguments.dut == Dut::Libfabric).then(|| Stock {
        library: arguments.libfabric.clone(),
    });
    let progress = Progress::new(paths.len());
    let mut cases: Vec<Case> = Vec::new();
    let mut unfit = Vec::new();
    for path in &paths {
        progress.begin(&suite::name_of(path));
        let trace = match Trace::load(path) {
            Ok(trace) => trace,
            Err(error) => {
                unfit.push(error.to_string());
                continue;
            }
        };
        let mut results = Vec::new();
        if let Some(backend) = &mut emu {
            results.push(suite::run_engine(&trace, backend, arguments.seeds));
        }
        if let Some(backend) = &mut hw {
            results.push(match &mut stock {
                Some(stock) => suite::run_stock(&trace, backend, stock),
                // Seeds decide about the emulated network only.
                None => suite::run_engine(&trace, backend, 0),
            });
        }
        let mut ended = Vec::new();
        for result in results {
            match result {
                Ok(cases) => ended.extend(cases),
                Err(error) => unfit.push(format!("{}: {error}", path.display())),
            }
        }
        progress.end(&ended);
        cases.extend(ended);
    }
    progress.finish();
    say(Summary::of(&cases));
    for problem in &unfit {
        eprintln!("efa-conformance: {problem}");
    }
    let reports: [(&Option<PathBuf>, Writer); 3] = [
        (&arguments.junit, suite::junit::write),
        (&arguments.json, suite::json::write),
        (&arguments.html, suite::html::write),
    ];
    for (path, write) in reports {
        if let Some(path) = path
            && let Err(error) = write(&cases, path)
        {
            let problem = format!("cannot write {}: {error}", path.display());
            return complain(problem, Outcome::Unfit);
        }
    }
    if cases.iter().any(Case::failed) {
        Outcome::Failed
    } else if !unfit.is_empty() {
        Outcome::Unfit
    } else {
        Outcome::Passed
    }
}

type Writer = fn(&[Case], &Path) -> std::io::Result<()>;
