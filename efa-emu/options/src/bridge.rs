//! The command line of `efa-emu bridge`. The program `efa-emu-bridge` executes it; `efa-emu`, which
//! starts that program, uses it for help, manual pages and completions.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use efa_shm::{DEFAULT_FABRIC, FabricError, parse_duration};

/// The shortest `--timeout`: a silent machine is never considered unreachable earlier.
pub const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);

/// Join the fabric of this machine with the fabrics of other machines.
///
/// Runs until interrupted, one on each machine. Hosts of all machines see each other as hosts of
/// one fabric.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BridgeArguments {
    /// A command in place of joining.
    #[command(subcommand)]
    pub command: Option<BridgeCommand>,
    /// How to join.
    #[command(flatten)]
    pub join: Option<Join>,
}

/// The commands besides joining.
#[derive(Subcommand, Debug)]
pub enum BridgeCommand {
    /// Make a key for the bridges of a fabric. All holders of the file may connect.
    Key {
        /// The file, which must not be there yet.
        file: PathBuf,
        /// The number of days for which it is valid.
        #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36500))]
        days: u32,
    },
}

/// The options of a bridge.
#[derive(Args, Debug)]
pub struct Join {
    /// The key, of `efa-emu bridge key`; the same on all machines.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// An address that accepts connections of other bridges, as ADDRESS:PORT; repeatable.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<String>,
    /// A bridge to connect to, as HOST:PORT; repeatable. A name with several addresses stands for
    /// all of them. `@FILE` is a list of hosts in the format of launchers, `slurm` stands for all
    /// nodes of the job.
    #[arg(long, value_name = "ADDRESS")]
    pub peer: Vec<String>,
    /// The fabric that is joined, which has the same name on all machines.
    #[arg(long, default_value = DEFAULT_FABRIC)]
    pub fabric: String,
    /// The name of this machine; its host name if not given.
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// The time without a message after which a machine counts as lost.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = timeout)]
    pub timeout: Duration,
    /// Do not encrypt. Bridges still have to know the key to connect.
    #[arg(long)]
    pub plain: bool,
    /// End when the last host of this machine has left the fabric, and do nothing if another bridge
    /// of the fabric runs here.
    #[arg(long)]
    pub while_used: bool,
}

/// An invalid `--timeout`.
#[derive(Debug, thiserror::Error)]
enum TimeoutError {
    #[error(transparent)]
    Duration(#[from] FabricError),
    #[error("at least {SHORTEST_TIMEOUT:?}")]
    TooShort,
}

fn timeout(text: &str) -> Result<Duration, TimeoutError> {
    let timeout = parse_duration("timeout", text)?;
    match timeout < SHORTEST_TIMEOUT {
        true => Err(TimeoutError::TooShort),
        false => Ok(timeout),
    }
}
