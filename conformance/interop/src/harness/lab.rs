//! The environment that all cells share: the programs of this workspace and the software of other releases.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Unmet;
use efa_conformance::player::Launcher;
use efa_conformance::record::Stock;
use efa_emu::installation::Installation;

/// The scenarios to play, and the libfabric.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Scenarios, or directories of scenarios.
    pub paths: Vec<PathBuf>,
    /// The libfabric.
    pub stock: Stock,
}

/// The environment of all cells.
#[derive(Debug)]
pub struct Lab {
    /// The `efa-emu` and `efa-conformance` programs, and the prefix of the names of fabrics.
    pub launcher: Launcher,
    /// The selected scenarios.
    pub scenarios: Selection,
    /// Where scripts, programs and traces are, under their names in the repository.
    data: PathBuf,
    /// Where captures and other leftovers of cells go.
    directory: PathBuf,
}

impl Lab {
    /// A lab with the files of an installation, in which `scripts/userland` fetches software and whose working
    /// directory takes captures. The error names the remedy.
    pub fn new(
        installation: &Installation,
        launcher: Launcher,
        scenarios: Selection,
    ) -> Result<Self, String> {
        installation
            .file(USERLAND)
            .map_err(|error| error.to_string())?;
        Ok(Lab {
            launcher,
            scenarios,
            data: installation.data().unwrap_or_default(),
            directory: installation.work().join("interop"),
        })
    }

    /// The file of the project that has this name in the repository.
    pub fn file(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    /// Where captures and other leftovers of cells go.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Software of another release, fetched at the first use. What cannot be fetched is skipped.
    pub fn userland(&self, name: &str) -> Result<Userland, Unmet> {
        let skipped = |reason: &str| Unmet::Skipped(format!("{USERLAND} {name}: {reason}"));
        // It bounds its own downloads.
        let output = Command::new(self.file(USERLAND))
            .arg(name)
            .output()
            .map_err(|error| skipped(&error.to_string()))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(skipped(errors.lines().last().unwrap_or("failed")));
        }
        let printed = String::from_utf8_lossy(&output.stdout);
        Ok(Userland {
            directory: printed.trim().into(),
        })
    }
}

/// The script's name in the repository.
const USERLAND: &str = "scripts/userland";

/// Unpacked software of another release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Userland {
    directory: PathBuf,
}

impl Userland {
    /// The directory, laid out as `scripts/userland` says.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The program that runs programs of it.
    pub fn runner(&self) -> PathBuf {
        self.directory.join("run")
    }
}
