//! `drive`: our own programs that speak the driver protocol.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use efa_play::drive::serve::{Engine, Implementation, Stock, serve};
use efa_play::libfabric::{Library, Provider};
use efa_play::player::{Recorder, status_as};

use crate::outcome::{Outcome, complain};
use crate::provider::ProviderOptions;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Software {
    /// The protocol engine of efa-core.
    Core,
    /// Stock libfabric.
    Libfabric,
}

#[derive(clap::Args)]
pub(crate) struct Drive {
    /// What plays the endpoint.
    #[arg(value_enum)]
    software: Software,
    /// The libfabric to load.
    #[arg(long, value_name = "PATH", default_value = Library::DEFAULT)]
    libfabric: PathBuf,
    #[command(flatten)]
    provider: ProviderOptions,
}

/// Arguments of `recorded`.
#[derive(clap::Args)]
pub(crate) struct Recorded {
    /// The recorder, with `{file}` for the capture.
    #[arg(long, value_name = "COMMAND")]
    recorder: Option<String>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// `recorded`: a driven program whose capture follows what it prints.
pub(crate) fn recorded(arguments: &Recorded) -> ExitCode {
    let recorder = match &arguments.recorder {
        Some(command) => Recorder::parse(command),
        None => Recorder::of_this_host(),
    };
    let recorder = recorder.map_err(|error| error.to_string());
    let ended = recorder.and_then(|recorder| {
        let output = io::stdout().lock();
        let ended = recorder.run(&arguments.program, output);
        ended.map_err(|error| format!("cannot record a program: {error}"))
    });
    match ended {
        Ok(status) => u8::try_from(status_as(status)).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(problem) => complain(problem, Outcome::Unfit).into(),
    }
}

pub(crate) fn drive(arguments: &Drive) -> Outcome {
    let output = match private_output() {
        Ok(output) => output,
        Err(error) => return complain(error, Outcome::Unfit),
    };
    let mut implementation: Box<dyn Implementation> = match arguments.software {
        Software::Core => Box::new(Engine),
        Software::Libfabric => {
            let provider = arguments.provider.provider();
            if let Some(directory) = provider.search_path() {
                // SAFETY: this process has no other thread yet that could read the environment.
                unsafe { env::set_var(Provider::SEARCH_PATH, directory) };
            }
            if let Ok(choice) = env::var(Provider::CHOICE)
                && let Some(name) = provider.instead_of_choice(&choice)
            {
                // SAFETY: as above.
                unsafe { env::set_var(Provider::CHOICE, name) };
            }
            match Stock::load(&arguments.libfabric, provider) {
                Ok(stock) => Box::new(stock),
                Err(error) => return complain(error, Outcome::Unfit),
            }
        }
    };
    match serve(
        &mut *implementation,
        io::BufReader::new(io::stdin()),
        output,
    ) {
        Ok(()) => Outcome::Passed,
        // The driver has ended.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Passed,
        Err(error) => complain(error, Outcome::Unfit),
    }
}

/// Reserves standard output for answers: output of the library and its device goes to standard
/// error.
pub(crate) fn private_output() -> io::Result<File> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    // SAFETY: touches no memory; both numbers stay valid, and nothing was written to the first yet.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(output.into())
}
