//! `record`: scenarios played live.

use std::path::PathBuf;

use super::{Outcome, complain, say};
use crate::player::Launcher;
use crate::record::{self, RecordError, Stock};

/// Which software takes part.
#[derive(clap::Args)]
pub(super) struct SoftwareOptions {
    /// The libfabric to load.
    #[arg(long, value_name = "PATH", help_heading = "Software")]
    pub(super) libfabric: Option<PathBuf>,
    /// Start stock endpoints with this program in front: the `run` of `scripts/userland`.
    #[arg(long, value_name = "PROGRAM", help_heading = "Software")]
    pub(super) runner: Option<PathBuf>,
    /// The efa-emu program; the default is the one beside this program, then the one in PATH.
    #[arg(long, value_name = "PATH", help_heading = "Software")]
    pub(super) efa_emu: Option<PathBuf>,
}

impl SoftwareOptions {
    pub(super) fn stock(&self) -> Stock {
        let mut stock = Stock {
            runner: self.runner.clone(),
            ..Stock::default()
        };
        if let Some(library) = &self.libfabric {
            stock.library.clone_from(library);
        }
        stock
    }
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

pub(super) fn record(arguments: &Record) -> Outcome {
    let launcher = match Launcher::new(arguments.software.efa_emu.clone()) {
        Ok(launcher) => launcher,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let stock = arguments.software.stock();
    match record::record(&arguments.scenario, &arguments.output, &launcher, &stock) {
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
