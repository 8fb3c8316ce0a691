//! Executes the command line of `efa-emu bridge` ([`efa_options::bridge`]).

use std::process::ExitCode;

use clap::Parser;
use efa_commands::Failure;
use efa_options::bridge::{BridgeArguments, BridgeCommand};

use crate::{connection_setup, key};

#[derive(Parser)]
#[command(name = "efa-emu bridge", bin_name = "efa-emu bridge", version,
          long_version = efa_commands::installation::version_text())]
struct Arguments {
    #[command(flatten)]
    bridge: BridgeArguments,
}

/// Executes the command line.
pub(crate) fn execute() -> Result<ExitCode, Failure> {
    let BridgeArguments { command, join } = Arguments::parse().bridge;
    match (command, join) {
        (Some(BridgeCommand::Key { file, days }), _) => {
            key::make(&file, days)?;
            Ok(ExitCode::SUCCESS)
        }
        (None, Some(join)) => connection_setup::run(join),
        (None, None) => Err(Failure(
            "say which key to use: --key FILE, made by `efa-emu bridge key FILE`".to_owned(),
        )),
    }
}
