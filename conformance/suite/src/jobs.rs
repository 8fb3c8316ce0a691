//! Runs traces in several processes at once, each with its own fabric.
//!
//! A device and its fabric belong to a process, so cases that run at the same time without
//! affecting each other need separate processes. Each process reads the settings from a line of
//! JSON, and answers `null` or the reason why it cannot start. Each further line is the path of a
//! trace, which the process answers with an [`TraceResult`].

use std::io::{self, BufRead, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use efa_play::answers::{self, Conversation, NoAnswer, read_line, write_line};
use efa_replay::replay::backend::BackendError;
use efa_shm::{ENV_FABRIC, ENV_RUN, Fabric, FabricError, HostConfig};

use super::runner::{Runner, Settings};
use super::{TraceResult, parallel};

/// The traces cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    /// A backend cannot be used in this process.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Several processes cannot run cases on the same real device at once.
    #[error(
        "{jobs} jobs with verbs need emulated devices, which `efa-emu run` provides; on real ones \
         cases would meet ({source})"
    )]
    RealDevice {
        /// The requested number of processes.
        jobs: NonZeroUsize,
        /// The reason why this process has no emulated devices.
        source: FabricError,
    },
    /// The system starts no process.
    #[error("cannot start a process that runs traces: {0}")]
    Start(#[from] io::Error),
    /// A process has started, but has not reported that it is ready.
    #[error("cannot start a process that runs traces: {0}")]
    NoAnswer(#[from] NoAnswer),
    /// A process has started, and reports why it cannot run traces.
    #[error("{0}")]
    Refused(String),
}

/// Runs all traces. `ended` gets the results in the order of `paths`, each as soon as all earlier
/// ones have been passed on. With one job the traces run in this process, and fault rules on its
/// fabric apply. Several jobs run in processes that `program` starts, which must call [`serve`].
///
/// # Errors
/// If there is no device, if several jobs would share a real device, or if a process cannot be
/// started.
pub fn run_all(
    paths: &[PathBuf],
    settings: &Settings,
    jobs: NonZeroUsize,
    program: impl Fn() -> Command + Sync,
    mut ended: impl FnMut(&Path, TraceResult),
) -> Result<(), JobsError> {
    if jobs.get() == 1 {
        let mut runner = Runner::open(settings.clone())?;
        for path in paths {
            ended(path, runner.run(path));
        }
        return Ok(());
    }
    let own = settings.hw.then(HostConfig::from_env).transpose();
    let own = own
        .map_err(|source| JobsError::RealDevice { jobs, source })?
        .map(|host| host.fabric);
    let jobs = jobs.get().min(paths.len());
    let start = |number: usize| {
        let mut command = program();
        if let Some(own) = &own {
            let fabric = format!("{own}-job-{}-{number}", std::process::id());
            // The run is not on that fabric, and need not be.
            command.env(ENV_FABRIC, fabric).env_remove(ENV_RUN);
        }
        Job::start(number, command, settings)
    };
    let started: Result<Vec<Job>, JobsError> = (0..jobs).map(start).collect();
    let mut started = started?;
    let run = |job: &mut Job, path: &PathBuf| job.run(path, start);
    parallel::in_order(paths, &mut started, run, |path, result| ended(path, result));
    drop(started);
    if settings.hw {
        // The fabrics of the jobs have no live process now.
        Fabric::remove_dead();
    }
    Ok(())
}

/// The main function of a process that [`run_all`] starts. It returns when its input ends.
///
/// # Errors
/// If its input is not in the format of [`run_all`], or its output cannot be written.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let Some(settings) = read_line(&mut input)? else {
        return Ok(());
    };
    let mut runner = match Runner::open(settings) {
        Ok(runner) => runner,
        Err(error) => return write_line(&mut output, &Some(error.to_string())),
    };
    write_line(&mut output, &None::<String>)?;
    answers::serve(input, output, |path: PathBuf| runner.run(&path))
}

/// A process that runs traces.
struct Job {
    number: usize,
    process: Conversation,
}

impl Job {
    fn start(number: usize, mut command: Command, settings: &Settings) -> Result<Job, JobsError> {
        let mut process = Conversation::start(&mut command)?;
        match process.ask(settings, Duration::MAX)? {
            None => Ok(Job { number, process }),
            Some(problem) => Err(JobsError::Refused(problem)),
        }
    }

