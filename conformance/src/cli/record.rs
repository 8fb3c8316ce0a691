//! `record` and `interop`: scenarios played live.

use std::path::PathBuf;

use super::{Outcome, complain};
use crate::player::Launcher;
use crate::record::{self, RecordError};
use crate::scenario::Scenario;

/// Which software takes part.
#[derive(clap::Args)]
pub(super) struct SoftwareOptions {
    /// The libfabric to load.
    #[arg(long, value_name = "PATH", help_heading = "Software")]
    pub(super) libfabric: Option<PathBuf>,
    /// The efa-emu program; the default is the one beside this program, then the one in PATH.
    #[arg(long, value_name = "PATH", help_heading = "Software")]
    pub(super) efa_emu: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(super) struct Record {
    /// What to play.
    scenario: PathBuf,
    /// Where the trace goes; the scenario has to be beside it with the same name.
    #[arg(short, long, value_name = "TRACE.pcapng")]
    output: PathBuf,
    #[command(flatten)]
    software: SoftwareOptions,
}

#[derive(clap::Args)]
pub(super) struct Interop {
    /// Scenarios in which one endpoint is `core` and another `libfabric`.
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    #[command(flatten)]
    software: SoftwareOptions,
}

pub(super) fn record(arguments: &Record) -> Outcome {
    let launcher = match Launcher::new(arguments.software.efa_emu.clone()) {
        Ok(launcher) => launcher,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let library = arguments.software.libfabric.as_deref();
    match record::record(&arguments.scenario, &arguments.output, &launcher, library) {
        Ok(recording) => {
            println!(
                "{}: {} frames of {}",
                arguments.output.display(),
                recording.frames,
                recording.versions.join(" and ")
            );
            Outcome::Passed
        }
        Err(error) => {
            let outcome = outcome_of(&error);
            complain(error, outcome)
        }
    }
}

fn outcome_of(error: &RecordError) -> Outcome {
    if error.is_environment() {
        Outcome::Unfit
    } else {
        Outcome::Failed
    }
}

pub(super) fn interop(arguments: &Interop) -> Outcome {
    let launcher = match Launcher::new(arguments.software.efa_emu.clone()) {
        Ok(launcher) => launcher,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let library = arguments.software.libfabric.as_deref();
    let mut failed = 0;
    for path in &arguments.scenarios {
        let scenario = match Scenario::load(path) {
            Ok(scenario) => scenario,
            Err(error) => return complain(error, Outcome::Unfit),
        };
        let problems = match record::play(&scenario, &launcher, library, None) {
            Ok((transcript, _)) => transcript.problems,
            Err(error) if error.is_environment() => return complain(error, Outcome::Unfit),
            Err(error) => vec![error.to_string()],
        };
        if problems.is_empty() {
            println!("PASS  {}", scenario.name);
        } else {
            failed += 1;
            println!("FAIL  {}", scenario.name);
            for problem in problems {
                println!("      {problem}");
            }
        }
    }
    println!(
        "{} passed, {failed} failed",
        arguments.scenarios.len() - failed
    );
    if failed > 0 {
        Outcome::Failed
    } else {
        Outcome::Passed
    }
}
