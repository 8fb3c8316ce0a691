//! Execution of a cell from a file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use efa_commands::shell::split_words;
use efa_device_model::profile::Profile;
use efa_device_model::sysfs::DEVICE_NAME;

use super::expand::{Variables, fill};
use super::format::{Ends, Job, Program, Spec};
use crate::harness::traffic::Traffic;
use crate::harness::volume::Volume;
use crate::harness::{Bench, CellResult, Finished, Host, NotMeasured, Running, failed};
use crate::libfabric::release::Release;
use crate::mpi::{Installation, Library, Transport};

/// Interval of polls of processes.
const TICK: Duration = Duration::from_millis(20);

/// The Debian release of the guests' kernel and programs.
const DEFAULT_RELEASE: &str = "debian12";

/// The exit status of a script that reports a missing requirement.
const LACKS: i32 = 77;

/// The directory of `{data}` in cells, in the repository.
const DATA: &str = "conformance/interop";

/// A program that continues while the next ones run.
struct Server<'a> {
    running: Running<'a>,
    program: &'a Program,
}

impl Spec {
    /// Runs the programs of the cell, and checks their output and exit.
    pub(super) fn run(&self, bench: &Bench) -> CellResult {
        if let Some(exchange) = &self.exchange {
            return exchange.run(bench);
        }
        if self.userland.is_empty() {
            for (program, package) in &self.needs {
                bench.needs(program, package)?;
            }
        }
        let mut variables = self.variables(bench)?;
        if let Some(script) = &self.setup {
            set_up(bench, &fill(script, &variables))?;
        }
        let mut port = 0;
        if let Some(server) = self.program.iter().find(|program| program.listens) {
            let host = self.host(bench, server, &variables)?;
            port = host.free_port()?;
            let values = [("port", port.to_string()), ("address", host.address()?)];
            variables.extend(values.map(|(name, value)| (name.to_owned(), value)));
        }
        let mut servers: Vec<Server> = Vec::new();
        let mut measured = Measured::default();
        for program in &self.program {
            if let Some(job) = &program.job {
                let running = self.start_job(bench, program, job, &variables)?;
                let finished = running.ended(|status| program.ends.permits(status))?;
                measured.take(program, &finished, &variables)?;
                *measured.volume.get_or_insert_default() += job.judge(bench)?;
                continue;
            }
            let words = program.words(&variables)?;
            let running = match &program.guests {
                Some(options) => {
                    let options = fill(options, &variables);
                    let mut guests = self.start_guests(bench, program, &options, &words)?;
                    if program.listens {
                        guests.printed("listens")?;
                    }
                    guests
                }
                None if program.local => {
                    let mut command = Command::new(&words[0]);
                    command.args(&words[1..]).envs(&program.env);
                    Running::start(bench, program.run.clone(), command)?
                }
                None => {
                    let host = self.host(bench, program, &variables)?;
                    match program.listens {
                        true => host.serve(&words, port)?,
                        false => host.start(&words)?,
                    }
                }
            };
            if program.listens {
                servers.push(Server { running, program });
                continue;
            }
            let finished = await_end(bench, running, program, &mut servers)?;
            measured.take(program, &finished, &variables)?;
        }
        // Programs with an expected exit are awaited first, because they may need the other
        // programs.
        let is_endless = |server: &Server| server.program.ends == Ends::Any;
        let (endless, servers): (Vec<_>, Vec<_>) = servers.into_iter().partition(is_endless);
        for Server { running, program } in servers {
            let finished = running.ended(|status| program.ends.permits(status))?;
            measured.take(program, &finished, &variables)?;
        }
        drop(endless);
        let traffic = match (&self.checked[..], self.captured.first()) {
            ([], None) => None,
            ([], Some(host)) => Some(bench.traffic(host)?.to_string()),
            (hosts, _) => Some(format!("{} frames, 0 errors", bench.checked(hosts)?)),
        };
        Ok(measured.shown(traffic))
    }

