//! The command line of `efa-tap`.

mod frames;
mod process;
mod run;
mod switch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use efa_commands::installation;
use efa_commands::{Failure, end};
use efa_options::pages;

const EXIT_STATUS: &str = "\
Exit status:
  of run         that of the program, 128 + n if signal n ended it
  of the others  0
  2              wrong usage or an unfit environment";

/// Capture the packets that programs send and receive over EFA devices.
#[derive(Parser)]
#[command(name = "efa-tap", version, propagate_version = true,
          long_version = installation::version_text(), after_long_help = EXIT_STATUS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program, and write the packets that it and its children send and receive to a file
    /// (pcapng).
    ///
    /// The exit status is the program's.
    Run(run::RunArguments),
    /// Begin to record a process that `efa-tap run` has started, or all of an `efa-tap run`.
    On {
        /// The number of the process, or that of `efa-tap run`.
        pid: u32,
    },
    /// End the recording of a process, or of all of an `efa-tap run`.
    Off {
        /// The number of the process, or that of `efa-tap run`.
        pid: u32,
    },
    /// Write the manual pages and the shell completions below a directory, as in PREFIX/share.
    #[command(hide = true)]
    Pages {
        /// The directory.
        directory: PathBuf,
    },
}

/// The name of the directories of runs.
const PROGRAM: &str = "efa-tap";

pub(crate) fn main() -> ExitCode {
    efa_log::init();
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => arguments.execute(),
        Command::On { pid } => switch::switch(pid, true),
        Command::Off { pid } => switch::switch(pid, false),
        Command::Pages { directory } => {
            let written = pages::write(Arguments::command(), &directory);
            written.map(|()| ExitCode::SUCCESS).map_err(Failure::from)
        }
    };
    end(PROGRAM, outcome)
}

/// The parent of the directories of runs: in memory if possible, so that a program never waits for
/// a disk.
fn place_of_runs() -> PathBuf {
    efa_commands::shared_memory().unwrap_or_else(efa_commands::temporary_directory)
}
