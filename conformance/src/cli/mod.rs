//! The command line.
//!
//! Exit status: 0 if everything passed, 1 if something failed, 2 for wrong usage or an unfit
//! environment, with one line on what is wrong and how to mend it.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::drive;
use crate::player::Launcher;
use crate::record::{self, RecordError};

/// Checks implementations of the EFA RDM protocol against recorded traces and the specification.
#[derive(Parser)]
#[command(name = "efa-conformance", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Record a trace: stock libfabric on both sides, each on an emulated host of its own.
    Record(Record),
    /// Run one side of a scenario, driven over standard input and output.
    #[command(hide = true)]
    Drive,
}

#[derive(clap::Args)]
struct Record {
    /// What to play.
    scenario: PathBuf,
    /// Where the trace goes.
    #[arg(short, long, value_name = "TRACE.pcapng")]
    output: PathBuf,
    /// The libfabric to load.
    #[arg(long, value_name = "PATH", help_heading = "Software")]
    libfabric: Option<PathBuf>,
    /// The efa-emu program; the default is the one beside this program, then the one in PATH.
    #[arg(long, value_name = "PATH", help_heading = "Software")]
    efa_emu: Option<PathBuf>,
}

/// How a command ended.
enum Outcome {
    Passed,
    Failed,
    /// Wrong usage or an unfit environment.
    Unfit,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Passed => ExitCode::SUCCESS,
            Outcome::Failed => ExitCode::from(1),
            Outcome::Unfit => ExitCode::from(2),
        }
    }
}

fn complain(error: impl Display, outcome: Outcome) -> Outcome {
    eprintln!("efa-conformance: {error}");
    outcome
}

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Record(arguments) => record(&arguments),
        Command::Drive => match drive::run(io::BufReader::new(io::stdin()), io::stdout()) {
            Ok(()) => Outcome::Passed,
            // Whoever drove is gone.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Passed,
            Err(error) => complain(error, Outcome::Unfit),
        },
    };
    outcome.into()
}

fn record(arguments: &Record) -> Outcome {
    let launcher = match Launcher::new(arguments.efa_emu.clone()) {
        Ok(launcher) => launcher,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let library = arguments.libfabric.as_deref();
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
            let outcome = match error {
                ref error if error.is_environment() => Outcome::Unfit,
                RecordError::Conduct(_) | RecordError::Different { .. } => Outcome::Failed,
                _ => Outcome::Unfit,
            };
            complain(error, outcome)
        }
    }
}
