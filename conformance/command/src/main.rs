//! The conformance suite on the command line.

mod annotations;
mod bundle;
mod captures;
mod check;
mod corpus;
mod doctor;
mod drive;
mod dut;
mod hosted;
mod interop;
mod job;
mod list;
mod origin;
mod outcome;
mod places;
mod progress;
mod provider;
mod record;
mod report;
mod run;
mod show;
mod survey;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use efa_commands::installation;
use efa_commands::output;
use efa_options::pages;

use self::outcome::{Outcome, complain};

/// The text of the exit statuses in the help.
const EXIT_STATUS: &str = "\
Exit status:
  0  everything passed
  1  something failed
  2  wrong usage or an unfit environment: one line tells the cause and the remedy";

/// Checks implementations of the EFA RDM protocol against recorded traces and the specification.
#[derive(Parser)]
#[command(name = "efa-conformance", version, propagate_version = true,
          long_version = installation::version_text(), after_long_help = EXIT_STATUS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replay traces: the implementation under test plays each endpoint in turn, the other
    /// endpoints send the recorded packets.
    Run(Box<run::Run>),
    /// Make one page of the results of several runs: a matrix of cases by implementation.
    Report(report::Arguments),
    /// Record a trace: stock libfabric on both sides, each on an emulated host of its own.
    Record(record::Record),
    /// Check a capture against the rules of the protocol.
    Check(check::Check),
    /// Show every field of every packet of a capture.
    Show(show::Show),
    /// List traces with their descriptions.
    List(list::List),
    /// Run the software that must work on emulated devices, and report the measurements.
    Interop(Box<interop::Interop>),
    /// Play an endpoint as `run --dut exec:COMMAND` drives it, with stock libfabric or the engine
    /// (docs/driver.md).
    Drive(drive::Drive),
    /// Say whether this machine is fit for EFA, what is wrong with it, and how it is mended.
    ///
    /// The exit status is 1 if something is wrong that keeps EFA from working.
    Doctor(doctor::Doctor),
    /// Say which versions and devices this host has, for `run --at` of another one
    /// (docs/two-machines.md).
    Place(places::PlaceArguments),
    /// Measure the properties of an EFA device that the emulator has to assume, and write them as a
    /// profile.
    Survey(survey::Survey),
    /// Pack the files that help others to find an error into one file, without private data.
    Bundle(bundle::Bundle),
    /// Run a program for another host that tests it here, for `run --at` and `interop --at`.
    #[command(hide = true)]
    Hosted(hosted::Arguments),
    /// Run traces for `run --jobs`.
    #[command(hide = true)]
    Job,
    /// Write the manual pages and the shell completions below a directory, as in PREFIX/share.
    Pages {
        /// The directory.
        directory: PathBuf,
    },
}

/// Runs the command that the process's arguments name.
fn main() -> ExitCode {
    efa_log::init();
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => run::run(*arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Record(arguments) => record::record(&arguments),
        Command::Interop(mut arguments) => interop::interop(&mut arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::List(arguments) => list::run(&arguments),
        Command::Drive(arguments) => drive::drive(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Place(arguments) => places::describe(&arguments),
        Command::Bundle(arguments) => bundle::bundle(&arguments),
        Command::Survey(arguments) => survey::survey(&arguments),
        Command::Hosted(arguments) => return hosted::hosted(&arguments),
        Command::Job => job::job(),
        Command::Pages { directory } => match pages::write(Arguments::command(), &directory) {
            Ok(()) => Outcome::Passed,
            Err(problem) => complain(problem, Outcome::Unfit),
        },
    };
    match outcome {
        Outcome::Passed if output::is_incomplete() => Outcome::Unfit.into(),
        outcome => outcome.into(),
    }
}
