//! `hosted`: runs any program for a host that tests it here.

use std::io;
use std::process::ExitCode;

use efa_play::drive::Line as _;
use efa_play::player::{HostedProgram, RequirementError, UNSUPPORTED, status_as};

use crate::outcome::{Outcome, complain};

/// Arguments of `hosted`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The program, as [`HostedProgram::command`] passes it.
    #[arg(value_name = "JSON", value_parser = HostedProgram::parse)]
    hosted: HostedProgram,
}

/// Runs the program until it ends or standard input is closed.
pub(crate) fn hosted(Arguments { hosted }: &Arguments) -> ExitCode {
    match hosted.run(io::stdin(), io::stdout()) {
        Ok(status) => u8::try_from(status_as(status)).map_or(ExitCode::FAILURE, ExitCode::from),
        // The status for a program that does not support the request.
        Err(problem) if hosted.driven && !matches!(problem, RequirementError::Start { .. }) => {
            let _ = complain(problem, Outcome::Unfit);
            u8::try_from(UNSUPPORTED).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Err(problem) => complain(problem, Outcome::Unfit).into(),
    }
}
