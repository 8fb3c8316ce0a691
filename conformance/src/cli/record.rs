//! `record` and `interop`: scenarios played live.

use std::path::PathBuf;

use super::{Outcome, complain, say};
use crate::interop;
use crate::player::Launcher;
use crate::record::{self, RecordError};
use crate::scenario::Scenario;
use crate::suite;

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
    /// Scenarios, or directories of scenarios. In each, the protocol engine takes the place of one
    /// endpoint after the other; the others are stock libfabric.
    #[arg(default_value = "traces")]
    scenarios: Vec<PathBuf>,
    /// Only scenarios whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
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
            say(format_args!(
                "{}: {} frames of {}",
                arguments.output.display(),
                recording.frames,
                recording.versions.join(" and ")
            ));
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
    let paths = match suite::find(&arguments.scenarios, "toml", arguments.filter.as_deref()) {
        Ok(paths) => paths,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let library = arguments.software.libfabric.as_deref();
    let mut summary = suite::Summary::default();
    for path in paths {
        let scenario = match Scenario::load(&path) {
            Ok(scenario) => scenario,
            Err(error) => return complain(error, Outcome::Unfit),
        };
        for role in 0..scenario.endpoints.len() {
            match interop::play(&scenario, role, &launcher, library) {
                Ok(case) => {
                    say(&case);
                    summary.add(&case);
                }
                Err(error) => return complain(error, Outcome::Unfit),
            }
        }
    }
    say(summary);
    if summary.failed > 0 {
        Outcome::Failed
    } else {
        Outcome::Passed
    }
}
