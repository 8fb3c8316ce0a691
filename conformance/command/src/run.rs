//! `run`: replaying traces.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use efa_core::rules::Severity;
use efa_device_model::profile::Profile;
use efa_play::drive::serve::Engine;
use efa_play::drive::{Command, Identity, Line, VERSION};
use efa_play::libfabric::{Library, Provider};
use efa_play::player::{PlaceError, PlayerError, Program, Timeouts, join};
use efa_replay::replay::program_opener::ProgramOpener;
use efa_replay::tagged::TagTrace;
use efa_shm::{HostConfig, NetworkOptions};
use efa_suite::each_event::Changes;
use efa_suite::expected::Expected;
use efa_suite::hosts::{Hosts, Task};
use efa_suite::jobs::{self, JobsError};
use efa_suite::json::{CaseReport, FailureGroup, Report};
use efa_suite::pairs::Matrix;
use efa_suite::runner::Settings;
use efa_suite::{Case, Options, TraceResult, parallel};

use crate::check::severity;
use crate::corpus;
use crate::dut::Dut;
use crate::origin::RunStart;
use crate::outcome::{Outcome, complain, say};
use crate::places::{self, Places};
use crate::progress::Progress;
use crate::provider::ProviderOptions;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendChoice {
    /// The deterministic emulator, in this process.
    Emu,
    /// Verbs: an EFA device, or the emulated one of `efa-emu run`.
    Hw,
    /// Both.
    All,
}

#[derive(clap::Args)]
pub(crate) struct Run {
    /// The traces, or directories of traces; without any, the corpus that belongs to this program.
    traces: Vec<PathBuf>,
    /// The network between the two sides.
    #[arg(long, value_enum, default_value = "emu",
          conflicts_with_all = ["at", "hosts", "hostfile", "pairs"])]
    backend: BackendChoice,
    /// The implementation under test: `core`, the protocol engine; `libfabric`, stock libfabric; or
    /// `exec:COMMAND`, a program of yours that implements the driver protocol (docs/driver.md).
    /// `libfabric` and `exec:COMMAND` need `--backend hw`.
    #[arg(long, value_name = "WHAT", default_value = "core")]
    dut: Dut,
    /// The time that a program under test may take to start, until it answers `hello`, before it
    /// counts as hung.
    #[arg(long, value_name = "SECONDS", default_value_t = Timeouts::DEFAULT.start.as_secs(),
          value_parser = clap::value_parser!(u64).range(1..))]
    start_time: u64,
    /// The time that a program under test may take to answer another command before it counts as
    /// hung.
    #[arg(long, value_name = "SECONDS", default_value_t = Timeouts::DEFAULT.answer.as_secs(),
          value_parser = clap::value_parser!(u64).range(1..))]
    answer_time: u64,
    /// The commit from which the implementation under test was built, for the reports.
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,
    /// The libfabric to put under test.
    #[arg(long, value_name = "PATH", default_value = Library::DEFAULT)]
    libfabric: PathBuf,
    #[command(flatten)]
    provider: ProviderOptions,
    /// With `--backend emu`, also replay each trace in this many networks that reorder, lose and
    /// refuse packets; the results of the applications must be the same.
    #[arg(long, value_name = "N", default_value_t = 0,
          conflicts_with_all = ["at", "hosts", "hostfile", "pairs"])]
    seeds: u64,
    /// With `--backend emu`, also replay each trace once for each single request and completion of
    /// its run, which is late (`delay`), refused (`refuse`) or failed (`fail`); `all` for the three
    /// changes.
    #[arg(long, value_name = "CHANGE", conflicts_with_all = ["at", "hosts", "hostfile", "pairs"])]
    each_event: Option<Changes>,
    /// Run this many traces at once, each in its own emulated fabric; with more than one, fault
    /// rules on the fabric of this process have no effect.
    #[arg(long, value_name = "N", default_value = "1")]
    jobs: NonZeroU16,
    /// Fail if a finding is at least this severe.
    #[arg(long, value_name = "SEVERITY", default_value = "error", value_parser = severity)]
    fail_on: Severity,
    /// Also fail if an implementation violates a recommendation: `--fail-on warning`.
    #[arg(long, conflicts_with = "fail_on")]
    strict: bool,
    /// The directory for captures of failed cases; the default is in the directory for temporary
    /// files.
    #[arg(long, value_name = "DIRECTORY")]
    captures: Option<PathBuf>,
    /// The cases that the implementation under test is known to fail, and why
    /// (docs/conformance.md). For releases of stock libfabric, the default is the program's own
    /// list.
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,
    /// Only traces whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE", value_parser = crate::outcome::report_file())]
    junit: Option<PathBuf>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE", value_parser = crate::outcome::report_file())]
    json: Option<PathBuf>,
    /// Write the results as a page of HTML; `report` makes one page of several runs.
    #[arg(long, value_name = "FILE", value_parser = crate::outcome::report_file())]
    html: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
}

