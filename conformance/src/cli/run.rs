//! `run`: replaying traces.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

use super::progress::Progress;
use super::{Outcome, complain, say};
use crate::compare::Severity;
use crate::drive::Identity;
use crate::drive::serve::Engine;
use crate::libfabric::Library;
use crate::player::{ANSWER_TIME, Player, Program, split_words};
use crate::replay::emu::Emu;
use crate::replay::hw::{Hw, Outside};
use crate::suite::{self, Case, Options, Results, Summary};
use crate::trace::Trace;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendChoice {
    /// The deterministic emulator, in this process.
    Emu,
    /// Verbs: an EFA device, or the emulated one of `efa-emu run`.
    Hw,
    /// Both.
    All,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Dut {
    Core,
    Libfabric,
    Exec(Vec<String>),
}

impl FromStr for Dut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("exec:")) {
            ("core", _) => Ok(Dut::Core),
            ("libfabric", _) => Ok(Dut::Libfabric),
            (_, Some(command)) => split_words(command).map(Dut::Exec).map_err(|problem| {
                format!(
                    "the command is not usable: {problem}; write for example exec:'./program -x'"
                )
            }),
            _ => Err(
                "write `core`, `libfabric`, or `exec:` and the command that starts a program \
                      of yours (docs/driver.md)"
                    .into(),
            ),
        }
    }
}

