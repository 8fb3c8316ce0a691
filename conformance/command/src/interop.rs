//! `interop`: the table of software that must work on emulated devices.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::corpus;
use crate::outcome::{Outcome, complain, say};
use crate::places::{HostOptions, explain};
use crate::progress::Progress;
use crate::record::SoftwareOptions;
use efa_commands::installation::Installation;
use efa_interop::{
    self as interop, Cell, GROUPS, Hosts, HostsError, Lab, Results, Row, Selection, Shard, Summary,
};
use efa_play::player::{Launcher, Timeouts};
use efa_suite::hosts::HostAssignment;
use efa_suite::parallel;

#[derive(clap::Args)]
pub(crate) struct Interop {
    /// Scenarios, or directories of scenarios, of the group `scenarios`. Naming them leaves the
    /// other groups out.
    scenarios: Vec<PathBuf>,
    /// Only this group.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Only cells whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only one of several parts of the table, such as 3/12.
    #[arg(long, value_name = "NUMBER/OF")]
    shard: Option<Shard>,
    /// How many cells run at once.
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    jobs: NonZeroUsize,
    /// Do not run again what passed with this source before; target/interop/results has it.
    #[arg(long)]
    resume: bool,
    /// Write how the cells of all parts ended with this source, as Markdown.
    #[arg(long, value_name = "FILE", requires = "resume", value_parser = crate::outcome::report_file())]
    table: Option<PathBuf>,
    /// Keep captures and output of cells here instead of in target/interop. What runs at once needs
    /// a directory each.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print the cells instead of running them.
    #[arg(long)]
    list: bool,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE", value_parser = crate::outcome::report_file())]
    junit: Option<PathBuf>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE", value_parser = crate::outcome::report_file())]
    json: Option<PathBuf>,
    #[command(flatten)]
    software: SoftwareOptions,
    #[command(flatten)]
    hosts: HostOptions,
}

type Writer = fn(&[Row], &Path) -> std::io::Result<()>;

pub(crate) fn interop(arguments: &mut Interop) -> Outcome {
    let ended = arguments.hosts.find_job();
    let ended = ended.and_then(|()| table(arguments));
    ended.unwrap_or_else(|problem| complain(problem, Outcome::Unfit))
}

/// The pairs of hosts on which the cells run; `None` for emulated ones.
fn places(options: &HostOptions) -> Result<Vec<Option<Hosts>>, String> {
    if !options.are_named() {
        return Ok(vec![None]);
    }
    let reach = options.access.reach(Timeouts::DEFAULT.start);
    let recording = options.recording();
    let pair = |assignment: HostAssignment| match assignment {
        HostAssignment::Pair { pair, .. } => Ok(pair),
        HostAssignment::Named(mut places) => {
            match (places.remove("a"), places.remove("b"), places.len()) {
                (Some(a), Some(b), 0) => Ok([a, b]),
                _ => Err(
                    "the sides are `a`, which starts, and `b`: name both with --at a=HOST --at b=HOST",
                ),
            }
        }
    };
    let assignments = options
        .assignments(&reach, &mut BTreeSet::new(), explain)?
        .into_iter();
    let hosts = assignments.map(|assignment| {
        let hosts = Hosts::ask(reach.clone(), pair(assignment)?, recording.as_ref());
        hosts.map_err(|error| match error {
            HostsError::Place(error) => explain(&error),
            HostsError::Device(_) => error.to_string(),
        })
    });
    hosts.map(|hosts| hosts.map(Some)).collect()
}