impl Run {
    fn timeouts(&self) -> Timeouts {
        Timeouts {
            start: Duration::from_secs(self.start_time),
            answer: Duration::from_secs(self.answer_time),
        }
    }

    fn options(&self) -> Options {
        Options {
            seeds: self.seeds,
            each_event: self.each_event.clone().unwrap_or_default(),
            fail_on: if self.strict {
                Severity::Warning
            } else {
                self.fail_on
            },
            ladders: self.html.is_some() || self.json.is_some(),
            captures: Some(
                self.captures
                    .clone()
                    .unwrap_or_else(|| std::env::temp_dir().join("efa-conformance-failed")),
            ),
        }
    }

    /// The given traces, or those of the corpus.
    fn traces(&self) -> Result<Traces, String> {
        let named = corpus::or_named(&self.traces)?;
        let found = efa_suite::find_cases(&named, self.filter.as_deref());
        let found = found.map_err(|error| error.to_string())?;
        let why_not = self.why_no_tags();
        let is_left_out = |path: &PathBuf| why_not.is_some() && TagTrace::is_one(path);
        let (left_out, played) = found.into_iter().partition(is_left_out);
        Ok(Traces {
            played,
            left_out,
            why_not: why_not.unwrap_or_default(),
        })
    }

    /// The reason why traces of tag matching are not played, if any.
    fn why_no_tags(&self) -> Option<&'static str> {
        if self.places.hosts.are_named() {
            return Some(
                "tag matching is played over the devices of one machine; run it there, without \
                 other hosts",
            );
        }
        (self.dut != Dut::Core).then_some(
            "in tag matching devices are under test, and no endpoint of libfabric takes part; \
             `--dut core` plays it",
        )
    }
}

/// The traces to run.
struct Traces {
    played: Vec<PathBuf>,
    /// Traces of tag matching that are not played, with the reason.
    left_out: Vec<PathBuf>,
    why_not: &'static str,
}

pub(crate) fn run(mut arguments: Run) -> Outcome {
    let origin = RunStart::now();
    let outcome = arguments.places.hosts.find_job().and_then(|()| {
        if arguments.places.hosts.are_named() {
            run_on_hosts(&arguments, &origin)
        } else {
            replay(&arguments, &origin)
        }
    });
    outcome.unwrap_or_else(|problem| complain(problem, Outcome::Unfit))
}