    /// Starts virtual machines with these commands. Their files are in the bench's directory.
    fn start_guests<'a>(
        &self,
        bench: &'a Bench<'a>,
        program: &Program,
        options: &str,
        commands: &[String],
    ) -> Result<Running<'a>, NotMeasured> {
        let options: Vec<&str> = options.split_whitespace().collect();
        let of = |option| options.iter().skip_while(|word| **word != option).nth(1);
        let release = |option| of(option).unwrap_or(&DEFAULT_RELEASE);
        let linux = format!("linux-{}", release("--linux"));
        let programs = format!("guest-{}", release("--programs"));
        // Software that cannot be downloaded is not a failure.
        for software in ["qemu-debian14", &linux, &programs] {
            bench.userland(software)?;
        }
        let profile = self.profile.as_deref().unwrap_or(Profile::DEFAULT);
        let mut command = Command::new(&bench.launcher()?.efa_emu);
        command.args(["vm", "--fabric", bench.fabric(), "--profile", profile]);
        command.arg("--keep").arg(bench.directory());
        if let Some(file) = program.write_faults(bench)? {
            command.arg("--faults").arg(file);
        }
        command.args(options).arg("--").args(commands);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(bench, "efa-emu vm".into(), command)
    }

    fn mpi(&self, bench: &Bench) -> Result<Option<Installation>, NotMeasured> {
        let found = |name: &str| Installation::find(bench, Library::named(name)?);
        self.mpi.as_deref().map(found).transpose()
    }

    fn start_job<'a>(
        &self,
        bench: &'a Bench<'a>,
        program: &Program,
        job: &Job,
        variables: &Variables,
    ) -> Result<Running<'a>, NotMeasured> {
        let Some(installation) = self.mpi(bench)? else {
            return Err(failed!("a job takes a cell with `mpi`"));
        };
        let transport = Transport::named(&job.transport)?;
        let layout = job.layout()?;
        let (words, capture) = (program.words(variables)?, bench.capture(&job.capture));
        let mut command = installation.job(bench, transport, layout, &words, &capture)?;
        command.envs(&program.env);
        Running::start(bench, job.capture.clone(), command)
    }

    /// The values of `{NAME}`.
    fn variables(&self, bench: &Bench) -> Result<Variables, NotMeasured> {
        let root = match self.userland.as_str() {
            "" => String::new(),
            name => {
                let userland = bench.userland(name)?;
                let packages = userland.directory().join("root");
                // Wheels do not contain this directory.
                let root = match packages.is_dir() {
                    true => &packages,
                    false => userland.directory(),
                };
                root.display().to_string()
            }
        };
        let part = match bench.described_host("a")? {
            Some(described) => described.part_id().unwrap_or_default(),
            None => Profile::default().part_id,
        };
        let launcher = &bench.lab().launcher;
        let values = [
            ("emulator", launcher.efa_emu.display().to_string()),
            ("suite", launcher.efa_conformance.display().to_string()),
            ("data", bench.data(DATA)),
            ("device", DEVICE_NAME.to_owned()),
            ("dir", bench.directory().display().to_string()),
            ("part", format!("{part:#06x}")),
            ("path", std::env::var("PATH").unwrap_or_default()),
            ("root", root),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value));
        let mut variables = Variables::from(values);
        if let Some(installation) = self.mpi(bench)? {
            variables.extend(installation.programs());
        }
        if let Some(name) = &self.library {
            let release = Release::named(name)?;
            let userland = release.userland(bench)?;
            let library = release.library(userland.as_ref());
            // Software of another Debian release needs its dynamic linker.
            let runner = userland.map(|userland| format!("{} ", userland.runner().display()));
            let values = [
                ("library", library.display().to_string()),
                ("runner", runner.unwrap_or_default()),
            ];
            variables.extend(values.map(|(name, value)| (name.to_owned(), value)));
        }
        Ok(variables)
    }

    /// The host of a program, with the program's requirements.
    fn host<'a>(
        &self,
        bench: &'a Bench<'a>,
        program: &Program,
        variables: &Variables,
    ) -> Result<Host<'a>, NotMeasured> {
        let mut host = match program.release()? {
            Some(release) => release.programs(bench, &program.host)?,
            None => bench.host(&program.host),
        };
        if !self.userland.is_empty() {
            host = host.userland(&bench.userland(&self.userland)?);
        }
        if let Some(profile) = &self.profile {
            host = host.profile(profile);
        }
        if let Some(provider) = &program.provider {
            host = host.provider(provider);
        }
        if program.sysfs {
            host = host.devices_shown();
        }
        for (variable, value) in &program.env {
            host = host.env(variable, fill(value, variables));
        }
        if let Some(file) = program.write_faults(bench)? {
            host = host.option("--faults", &file);
        }
        Ok(match self.captured.contains(&program.host) {
            true => host.captured(),
            false => host,
        })
    }
}

impl Program {
    /// Writes the fault rules for its host, if any, to a file.
    fn write_faults(&self, bench: &Bench) -> Result<Option<PathBuf>, NotMeasured> {
        let Some(rules) = &self.faults else {
            return Ok(None);
        };
        let file = bench.directory().join(format!("{}-faults.toml", self.host));
        std::fs::write(&file, rules)
            .map_err(|error| failed!("cannot write {}: {error}", file.display()))?;
        Ok(Some(file))
    }

    fn release(&self) -> Result<Option<&'static Release>, NotMeasured> {
        Ok(self.release.as_deref().map(Release::named).transpose()?)
    }

    fn words(&self, variables: &Variables) -> Result<Vec<String>, NotMeasured> {
        let fabric = self.release()?.map_or("", |release| release.fabric);
        // The value may be several words, or none. The other values are parts of words.
        let run = self.run.replace("{fabric}", fabric);
        let words = split_words(&run).map_err(NotMeasured::failed)?;
        Ok(words.iter().map(|word| fill(word, variables)).collect())
    }
}