    /// Runs a trace. If the process dies, that is the trace's result, and one that `start` starts
    /// continues.
    fn run(&mut self, path: &Path, start: impl Fn(usize) -> Result<Job, JobsError>) -> TraceResult {
        self.process
            .ask(path, Duration::MAX)
            .unwrap_or_else(|error| {
                let mut problem = format!(
                    "{}: the process that ran it gave no result: {error}",
                    path.display(),
                );
                match start(self.number) {
                    Ok(job) => *self = job,
                    Err(error) => problem = format!("{problem}; then: {error}"),
                }
                TraceResult::unfit(problem)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    fn settings(hw: bool) -> Settings {
        Settings {
            emu: !hw,
            hw,
            outside: None,
            dut: "core".to_owned(),
            options: Options::default(),
        }
    }

    fn two() -> NonZeroUsize {
        NonZeroUsize::new(2).unwrap()
    }

    /// A program that answers with a shell script.
    fn script(text: &str) -> impl Fn() -> Command + Sync {
        move || {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        }
    }

    #[test]
    fn results_are_ordered_one_process_each() {
        let paths: Vec<PathBuf> = (0..20).map(|n| format!("{n}").into()).collect();
        // The delay of an answer depends on the question, and each answer repeats its question.
        let answer = r#"read settings; echo null
            while IFS= read -r path; do
                [ "$path" != '"3"' ] || sleep 0.2
                path=${path#?}; echo "{\"cases\":[],\"unfit\":[\"${path%?}\"]}"
            done"#;
        let mut seen = Vec::new();
        run_all(
            &paths,
            &settings(false),
            two(),
            script(answer),
            |path, ended| {
                assert_eq!(ended.unfit, [path.display().to_string()]);
                seen.push(path.to_owned());
            },
        )
        .unwrap();
        assert_eq!(seen, paths);
    }

    #[test]
    fn a_process_that_dies_costs_one_result() {
        let paths: Vec<PathBuf> = ["a", "deadly", "b", "c"].map(PathBuf::from).to_vec();
        let answer = r#"read settings; echo null
            while IFS= read -r path; do
                [ "$path" != '"deadly"' ] || kill -SEGV $$
                echo '{"cases":[],"unfit":[]}'
            done"#;
        let mut lost = Vec::new();
        let mut count = 0;
        run_all(
            &paths,
            &settings(false),
            two(),
            script(answer),
            |_, ended| {
                count += 1;
                lost.extend(ended.unfit);
            },
        )
        .unwrap();
        assert_eq!((count, lost.len()), (4, 1), "{lost:?}");
        assert!(
            lost[0].starts_with("deadly: the process that ran it gave no result"),
            "{lost:?}"
        );
    }

    #[test]
    fn a_failed_start_is_reported_once() {
        let paths = [PathBuf::from("a"), PathBuf::from("b")];
        let says = |program: &str| {
            run_all(
                &paths,
                &settings(false),
                two(),
                script(program),
                |path, _| panic!("{}", path.display()),
            )
            .unwrap_err()
            .to_string()
        };
        assert_eq!(says("read settings; echo '\"no device\"'"), "no device");
        assert!(
            says("exit").contains("cannot start a process"),
            "{}",
            says("exit")
        );
    }

    #[test]
    fn parallel_results_equal_sequential_ones() {
        let traces = efa_testing::workspace::traces();
        let paths = crate::find_traces(&[traces], Some("eager")).unwrap();
        let path = &paths[0];
        let mut here = Runner::open(settings(false)).unwrap().run(path);
        let question = format!(
            "{}\n{}\n",
            serde_json::to_string(&settings(false)).unwrap(),
            serde_json::to_string(path).unwrap()
        );
        let mut output = Vec::new();
        serve(question.as_bytes(), &mut output).unwrap();
        let mut output = output.as_slice();
        assert_eq!(
            read_line::<Option<String>>(&mut output).unwrap(),
            Some(None)
        );
        let mut there: TraceResult = read_line(&mut output).unwrap().unwrap();
        for case in here.cases.iter_mut().chain(&mut there.cases) {
            case.duration = std::time::Duration::ZERO;
        }
        assert!(!here.cases.is_empty());
        assert_eq!(format!("{here:?}"), format!("{there:?}"));
    }
}