/// Replays the traces on this machine.
fn replay(arguments: &Run, origin: &RunStart) -> Result<Outcome, String> {
    let library = &arguments.libfabric;
    // The dynamic linker searches for a name without a directory.
    if matches!(arguments.dut, Dut::Libfabric) && library.components().count() > 1 {
        std::fs::metadata(library)
            .map_err(|error| format!("--libfabric {}: {error}", library.display()))?;
    }
    let mut outside = match &arguments.dut {
        Dut::Core => None,
        dut => Some(ProgramOpener::new(
            dut.program(library, arguments.provider.provider()),
            arguments.timeouts(),
        )),
    };
    if outside.is_some() && arguments.backend != BackendChoice::Hw {
        return Err(
            "only the engine runs in the emulator of this process; put other implementations \
             under test with --backend hw"
                .into(),
        );
    }
    if arguments.backend == BackendChoice::Hw
        && (arguments.seeds > 0 || arguments.each_event.is_some())
    {
        return Err(
            "--seeds and --each-event change the emulator of this process, and nothing is played \
             there; leave them out, or add it with --backend all"
                .into(),
        );
    }
    let traces = arguments.traces()?;
    let wants = |choice| arguments.backend == choice || arguments.backend == BackendChoice::All;
    let introduced = outside.as_mut().map_or(Ok(Engine::identity()), introduce);
    let was_introduced = introduced.is_ok();
    let under_test = match introduced {
        Ok(identity) => identity,
        // The cases fail; the reports name the program that was started.
        Err(error) if error.is_program => {
            eprintln!("efa-conformance: {}", error.text);
            error.started
        }
        Err(error) => return Err(error.text),
    };
    let steps = traces.played.len();
    let mut results = Results::begin(arguments, under_test, Expected::of, steps, &traces)?;
    let settings = Settings {
        emu: wants(BackendChoice::Emu),
        hw: wants(BackendChoice::Hw),
        outside,
        dut: results.under_test.name.clone(),
        options: arguments.options(),
    };
    let jobs = NonZeroUsize::from(arguments.jobs);
    let ran = jobs::run_all(
        &traces.played,
        &settings,
        jobs,
        super::job::command,
        |path, ended| results.add(path, ended),
    );
    ran.map_err(|error| match error {
        JobsError::RealDevice { .. } => format!("{error}; use --jobs 1"),
        _ => error.to_string(),
    })?;
    results.conclude(origin, was_introduced)
}

/// Plays the scenarios of the traces on the named hosts.
fn run_on_hosts(arguments: &Run, origin: &RunStart) -> Result<Outcome, String> {
    let traces = arguments.traces()?;
    let provider = arguments.provider.provider();
    let program = arguments.dut.program(&arguments.libfabric, provider);
    let timeouts = arguments.timeouts();
    let reach = arguments.places.hosts.access.reach(timeouts.start);
    let mut unrecorded = BTreeSet::new();
    let assignments = arguments
        .places
        .hosts
        .assignments(&reach, &mut unrecorded, explain)?;
    let peer = arguments.places.peer();
    let peer = peer.map(|peer| peer.program(&arguments.libfabric, Provider::efa()));
    let under_test = places::introduce(&assignments, &reach, &program, peer.as_ref(), timeouts)?;
    // The lists of expected failures that are part of the program only apply to replays.
    let usual = |_: &Identity| Expected::default();
    let steps = assignments.len() * traces.played.len();
    let mut results = Results::begin(arguments, under_test, usual, steps, &traces)?;
    let hosts = Hosts::new(
        reach,
        program,
        peer,
        results.under_test.name.clone(),
        timeouts,
        arguments.options(),
    )
    .recorded(arguments.places.hosts.recording(), unrecorded);
    let tasks: Vec<Task> = assignments
        .iter()
        .flat_map(|assignment| {
            traces.played.iter().map(|path| Task {
                path: path.clone(),
                assignment: assignment.clone(),
            })
        })
        .collect();
    let mut workers = vec![(); arguments.jobs.get().into()];
    let play = |_: &mut (), task: &Task| hosts.run(task);
    parallel::in_order(&tasks, &mut workers, play, |task, ended| {
        results.add(&task.path, ended);
    });
    results.conclude(origin, true)
}

/// The error of a place, with the option that remedies it.
fn explain(error: &PlaceError) -> String {
    match error {
        PlaceError::Silent { .. } => format!("{error}, or give it more time with --start-time"),
        _ => places::explain(error),
    }
}