/// The output of git in the current directory.
fn git(words: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(words).output();
    let output = output.map_err(|error| format!("--resume: cannot run git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "--resume: git {}: {}; run it in a clone of the project",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// The results for this commit including uncommitted changes, and its name.
fn results_of_source() -> Result<(Results, String), String> {
    let commit = git(&["log", "-1", "--format=%h of %cs"])?.trim().to_owned();
    let changes = git(&["diff", "HEAD"])?;
    let (mut name, mut title) = (git(&["rev-parse", "HEAD"])?.trim().to_owned(), commit);
    if !changes.is_empty() {
        let mut hasher = DefaultHasher::new();
        changes.hash(&mut hasher);
        name += &format!("-{:016x}", hasher.finish());
        title += ", changed";
    }
    let path = PathBuf::from(format!("target/interop/results/{name}.jsonl"));
    let results = Results::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((results, title))
}

fn table(arguments: &Interop) -> Result<Outcome, String> {
    let launcher =
        Launcher::new(arguments.software.efa_emu.clone()).map_err(|error| error.to_string())?;
    let only = (!arguments.scenarios.is_empty()).then_some("scenarios");
    let scenarios = Selection {
        paths: corpus::or_named(&arguments.scenarios)?,
        stock: arguments.software.stock(),
    };
    let installation = Installation::of_this_program()
        .map_err(|error| format!("cannot find this program's own file: {error}"))?;
    let mut lab =
        Lab::new(&installation, launcher, scenarios).map_err(|error| error.to_string())?;
    if let Some(directory) = &arguments.directory {
        let directory = std::path::absolute(directory);
        let directory = directory.map_err(|error| format!("--directory: {error}"))?;
        lab = lab.in_directory(directory);
    }
    let group = arguments.group.as_deref().or(only);
    let all = interop::select(&lab, group, arguments.filter.as_deref())
        .map_err(|error| error.to_string())?;
    let is_in_part = |cell: &&Cell| {
        let shard = arguments.shard;
        shard.is_none_or(|shard| shard.takes(cell.group(), cell.name()))
    };
    let cells: Vec<&Cell> = all.iter().filter(is_in_part).collect();
    if arguments.list {
        for group in GROUPS {
            let mut names = cells
                .iter()
                .filter(|cell| cell.group() == group.name)
                .peekable();
            if names.peek().is_some() {
                say(format_args!("{}: {}", group.name, group.about));
            }
            for cell in names {
                say(format_args!("  {}", cell.name()));
            }
        }
        return Ok(Outcome::Passed);
    }
    let places = places(&arguments.hosts)?;
    if arguments.resume && arguments.hosts.are_named() {
        return Err("--resume keeps results of emulated hosts; leave it out with --at".to_owned());
    }
    let mut results = arguments.resume.then(results_of_source).transpose()?;
    let mut rows = Vec::new();
    let kept = |cell: &&Cell| results.as_ref().and_then(|(results, _)| results.kept(cell));
    rows.extend(cells.iter().filter_map(kept).cloned());
    let cells: Vec<&Cell> = cells
        .into_iter()
        .filter(|cell| kept(cell).is_none())
        .collect();
    if !rows.is_empty() {
        say(format_args!(
            "{} cells passed with this source before",
            rows.len()
        ));
    }
    let progress = Progress::new(cells.len() * places.len());
    for hosts in places {
        lab = lab.with_hosts(hosts);
        let mut workers = vec![(); arguments.jobs.get()];
        let run = |_: &mut (), cell: &&Cell| {
            progress.begin(&format!("{} {}", cell.group(), cell.name()));
            cell.run(&lab)
        };
        let mut ended = BTreeMap::new();
        let mut failed = Ok(());
        parallel::as_they_end(&cells, &mut workers, run, |at, row| {
            progress.end(std::slice::from_ref(&row));
            if let (Some((results, _)), Ok(())) = (&mut results, &failed) {
                failed = results.keep(&row);
            }
            ended.insert(at, row);
        });
        failed.map_err(|error| format!("target/interop/results: {error}"))?;
        rows.extend(ended.into_values());
    }
    progress.finish();
    say(Summary::of(&rows));
    let reports: [(&Option<PathBuf>, Writer); 2] = [
        (&arguments.junit, interop::report::junit),
        (&arguments.json, interop::report::json),
    ];
    for (path, write) in reports {
        if let Some(path) = path {
            write(&rows, path)
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
    }
    if let (Some(path), Some((results, commit))) = (&arguments.table, &results) {
        let text = results.table(&all, &format!("At commit {commit}:"));
        std::fs::write(path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(if rows.iter().any(Row::failed) {
        Outcome::Failed
    } else {
        Outcome::Passed
    })
}
