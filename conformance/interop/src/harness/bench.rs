//! The network, directory and deadline of one cell.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{Host, Lab, Unmet, Userland};
use efa_conformance::player::Launcher;

/// The number of cells that this process has run, so that each gets its own network.
static RUN: AtomicU32 = AtomicU32::new(0);

/// A cell's own emulated network and directory, and the time at which everything in it ends.
pub struct Bench<'a> {
    lab: &'a Lab,
    launcher: Launcher,
    directory: PathBuf,
    deadline: Instant,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        lab: &'a Lab,
        group: &str,
        cell: &str,
        deadline: Instant,
    ) -> Result<Self, Unmet> {
        let file_name: String = cell
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "._-".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        let directory = lab.directory().join(group).join(file_name);
        let made = match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => std::fs::create_dir_all(&directory),
        };
        made.map_err(|error| Unmet::Failed(format!("{}: {error}", directory.display())))?;
        let mut launcher = lab.launcher.clone();
        let number = RUN.fetch_add(1, Ordering::Relaxed);
        launcher.fabric = format!("{}-{number}", launcher.fabric);
        Ok(Bench {
            lab,
            launcher,
            directory,
            deadline,
        })
    }

    /// What all cells share.
    pub fn lab(&self) -> &'a Lab {
        self.lab
    }

    /// An empty directory that outlives the cell.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file for the capture of a host.
    pub fn capture(&self, host: &str) -> PathBuf {
        self.directory.join(format!("{host}.pcapng"))
    }

    /// An emulated host of the cell's network. No program is started.
    pub fn host(&self, name: &str) -> Host<'_> {
        Host::new(self, name)
    }

    /// Software of another release.
    pub fn userland(&self, name: &str) -> Result<Userland, Unmet> {
        self.lab.userland(name)
    }

    /// Starts driver processes in the cell's network.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// The network's name.
    pub fn fabric(&self) -> &str {
        &self.launcher.fabric
    }

    /// Time until everything ends.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}