/// The results of a run, which are shown as they arrive.
struct Results<'r> {
    arguments: &'r Run,
    under_test: Identity,
    expected: Expected,
    progress: Progress,
    all: TraceResult,
}

impl<'r> Results<'r> {
    /// Begins with the results of excluded traces, before `steps` that are played. `usual` returns
    /// the expected failures without `--expected`.
    fn begin(
        arguments: &'r Run,
        mut under_test: Identity,
        usual: impl FnOnce(&Identity) -> Expected,
        steps: usize,
        traces: &Traces,
    ) -> Result<Self, String> {
        under_test.commit = arguments.commit.clone().or(under_test.commit);
        say(format_args!("under test: {}", under_test.details()));
        let mut results = Results {
            arguments,
            expected: match &arguments.expected {
                None => usual(&under_test),
                Some(path) => Expected::load(path).map_err(|error| error.to_string())?,
            },
            under_test,
            progress: Progress::new(traces.left_out.len() + steps),
            all: TraceResult::default(),
        };
        let backend = match arguments.places.hosts.are_named() {
            true => efa_suite::hosts::BACKEND,
            false => "hw",
        };
        for path in &traces.left_out {
            results.add(path, efa_suite::leave_out(path, backend, traces.why_not));
        }
        Ok(results)
    }

    /// Adds the results of a trace.
    fn add(&mut self, path: &Path, mut ended: TraceResult) {
        for case in &mut ended.cases {
            self.expected.judge(case);
        }
        self.progress.begin(&efa_suite::name_of(path));
        self.progress.end(&ended.cases);
        self.all.cases.extend(ended.cases);
        self.all.unfit.extend(ended.unfit);
    }