/// The output and traffic of a cell's programs.
#[derive(Default)]
struct Measured {
    figures: Vec<String>,
    /// Sums by the text of their figure.
    sums: BTreeMap<String, u64>,
    volume: Option<Volume>,
}

impl Measured {
    /// Stores a program's output, if that contains everything required.
    fn take(
        &mut self,
        program: &Program,
        finished: &Finished,
        variables: &Variables,
    ) -> Result<(), NotMeasured> {
        let printed = [finished.stdout.as_str(), &finished.stderr].concat();
        let words: Vec<&str> = printed.split_whitespace().collect();
        let line = words.join(" ");
        for text in &program.prints {
            let text = fill(text, variables);
            if !line.contains(&text) {
                return Err(failed!("`{text}` is not in\n{printed}"));
            }
        }
        for figure in &program.figures {
            let found = figure.of(&printed).map_err(NotMeasured::failed)?;
            match found.number {
                Some(number) if found.shown.contains("{sum}") => {
                    *self.sums.entry(found.shown).or_default() += number;
                }
                _ => self.figures.push(found.shown),
            }
        }
        Ok(())
    }

    fn shown(self, traffic: Option<String>) -> String {
        let sums = self.sums.iter();
        let sums = sums.map(|(shown, sum)| shown.replace("{sum}", &sum.to_string()));
        let volume = self.volume.map(|volume| volume.to_string());
        let all: Vec<String> = sums.chain(self.figures).chain(volume).collect();
        let all = all.join(", ");
        match traffic {
            Some(traffic) => format!("{all}; {traffic}"),
            None => all,
        }
    }
}

impl Job {
    /// Checks the traffic from the hosts to others.
    fn judge(&self, bench: &Bench) -> Result<Volume, NotMeasured> {
        let capture = bench.capture(&self.capture);
        let failed = |problem: String| {
            let text = format!("{}: {problem}: see {}", self.capture, capture.display());
            Err(NotMeasured::Failed(text))
        };
        let least = self.least()?;
        let hosts = Volume::of_hosts(&capture)?;
        let wanted = self.layout()?.hosts;
        if least > 0 && hosts.len() < wanted {
            return failed(format!("it has {} of {wanted} hosts", hosts.len()));
        }
        let devices = Volume::of_devices(&capture)?;
        for (host, sent) in &hosts {
            if sent.bytes < least {
                return failed(format!(
                    "{host} has sent {sent}, but {least} bytes must have gone to others"
                ));
            }
            let own = devices.iter().filter(|(device, volume)| {
                device.starts_with(&format!("{host}:")) && volume.bytes >= sent.bytes / 8
            });
            let used = own.count();
            if used < self.devices_used {
                return failed(format!(
                    "{host} has sent {sent}, of which only {used} devices had an eighth"
                ));
            }
        }
        if !self.one_of.is_empty() {
            let traffic = Traffic::of(&capture)?;
            if self.one_of.iter().all(|kind| traffic.count(kind) == 0) {
                return failed(format!("none of {:?}, only {traffic}", self.one_of));
            }
        }
        // It has hundreds of megabytes, and is not needed any more.
        let _ = std::fs::remove_file(&capture);
        Ok(hosts.into_values().sum())
    }
}

/// Runs a script on this machine.
fn set_up(bench: &Bench, script: &str) -> Result<(), NotMeasured> {
    let mut command = Command::new("sh");
    command.args(["-ec", script]);
    let done = |finished: Finished| match finished.status.code() {
        Some(LACKS) => Err(NotMeasured::Skipped(finished.stdout.trim().to_owned())),
        _ => Ok(()),
    };
    Running::start(bench, "set-up".into(), command)?
        .ended(|status| status.success() || status.code() == Some(LACKS))
        .and_then(done)
}

/// Waits for the exit of a program, which must be the expected one. If the program does not exit, a
/// server that has failed is the cause.
fn await_end(
    bench: &Bench,
    mut running: Running,
    program: &Program,
    servers: &mut Vec<Server>,
) -> Result<Finished, NotMeasured> {
    let has_failed = |Server { running, program }: &mut Server| {
        let ended = running.ends_within(Duration::ZERO);
        ended.is_some_and(|status| !program.ends.permits(status))
    };
    while running.ends_within(TICK).is_none() && !bench.left().is_zero() {
        if let Some(at) = servers.iter_mut().position(has_failed) {
            let Server { running, program } = servers.remove(at);
            let ended = running.ended(|status| program.ends.permits(status));
            return ended;
        }
    }
    match running.ended(|status| program.ends.permits(status)) {
        Err(NotMeasured::Failed(text)) => {
            let servers = servers.drain(..);
            let accounts = servers.map(|server| format!("\n{}", server.running.account()));
            Err(NotMeasured::Failed(text + &accounts.collect::<String>()))
        }
        ended => ended,
    }
}
