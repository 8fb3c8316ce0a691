//! The network, directory and deadline of one cell.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::host::Host;
use super::hosts::{DescribedHost, Hosts};
use super::installed::installed;
use super::lab::{Lab, Userland};
use super::not_measured::{NotMeasured, failed};
use super::traffic::Traffic;
use efa_check::capture::Capture;
use efa_check::check::check;
use efa_check::merge::merge;
use efa_core::rules::Severity;
use efa_play::libfabric::Provider;
use efa_play::player::{self, HostedProgram, Launcher, Player, Program, Timeouts, hosted};

/// The number of cells that this process has run, so that each gets a separate network.
static RUN: AtomicU32 = AtomicU32::new(0);

/// A cell's own emulated network and directory, and the time limit for everything in it.
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
    ) -> Result<Self, NotMeasured> {
        // Runs on other hosts may be concurrent.
        let places = lab.hosts().map(Hosts::names).unwrap_or_default();
        let places: Vec<&str> = places.values().map(String::as_str).collect();
        let name = match places.is_empty() {
            true => cell.to_owned(),
            false => format!("{cell} at {}", places.join(" ")),
        };
        let file_name: String = name
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
        made.map_err(|error| failed!("{}: {error}", directory.display()))?;
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

    /// The same network and directory in another lab, with a time limit of `deadline` at the
    /// latest.
    pub(super) fn within<'b>(&self, lab: &'b Lab, deadline: Instant) -> Bench<'b> {
        let mut launcher = lab.launcher.clone();
        launcher.fabric.clone_from(&self.launcher.fabric);
        Bench {
            lab,
            launcher,
            directory: self.directory.clone(),
            deadline: deadline.min(self.deadline),
        }
    }

    /// The lab, which all cells share.
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
    pub fn userland(&self, name: &str) -> Result<Userland, NotMeasured> {
        self.lab.userland(name)
    }

    /// Starts driver processes in the cell's network.
    ///
    /// # Errors
    /// The hosts are not emulated.
    pub fn launcher(&self) -> Result<&Launcher, NotMeasured> {
        match self.lab.hosts() {
            None => Ok(&self.launcher),
            Some(_) => Err(NotMeasured::Skipped("this takes emulated hosts".into())),
        }
    }

    /// The name of the cell's own emulated network.
    pub fn fabric(&self) -> &str {
        &self.launcher.fabric
    }

    /// The real host for the emulated one of this name, if the lab has hosts.
    pub(crate) fn described_host(&self, name: &str) -> Result<Option<&DescribedHost>, NotMeasured> {
        let hosts = self.lab.hosts();
        hosts.map(|hosts| hosts.described_host(name)).transpose()
    }

    /// Starts a program that implements an endpoint. On another host, [`Player::end`] returns its
    /// capture.
    pub(crate) fn start_player(
        &self,
        program: &Program,
        host: &player::Host,
    ) -> Result<Player, NotMeasured> {
        let (Some(described), Some(hosts)) = (self.described_host(&host.name)?, self.lab.hosts())
        else {
            return Ok(Player::launch(self.launcher()?, program, host)?);
        };
        if let Some(profile) = &host.profile {
            described.must_be(profile)?;
        }
        if let Some(option) = host.options.first() {
            let reason = format!("only an emulated host has `{option}`");
            return Err(NotMeasured::Skipped(reason));
        }
        let runner = host.runner.as_ref();
        let hosted = HostedProgram {
            environment: host.environment.clone(),
            runner: runner.map(|runner| runner.display().to_string()),
            // The site's settings for all programs would prevent libfabric's provider.
            provider: match program {
                Program::Libfabric { provider, .. } if provider.name != Provider::EFA => {
                    Some(provider.name.clone())
                }
                _ => None,
            },
            recording: described.recording().filter(|_| host.capture.is_some()),
            ..HostedProgram::driven(program)
        };
        let (place, reach) = (described.place(), hosts.reach());
        let player = Player::launch_at(&host.name, place, reach, &hosted, Timeouts::DEFAULT)?;
        Ok(player)
    }

    /// The frames of the host's capture; none if its packets could not be captured.
    pub(crate) fn traffic(&self, host: &str) -> Result<Traffic, NotMeasured> {
        let described = self.described_host(host)?;
        match described.is_some_and(|described| described.recording().is_none()) {
            true => Ok(Traffic::default()),
            false => Traffic::of(&self.capture(host)),
        }
    }

    /// The number of frames in the captures of these hosts, which must contain no protocol error.
    pub(crate) fn checked(&self, hosts: &[impl AsRef<str>]) -> Result<usize, NotMeasured> {
        let files = hosts.iter().map(|host| self.capture(host.as_ref()));
        let merged = self.capture("merged");
        merge(&Vec::from_iter(files), &[], &[], &merged).map_err(NotMeasured::failed)?;
        let capture = Capture::load(&merged).map_err(NotMeasured::failed)?;
        let checked = check(&capture);
        let errors = checked
            .worse_than(Severity::Warning)
            .map(ToString::to_string);
        let problems: Vec<String> = capture.damage.iter().cloned().chain(errors).collect();
        match problems.is_empty() {
            true => Ok(capture.frames.len()),
            false => Err(NotMeasured::Failed(problems.join("\n"))),
        }
    }

    /// The path of a file of the project on the machine of the cell's programs, by its name in the
    /// repository.
    pub(crate) fn data(&self, name: &str) -> String {
        let path = match self.lab.hosts() {
            Some(_) => hosted::data_there(name),
            None => self.lab.file(name),
        };
        path.display().to_string()
    }

    /// Checks that a program is installed, unless it is in a userland. Other hosts report
    /// themselves that they lack it.
    pub(crate) fn needs(&self, program: &str, package: &str) -> Result<(), NotMeasured> {
        match self.lab.hosts() {
            Some(_) => Ok(()),
            None => installed(program, package).map(drop),
        }
    }

    /// Time until the limit.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}