    /// Prints the summary, and writes the reports.
    fn conclude(self, origin: &RunStart, was_introduced: bool) -> Result<Outcome, String> {
        self.progress.finish();
        let arguments = self.arguments;
        let repeat = |case: &Case| command_for(case, arguments);
        let report = &Report::of(self.under_test, origin.report(), &self.all.cases, repeat);
        say_causes(&report.causes());
        if report.pairs.len() > 1 {
            say(format_args!("\n{}\n", Matrix::of(&report.pairs)));
        }
        let summary = report.summary;
        say(summary);
        for problem in &self.all.unfit {
            eprintln!("efa-conformance: {problem}");
        }
        type Writer<'r> = &'r dyn Fn(&Path) -> std::io::Result<()>;
        let reports: [(&Option<PathBuf>, Writer<'_>); 3] = [
            (&arguments.junit, &|path| {
                efa_suite::junit::of(report).write(path)
            }),
            (&arguments.json, &|path| report.write(path)),
            (&arguments.html, &|path| {
                efa_suite::html::write(std::slice::from_ref(report), path)
            }),
        ];
        for (path, write) in reports {
            if let Some(path) = path
                && let Err(error) = write(path)
            {
                return Err(format!("cannot write {}: {error}", path.display()));
            }
        }
        if summary.failed > 0 {
            Ok(Outcome::Failed)
        } else if !self.all.unfit.is_empty() {
            Ok(Outcome::Unfit)
        } else if !was_introduced && summary.unsupported == report.cases.len() {
            Err("nothing was tested: the program never answered `hello`".into())
        } else {
            Ok(Outcome::Passed)
        }
    }
}

/// Prints the causes of failures, each with a command that repeats one of its cases.
fn say_causes(causes: &[FailureGroup<&CaseReport>]) {
    if causes.is_empty() {
        return;
    }
    say("\nfailed, by the first thing that went wrong:");
    for cause in causes {
        say(format_args!("  {}{}", cause.heading, cause.like_it()));
        say(format_args!("      {}", cause.cases[0].repeat));
    }
}

/// The command that repeats a case, for a shell.
fn command_for(case: &Case, arguments: &Run) -> String {
    let mut words: Vec<String> = Vec::new();
    let is_over_verbs = case.backend != "emu";
    let is_here = case.places.is_empty();
    if is_over_verbs
        && is_here
        && let Ok(host) = HostConfig::from_env()
    {
        words.extend(["efa-emu", "run"].map(String::from));
        if host.profile != Profile::DEFAULT {
            words.extend(["--profile".into(), host.profile]);
        }
        // The options have the same names on the command line.
        let network = host.network.to_string();
        let usual = NetworkOptions::default().to_string();
        let usual: Vec<&str> = usual.split(',').collect();
        let unusual = network.split(',').filter(|option| !usual.contains(option));
        words.extend(unusual.map(|option| format!("--{option}")));
        words.push("--".into());
    }
    words.extend(["efa-conformance", "run"].map(String::from));
    words.push(case.path.display().to_string());
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    if is_here {
        option("--backend", case.backend.to_string());
    }
    for (name, value) in arguments.places.words(case) {
        option(name, value);
    }
    if is_over_verbs {
        if arguments.dut != Dut::Core {
            option("--dut", arguments.dut.to_string());
        }
        if [Some(&arguments.dut), arguments.places.peer()].contains(&Some(&Dut::Libfabric)) {
            option("--libfabric", arguments.libfabric.display().to_string());
        }
        if arguments.dut == Dut::Libfabric {
            let words = arguments.provider.provider().words();
            for pair in words.chunks(2) {
                let [name, value] = [&pair[0], &pair[1]].map(|word| word.to_string_lossy());
                option(&name, value.into_owned());
            }
        }
        for (name, seconds, default) in [
            (
                "--start-time",
                arguments.start_time,
                Timeouts::DEFAULT.start,
            ),
            (
                "--answer-time",
                arguments.answer_time,
                Timeouts::DEFAULT.answer,
            ),
        ] {
            if seconds != default.as_secs() {
                option(name, seconds.to_string());
            }
        }
    } else {
        if arguments.seeds > 0 {
            option("--seeds", arguments.seeds.to_string());
        }
        if let Some(changes) = &arguments.each_event {
            option("--each-event", changes.to_string());
        }
    }
    if let Some(expected) = &arguments.expected {
        option("--expected", expected.display().to_string());
    }
    if arguments.strict {
        words.push("--strict".into());
    } else if arguments.fail_on != Severity::Error {
        option("--fail-on", arguments.fail_on.to_string());
    }
    join(&words)
}

/// The reason why a program did not identify itself.
struct IdentityError {
    text: String,
    /// Whether the failure is caused by the program, and not by the command line or the
    /// environment.
    is_program: bool,
    started: Identity,
}

/// Starts a program once to query its identity.
fn introduce(outside: &mut ProgramOpener) -> Result<Identity, Box<IdentityError>> {
    let error = match outside.start("under-test", &BTreeMap::new()) {
        Ok((_, identity)) => return Ok(identity),
        Err(error) => error,
    };
    let (text, is_program, name, file) = match &outside.program {
        Program::Exec { words } => (
            format!(
                "--dut exec:{}: {error}; it has to answer `{}` on its standard output \
                 (docs/driver.md)",
                words.join(" "),
                Command::Hello { version: VERSION }.line()
            ),
            !matches!(error, PlayerError::Start { .. }),
            efa_suite::name_of(Path::new(&words[0])),
            words[0].clone(),
        ),
        Program::Libfabric { library, provider } => (
            error.to_string(),
            !matches!(
                error,
                PlayerError::Start { .. } | PlayerError::Ended { is_unfit: true, .. }
            ),
            provider.software(),
            library.display().to_string(),
        ),
        Program::Core => (
            error.to_string(),
            false,
            efa_suite::ENGINE.to_owned(),
            String::new(),
        ),
    };
    Err(Box::new(IdentityError {
        text,
        is_program,
        started: Identity {
            name,
            release: None,
            path: Some(file),
            commit: None,
        },
    }))
}
