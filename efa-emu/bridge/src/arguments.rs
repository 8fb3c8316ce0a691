//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use efa_emu::command::Failure;
use efa_emu::pages;
use efa_emu::transport::{DEFAULT_FABRIC, parse_duration};

use crate::peers::Peers;
use crate::{key, meeting};

/// Join the fabric of this machine with those of other machines.
///
/// Runs until interrupted, one on each machine. Hosts of all machines see each other as those of one fabric.
#[derive(Parser)]
#[command(name = "efa-emu bridge", bin_name = "efa-emu bridge", version, args_conflicts_with_subcommands = true,
          long_version = efa_emu::installation::version_text())]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    join: Option<Join>,
}

#[derive(Subcommand)]
enum Command {
    /// Make a key that the bridges of a fabric share: whoever has the file may connect.
    Key {
        /// The file, which must not be there yet.
        file: PathBuf,
        /// How many days it is good for.
        #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36500))]
        days: u32,
    },
    /// Write the manual pages and the shell completions below a directory, as in PREFIX/share.
    #[command(hide = true)]
    Pages {
        /// The directory.
        directory: PathBuf,
    },
}

/// What a bridge does.
#[derive(Args)]
pub(crate) struct Join {
    /// The key, of `efa-emu bridge key`; the same on all machines.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
    /// Where other bridges connect to, as ADDRESS:PORT; repeatable.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,
    /// A bridge to connect to, as HOST:PORT; repeatable. A name with several addresses stands for all of them. `@FILE` is a list
    /// of hosts as launchers read them, `slurm` all nodes of the job.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) peer: Vec<Peers>,
    /// The fabric that is joined, which has the same name on all machines.
    #[arg(long, default_value = DEFAULT_FABRIC)]
    pub(crate) fabric: String,
    /// The name of this machine; its host name if not given.
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<String>,
    /// After how long a machine of which nothing is heard counts as gone.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = timeout)]
    pub(crate) timeout: Duration,
    /// Do not encrypt. Bridges still have to know the key to connect.
    #[arg(long)]
    pub(crate) plain: bool,
    /// End when the last host of this machine has left the fabric, and do nothing if another bridge of the fabric runs here.
    #[arg(long)]
    pub(crate) while_used: bool,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration("timeout", text).map_err(|error| error.to_string())?;
    match timeout < Duration::from_millis(100) {
        true => Err("at least 100ms".to_owned()),
        false => Ok(timeout),
    }
}

/// Does what the command line says.
pub(crate) fn execute() -> Result<ExitCode, Failure> {
    let arguments = Arguments::parse();
    match (arguments.command, arguments.join) {
        (Some(Command::Key { file, days }), _) => {
            key::make(&file, days)?;
            Ok(ExitCode::SUCCESS)
        }
        (Some(Command::Pages { directory }), _) => {
            let command = Arguments::command().name("efa-emu-bridge");
            Ok(pages::write(command, &directory).map(|()| ExitCode::SUCCESS)?)
        }
        (None, Some(join)) => meeting::run(join),
        (None, None) => Err(Failure(
            "say which key to use: --key FILE, made by `efa-emu bridge key FILE`".to_owned(),
        )),
    }
}
