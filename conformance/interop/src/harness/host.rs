//! Programs on emulated hosts, or on real ones instead.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::process::Command;

use super::bench::Bench;
use super::hosts::DescribedHost;
use super::lab::Userland;
use super::not_measured::NotMeasured;
use super::process::{Finished, Running};
use efa_commands::ports;
use efa_play::player::HostedProgram;

/// The address of emulated hosts, which share this machine's.
const LOOPBACK: &str = "127.0.0.1";

/// An emulated host, which starts programs with `efa-emu run --host NAME ... -- PROGRAM`. If the
/// lab has hosts, the real host in its place, where programs use the host's own device.
#[derive(Clone)]
pub struct Host<'a> {
    bench: &'a Bench<'a>,
    name: String,
    profile: Option<String>,
    provider: Option<String>,
    is_captured: bool,
    options: Vec<OsString>,
    userland: Option<Userland>,
    environment: BTreeMap<OsString, OsString>,
}

impl<'a> Host<'a> {
    pub(super) fn new(bench: &'a Bench<'a>, name: &str) -> Self {
        Host {
            bench,
            name: name.to_owned(),
            profile: None,
            provider: None,
            is_captured: false,
            options: Vec::new(),
            userland: None,
            environment: BTreeMap::new(),
        }
    }

    /// The generation of its device.
    pub fn profile(mut self, profile: &str) -> Self {
        self.profile = Some(profile.to_owned());
        self
    }

    /// The libfabric provider for its programs, a plug-in that belongs to efa-emu.
    pub fn provider(mut self, name: &str) -> Self {
        self.provider = Some(name.to_owned());
        self
    }

    /// Captures the packets of its device into [`Bench::capture`] of its name. At most one of the
    /// programs on a host may capture. There is no capture if the lab's host has no recorder.
    pub fn captured(mut self) -> Self {
        self.is_captured = true;
        self
    }

    /// Adds an option of `efa-emu run`.
    pub fn option(mut self, option: &str, value: impl AsRef<OsStr>) -> Self {
        self.options
            .extend([option.into(), value.as_ref().to_owned()]);
        self
    }

    /// Shows the devices in `/sys` and `/dev` to the program.
    pub fn devices_shown(mut self) -> Self {
        self.options.push("--sysfs".into());
        self
    }

    /// Sets a variable of the program's environment.
    pub fn env(mut self, variable: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let (variable, value) = (variable.as_ref().to_owned(), value.as_ref().to_owned());
        self.environment.insert(variable, value);
        self
    }

    /// Uses programs of another release.
    pub fn userland(mut self, userland: &Userland) -> Self {
        self.userland = Some(userland.clone());
        self
    }

    /// The address for other hosts.
    pub fn address(&self) -> Result<String, NotMeasured> {
        let described = self.bench.described_host(&self.name)?;
        Ok(described.map_or_else(|| LOOPBACK.to_owned(), DescribedHost::address))
    }

    /// A TCP port without a listener on it.
    pub fn free_port(&self) -> Result<u16, NotMeasured> {
        match (
            self.bench.described_host(&self.name)?,
            self.bench.lab().hosts(),
        ) {
            (Some(described), Some(hosts)) => {
                let port = hosts.reach().free_port(&described.place().host);
                port.map_err(NotMeasured::failed)
            }
            _ => ports::free_port().map_err(NotMeasured::failed),
        }
    }

    /// Starts a program with its arguments. A host may run several programs.
    pub fn start(&self, program: &[impl AsRef<OsStr>]) -> Result<Running<'a>, NotMeasured> {
        self.launch(program, None)
    }

    /// Starts a program, and waits until it listens on this TCP port.
    pub fn serve(
        &self,
        program: &[impl AsRef<OsStr>],
        port: u16,
    ) -> Result<Running<'a>, NotMeasured> {
        let mut server = self.launch(program, Some(port))?;
        server.await_listener(port)?;
        Ok(server)
    }

    fn launch(
        &self,
        program: &[impl AsRef<OsStr>],
        port: Option<u16>,
    ) -> Result<Running<'a>, NotMeasured> {
        let words: Vec<String> = program
            .iter()
            .map(|word| word.as_ref().to_string_lossy().into_owned())
            .collect();
        if let (Some(described), Some(hosts)) = (
            self.bench.described_host(&self.name)?,
            self.bench.lab().hosts(),
        ) {
            let what = format!(
                "{} at {}: {}",
                self.name,
                described.place(),
                words.join(" ")
            );
            let hosted = self.hosted(described, words, port)?;
            let command = hosted.command(&described.place().host, hosts.reach());
            let capture = self.bench.capture(&self.name);
            return Running::start_hosted(self.bench, what, command, described.place(), capture);
        }
        let mut command = self.emulated()?;
        command.args(program);
        let what = format!("{}: {}", self.name, words.join(" "));
        Running::start(self.bench, what, command)
    }

    /// The command to start a program on the emulated host, without the program.
    fn emulated(&self) -> Result<Command, NotMeasured> {
        let launcher = self.bench.launcher()?;
        let mut command = Command::new(&launcher.efa_emu);
        command
            .args(["run", "--quiet", "--host", &self.name])
            .args(["--fabric", &launcher.fabric]);
        for (option, value) in [("--profile", &self.profile), ("--provider", &self.provider)] {
            command.args(value.iter().flat_map(|value| [option, value]));
        }
        if self.is_captured {
            command.arg("--pcap").arg(self.bench.capture(&self.name));
        }
        command.args(&self.options).arg("--");
        if let Some(userland) = &self.userland {
            command.arg(userland.runner());
        }
        command.envs(&self.environment);
        Ok(command)
    }

    /// The request for the real host.
    fn hosted(
        &self,
        described: &DescribedHost,
        words: Vec<String>,
        port: Option<u16>,
    ) -> Result<HostedProgram, NotMeasured> {
        if let Some(option) = self.options.first() {
            return Err(NotMeasured::Skipped(format!(
                "only an emulated host has `{}`",
                option.to_string_lossy()
            )));
        }
        if let Some(profile) = &self.profile {
            described.must_be(profile)?;
        }
        let text = |value: &OsString| value.to_string_lossy().into_owned();
        let variables = self.environment.iter();
        let runner = self.userland.as_ref().map(Userland::runner);
        Ok(HostedProgram {
            words,
            environment: variables
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
            runner: runner.map(|runner| runner.display().to_string()),
            provider: self.provider.clone(),
            recording: described.recording().filter(|_| self.is_captured),
            port,
            driven: false,
        })
    }

    /// Runs a program, which must succeed.
    pub fn run(&self, program: &[impl AsRef<OsStr>]) -> Result<Finished, NotMeasured> {
        self.start(program)?.success()
    }
}
