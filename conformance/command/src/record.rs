//! `record`: plays a scenario live and records it.

use std::path::PathBuf;

use efa_play::libfabric::{Version, VersionError};
use efa_play::player::Launcher;
use efa_play::record::{self, RecordError, Stock};

use crate::outcome::{Outcome, complain, say};
use crate::provider::ProviderOptions;

/// Options for the software that takes part.
#[derive(clap::Args)]
pub(crate) struct SoftwareOptions {
    /// The libfabric to load.
    #[arg(long, value_name = "PATH", help_heading = "Software")]
    pub(crate) libfabric: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) provider: ProviderOptions,
    /// Start stock endpoints with this program in front: the `run` of `scripts/userland`.
    #[arg(long, value_name = "PROGRAM", help_heading = "Software")]
    pub(crate) runner: Option<PathBuf>,
    /// The efa-emu program; by default the one in the directory of this program, then the one in
    /// PATH.
    #[arg(long, value_name = "PATH", help_heading = "Software")]
    pub(crate) efa_emu: Option<PathBuf>,
}

impl SoftwareOptions {
    pub(crate) fn stock(&self) -> Stock {
        let mut stock = Stock {
            runner: self.runner.clone(),
            provider: self.provider.provider(),
            ..Stock::default()
        };
        if let Some(library) = &self.libfabric {
            stock.library.clone_from(library);
        }
        stock
    }
}

#[derive(clap::Args)]
pub(crate) struct Record {
    /// The scenario to play.
    scenario: PathBuf,
    /// The file of the trace; the scenario must be in the same directory with the same name.
    #[arg(short, long, value_name = "TRACE.pcapng")]
    output: PathBuf,
    /// The library for endpoints that need this release, and the program to start it with, if it
    /// needs one; may be given several times.
    #[arg(long, value_name = "VERSION=PATH[,PROGRAM]", help_heading = "Software",
          value_parser = release)]
    release: Vec<Release>,
    #[command(flatten)]
    software: SoftwareOptions,
}

type Release = (Version, (PathBuf, Option<PathBuf>));

fn release(text: &str) -> Result<Release, String> {
    let (version, files) = text
        .split_once('=')
        .ok_or("write VERSION=PATH, such as 2.1=/usr/lib/libfabric.so.1")?;
    let (library, runner) = match files.split_once(',') {
        Some((library, runner)) => (library, Some(runner.into())),
        None => (files, None),
    };
    Ok((
        version
            .parse()
            .map_err(|error: VersionError| error.to_string())?,
        (library.into(), runner),
    ))
}

pub(crate) fn record(arguments: &Record) -> Outcome {
    let launcher = match Launcher::new(arguments.software.efa_emu.clone()) {
        Ok(launcher) => launcher,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let mut stock = arguments.software.stock();
    stock.releases.extend(arguments.release.iter().cloned());
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
