//! `drive`: the programs of this package that speak the driver protocol.

use std::env;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::ValueEnum;
use efa_play::drive::serve::{Engine, Implementation, Stock, serve};
use efa_play::libfabric::{Library, Provider};

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
    /// The software that plays the endpoint.
    #[arg(value_enum)]
    software: Software,
    /// The libfabric to load.
    #[arg(long, value_name = "PATH", default_value = Library::DEFAULT)]
    libfabric: PathBuf,
    #[command(flatten)]
    provider: ProviderOptions,
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
        // The reader of the answers has exited.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Passed,
        Err(error) => complain(error, Outcome::Unfit),
    }
}

/// Reserves standard output for answers: output of the library and its device is redirected to
/// standard error.
pub(crate) fn private_output() -> io::Result<File> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    // SAFETY: the call accesses no memory; both descriptors stay valid, and the first has no
    // buffered output yet.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(output.into())
}
