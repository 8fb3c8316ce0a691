//! `doctor`: checks whether a machine is fit for EFA.

use std::collections::BTreeMap;
use std::path::PathBuf;

use efa_doctor::doctor::{self, Finding, Level, Machine, probe};
use efa_play::player::{HostDevice, RemoteAccess, RemoteShell, Timeouts};
use serde::Serialize;

use crate::outcome::{Outcome, complain, say};

#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Also exchange messages over EFA with this host; repeatable.
    #[arg(long, value_name = "HOST[%DEVICE]")]
    peer: Vec<HostDevice>,
    /// The command that starts commands on other hosts, with the arguments of ssh.
    #[arg(long, value_name = "COMMAND", default_value = RemoteShell::DEFAULT)]
    rsh: RemoteShell,
    /// `efa-conformance` on the other hosts: a path, or a name for the shell there.
    #[arg(long, value_name = "PROGRAM", default_value = "efa-conformance")]
    remote_program: String,
    /// Look at the machine whose files are below this directory, such as a container's. Its
    /// libraries are not loaded, its devices not opened.
    #[arg(long, value_name = "DIR", conflicts_with = "peer")]
    root: Option<PathBuf>,
    /// Fail if a finding is at least this severe: `error`, or `warning` for features that are slow,
    /// or that do not work for every program.
    #[arg(long, value_name = "SEVERITY", default_value = "error", value_parser = severity)]
    fail_on: Level,
    /// Print the findings as one JSON object; see docs/json.md.
    #[arg(long)]
    json: bool,
    /// Ask a library or a device, in the process that `doctor` starts for it.
    #[arg(long, hide = true, value_name = "QUESTION")]
    probe: Option<probe::Question>,
}

/// The output of `--json`.
#[derive(Serialize)]
pub(crate) struct Diagnosis {
    version: &'static str,
    result: Level,
    counts: BTreeMap<&'static str, usize>,
    findings: Vec<Finding>,
}

impl Diagnosis {
    fn of(findings: Vec<Finding>) -> Diagnosis {
        let count = |level| {
            findings
                .iter()
                .filter(|finding| finding.level == level)
                .count()
        };
        Diagnosis {
            version: env!("CARGO_PKG_VERSION"),
            result: doctor::worst(&findings),
            counts: Level::ALL.map(|level| (level.name(), count(level))).into(),
            findings,
        }
    }
}

pub(crate) fn doctor(arguments: &Doctor) -> Outcome {
    if let Some(question) = &arguments.probe {
        return match serde_json::to_string(&probe::answer(question)) {
            Ok(answer) => {
                say(answer);
                Outcome::Passed
            }
            Err(error) => complain(error, Outcome::Unfit),
        };
    }
    let diagnosis = match diagnose(arguments) {
        Ok(diagnosis) => diagnosis,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    if arguments.json {
        match serde_json::to_string_pretty(&diagnosis) {
            Ok(text) => say(text),
            Err(error) => return complain(error, Outcome::Unfit),
        }
    } else {
        say_text(&diagnosis);
    }
    match diagnosis.result >= arguments.fail_on {
        true => Outcome::Failed,
        false => Outcome::Passed,
    }
}

/// The levels at which a machine can be reported unfit.
fn severity(name: &str) -> Result<Level, String> {
    let known = [Level::Error, Level::Warning];
    let found = known.into_iter().find(|level| level.name() == name);
    found.ok_or_else(|| "a severity is error or warning".to_owned())
}

fn diagnose(arguments: &Doctor) -> Result<Diagnosis, String> {
    let machine = match &arguments.root {
        Some(root) if !root.is_dir() => {
            return Err(format!(
                "{} is not a directory: name the root of a machine's files",
                root.display()
            ));
        }
        Some(root) => Machine::below(root, BTreeMap::new()),
        None => this_machine()?,
    };
    let mut findings = doctor::examine(&machine);
    let reach = RemoteAccess {
        shell: arguments.rsh.clone(),
        program: arguments.remote_program.clone(),
        limit: Timeouts::DEFAULT.start,
    };
    let peers = arguments.peer.iter();
    let options = "--rsh, --remote-program";
    findings.extend(peers.map(|place| doctor::reach(place, &reach, options)));
    Ok(Diagnosis::of(findings))
}

/// The doctor's findings about this machine.
pub(crate) fn of_this_machine() -> Result<Diagnosis, String> {
    Ok(Diagnosis::of(doctor::examine(&this_machine()?)))
}

fn this_machine() -> Result<Machine, String> {
    std::env::current_exe()
        .map(Machine::this)
        .map_err(|error| format!("cannot find this program's own file: {error}"))
}

fn say_text(diagnosis: &Diagnosis) {
    for finding in &diagnosis.findings {
        let subject = match &finding.subject {
            Some(subject) => format!("{subject}: "),
            None => String::new(),
        };
        let (level, check) = (finding.level.name(), finding.check);
        say(format_args!(
            "{level:<8} {check:<13} {subject}{}",
            finding.value
        ));
        if let Some(remedy) = &finding.remedy {
            say(format_args!("{:<8} {:<13} -> {remedy}", "", ""));
        }
    }
    let counts = &diagnosis.counts;
    say(format_args!(
        "errors: {}, warnings: {}, notes: {}",
        counts["error"], counts["warning"], counts["note"]
    ));
}