#[derive(clap::Args)]
pub(super) struct Run {
    /// Traces, or directories of traces.
    #[arg(default_value = "traces")]
    traces: Vec<PathBuf>,
    /// Where the two sides meet.
    #[arg(long, value_enum, default_value = "emu")]
    backend: BackendChoice,
    /// What is under test: `core`, the protocol engine; `libfabric`, stock libfabric; or
    /// `exec:COMMAND`, a program of yours that speaks the driver protocol (docs/driver.md). The
    /// latter two only with `--backend hw`.
    #[arg(long, value_name = "WHAT", default_value = "core")]
    dut: Dut,
    /// How long a program under test may take to answer a command before it counts as hung.
    #[arg(long, value_name = "SECONDS", default_value_t = ANSWER_TIME.as_secs(),
          value_parser = clap::value_parser!(u64).range(1..))]
    answer_time: u64,
    /// The commit that what is under test was built from, for the reports.
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,
    /// The libfabric to put under test.
    #[arg(long, value_name = "PATH", default_value = Library::DEFAULT)]
    libfabric: PathBuf,
    /// Also replay each trace in this many different networks that reorder, lose and refuse packets;
    /// the applications must see the same.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seeds: u64,
    /// Also fail on what an implementation should do but need not.
    #[arg(long)]
    strict: bool,
    /// Where captures of failed cases go; the default is in the directory for temporary files.
    #[arg(long, value_name = "DIRECTORY")]
    captures: Option<PathBuf>,
    /// Only traces whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as a page of HTML.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(arguments: &Run) -> Outcome {
    let mut outside = match &arguments.dut {
        Dut::Core => None,
        Dut::Libfabric => Some(Program::Libfabric {
            library: arguments.libfabric.clone(),
        }),
        Dut::Exec(words) => Some(Program::Exec {
            words: words.clone(),
        }),
    }
    .map(|program| Outside {
        program,
        limit: Duration::from_secs(arguments.answer_time),
    });
    if outside.is_some() && arguments.backend != BackendChoice::Hw {
        let problem = "only the engine runs in the emulator of this process; put other \
                       implementations under test with --backend hw";
        return complain(problem, Outcome::Unfit);
    }
    let paths = match suite::find_traces(&arguments.traces, arguments.filter.as_deref()) {
        Ok(paths) => paths,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    let wants = |choice| arguments.backend == choice || arguments.backend == BackendChoice::All;
    let mut emu = wants(BackendChoice::Emu).then(Emu::orderly);
    let mut hw = None;
    if wants(BackendChoice::Hw) {
        match Hw::open_device() {
            Ok(device) => hw = Some(device),
            Err(error) => return complain(error, Outcome::Unfit),
        }
    }
    let mut under_test = match outside.as_ref().map_or(Ok(Engine::identity()), identify) {
        Ok(identity) => identity,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    under_test.commit = arguments.commit.clone().or(under_test.commit);
    say(format_args!("under test: {}", under_test.details()));
    let options = Options {
        seeds: arguments.seeds,
        fail_on: if arguments.strict {
            Severity::Should
        } else {
            Severity::Must
        },
        captures: Some(
            arguments
                .captures
                .clone()
                .unwrap_or_else(|| std::env::temp_dir().join("efa-conformance-failed")),
        ),
    };
    // Seeds decide about the emulated network only.
    let on_verbs = Options {
        seeds: 0,
        ..options.clone()
    };
    let progress = Progress::new(paths.len());
    let mut cases: Vec<Case> = Vec::new();
    let mut unfit = Vec::new();
    for path in &paths {
        progress.begin(&suite::name_of(path));
        let trace = match Trace::load(path) {
            Ok(trace) => trace,
            Err(error) => {
                unfit.push(error.to_string());
                continue;
            }
        };
        let mut results = Vec::new();
        if let Some(backend) = &mut emu {
            results.push(suite::run_engine(&trace, backend, &options));
        }
        if let Some(backend) = &mut hw {
            results.push(match &mut outside {
                Some(outside) => {
                    suite::run_outside(&trace, backend, &under_test.name, outside, &on_verbs)
                }
                None => suite::run_engine(&trace, backend, &on_verbs),
            });
        }
        let mut ended = Vec::new();
        for result in results {
            match result {
                Ok(cases) => ended.extend(cases),
                Err(error) => unfit.push(format!("{}: {error}", path.display())),
            }
        }
        progress.end(&ended);
        cases.extend(ended);
    }
    progress.finish();
    say_causes(&cases, arguments);
    say(Summary::of(&cases));
    let results = Results { under_test, cases };
    for problem in &unfit {
        eprintln!("efa-conformance: {problem}");
    }
    let reports: [(&Option<PathBuf>, Writer); 3] = [
        (&arguments.junit, suite::junit::write),
        (&arguments.json, suite::json::write),
        (&arguments.html, suite::html::write),
    ];
    for (path, write) in reports {
        if let Some(path) = path
            && let Err(error) = write(&results, path)
        {
            let problem = format!("cannot write {}: {error}", path.display());
            return complain(problem, Outcome::Unfit);
        }
    }
    if results.cases.iter().any(Case::failed) {
        Outcome::Failed
    } else if !unfit.is_empty() {
        Outcome::Unfit
    } else {
        Outcome::Passed
    }
}

/// Says why cases failed, and how to repeat one of each kind.
fn say_causes(cases: &[Case], arguments: &Run) {
    let causes = suite::causes(cases);
    if causes.is_empty() {
        return;
    }
    say("\nfailed, by the first thing that went wrong:");
    for cause in causes {
        let first = cause.cases[0];
        say(format_args!("  {} of {}", cause.cases.len(), cause.text));
        let dut = match &arguments.dut {
            Dut::Core => String::new(),
            Dut::Libfabric => {
                format!(
                    " --dut libfabric --libfabric {}",
                    arguments.libfabric.display()
                )
            }
            Dut::Exec(words) => format!(" --dut \"exec:{}\"", words.join(" ")),
        };
        let strict = if arguments.strict { " --strict" } else { "" };
        say(format_args!(
            "      efa-conformance run {} --backend {}{dut}{strict}",
            first.path.display(),
            first.backend,
        ));
    }
}

/// Starts a program once to hear what it is: one that cannot be started at all, or that is no program
/// for this, is no result of any case.
fn identify(outside: &Outside) -> Result<Identity, String> {
    let started = Player::launch_here(
        "under-test",
        &outside.program,
        &BTreeMap::new(),
        outside.limit,
    );
    let identity = started.and_then(|mut player| player.identity());
    identity.map_err(|error| match &outside.program {
        Program::Exec { words } => format!(
            "--dut exec:{}: {error}; it has to answer `hello version=1` on its standard output \
             (docs/driver.md)",
            words.join(" ")
        ),
        _ => error.to_string(),
    })
}

type Writer = fn(&Results, &Path) -> std::io::Result<()>;
