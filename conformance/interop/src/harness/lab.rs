//! The environment of all cells: the programs of this workspace and the software of other releases.

use std::path::{Path, PathBuf};

use super::hosts::Hosts;
use super::not_measured::NotMeasured;
use efa_commands::installation::{Installation, MissingData};
use efa_play::player::{Launcher, hosted};
use efa_play::record::Stock;

/// The scenarios to play, and the libfabric.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Scenarios, or directories of scenarios.
    pub paths: Vec<PathBuf>,
    /// The stock libfabric that plays them.
    pub stock: Stock,
}

/// The environment of all cells.
#[derive(Clone, Debug)]
pub struct Lab {
    /// The `efa-emu` and `efa-conformance` programs, and the prefix of the names of fabrics.
    pub launcher: Launcher,
    pub(crate) scenarios: Selection,
    /// The real hosts instead of emulated ones, if there are any.
    hosts: Option<Hosts>,
    /// The paths of scripts, programs and traces.
    installation: Installation,
    /// The directory for captures and other files of cells.
    directory: PathBuf,
}

impl Lab {
    /// A lab with the files of an installation, in which `scripts/userland` downloads software and
    /// whose working directory is for captures. The error contains the remedy.
    pub fn new(
        installation: &Installation,
        launcher: Launcher,
        scenarios: Selection,
    ) -> Result<Self, MissingData> {
        installation.file(hosted::USERLAND)?;
        Ok(Lab {
            launcher,
            scenarios,
            hosts: None,
            installation: installation.clone(),
            directory: installation.work().join("interop"),
        })
    }

    /// The same lab with cells on these hosts.
    #[must_use]
    pub fn with_hosts(self, hosts: Option<Hosts>) -> Self {
        Lab { hosts, ..self }
    }

    /// The same lab with this directory for captures and other files of cells.
    #[must_use]
    pub fn in_directory(self, directory: PathBuf) -> Self {
        Lab { directory, ..self }
    }

    pub(crate) fn hosts(&self) -> Option<&Hosts> {
        self.hosts.as_ref()
    }

    /// The file of the project with this name in the repository.
    pub fn file(&self, name: &str) -> PathBuf {
        self.installation.data().unwrap_or_default().join(name)
    }

    /// The directory for captures and other files of cells.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Software of another release, downloaded at the first use. The cell is skipped if that fails.
    pub fn userland(&self, name: &str) -> Result<Userland, NotMeasured> {
        let directory = match self.hosts {
            // Each host downloads its software.
            Some(_) => hosted::software_there(name),
            None => hosted::software(&self.installation, name)
                .map_err(|lack| NotMeasured::Skipped(lack.to_string()))?,
        };
        Ok(Userland { directory })
    }
}

/// Unpacked software of another release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Userland {
    directory: PathBuf,
}

impl Userland {
    /// The directory, with the layout of `scripts/userland`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The program that runs programs in it.
    pub fn runner(&self) -> PathBuf {
        self.directory.join("run")
    }
}
