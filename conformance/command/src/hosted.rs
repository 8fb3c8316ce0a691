//! `hosted`: runs any program for a host that tests it here.

use std::io;
use std::process::ExitCode;

use efa_play::player::{HostedProgram, Recording, RequirementError, UNSUPPORTED, status_as};

use crate::outcome::{Outcome, complain};

/// Arguments of `hosted`: the members of [`HostedProgram`].
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A variable of the program's environment.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// The program that starts it with the libraries of another release.
    #[arg(long, value_name = "PROGRAM")]
    runner: Option<String>,
    /// The plug-in of libfabric that it is to use.
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// The port at which it will listen.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Record the frames that its device sends and receives.
    #[arg(long)]
    record: bool,
    /// The recorder, with `{file}` for the capture.
    #[arg(long, value_name = "COMMAND")]
    recorder: Option<String>,
    /// It speaks the driver protocol over the standard streams.
    #[arg(long)]
    driven: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    words: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".into()),
    }
}

/// Runs the program until it ends or standard input is closed.
pub(crate) fn hosted(arguments: &Arguments) -> ExitCode {
    let recording = match &arguments.recorder {
        Some(command) => Some(Recording::By(command.clone())),
        None => arguments.record.then_some(Recording::AsTheHostDoes),
    };
    let hosted = HostedProgram {
        words: arguments.words.clone(),
        environment: arguments.env.iter().cloned().collect(),
        runner: arguments.runner.clone(),
        provider: arguments.provider.clone(),
        recording,
        port: arguments.port,
        driven: arguments.driven,
    };
    match hosted.run(io::stdin(), io::stdout()) {
        Ok(status) => u8::try_from(status_as(status)).map_or(ExitCode::FAILURE, ExitCode::from),
        // The status for a program that does not support the request.
        Err(problem) if arguments.driven && !matches!(problem, RequirementError::Start { .. }) => {
            let _ = complain(problem, Outcome::Unfit);
            u8::try_from(UNSUPPORTED).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Err(problem) => complain(problem, Outcome::Unfit).into(),
    }
}
