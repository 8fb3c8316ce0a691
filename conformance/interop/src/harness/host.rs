//! Programs on emulated hosts.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use super::{Bench, Finished, Running, Unmet, Userland};

/// An emulated host, which starts programs by `efa-emu run --host NAME ... -- PROGRAM`.
#[derive(Clone)]
pub struct Host<'a> {
    bench: &'a Bench<'a>,
    name: String,
    options: Vec<OsString>,
    userland: Option<Userland>,
    environment: Vec<(OsString, OsString)>,
}

impl<'a> Host<'a> {
    pub(super) fn new(bench: &'a Bench<'a>, name: &str) -> Self {
        Host {
            bench,
            name: name.to_owned(),
            options: Vec::new(),
            userland: None,
            environment: Vec::new(),
        }
    }

    /// The generation of its device.
    pub fn profile(self, profile: &str) -> Self {
        self.option("--profile", profile)
    }

    /// Records the packets of its device to [`Bench::capture`] of its name. Of several programs on one host, at
    /// most one may record.
    pub fn captured(self) -> Self {
        let file = self.bench.capture(&self.name);
        self.option("--pcap", file)
    }

    /// An option of `efa-emu run`.
    pub fn option(mut self, option: &str, value: impl AsRef<OsStr>) -> Self {
        self.options
            .extend([option.into(), value.as_ref().to_owned()]);
        self
    }

    /// A variable of the program's environment.
    pub fn env(mut self, variable: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let (variable, value) = (variable.as_ref().to_owned(), value.as_ref().to_owned());
        self.environment.push((variable, value));
        self
    }

    /// Takes programs of another release.
    pub fn userland(mut self, userland: &Userland) -> Self {
        self.userland = Some(userland.clone());
        self
    }

    /// Starts a program with its arguments. A host may run several programs.
    pub fn start(&self, program: &[impl AsRef<OsStr>]) -> Result<Running<'a>, Unmet> {
        let mut command = Command::new(&self.bench.launcher().efa_emu);
        command
            .args(["run", "--quiet", "--host", &self.name])
            .args(["--fabric", self.bench.fabric()])
            .args(&self.options)
            .arg("--");
        if let Some(userland) = &self.userland {
            command.arg(userland.runner());
        }
        command.args(program);
        command.envs(
            self.environment
                .iter()
                .map(|(variable, value)| (variable, value)),
        );
        let program: Vec<_> = program
            .iter()
            .map(|word| word.as_ref().to_string_lossy())
            .collect();
        Running::start(
            self.bench,
            format!("{}: {}", self.name, program.join(" ")),
            command,
        )
    }

    /// Runs a program to its successful end.
    pub fn run(&self, program: &[impl AsRef<OsStr>]) -> Result<Finished, Unmet> {
        self.start(program)?.success()
    }
}
