//! Running traces in several processes at once, each with a fabric of its own.
//!
//! A device belongs to its process, and so does the fabric that it is on: cases that run side by side
//! and must not meet need processes. Each is told the settings in a line of JSON and answers `null`, or
//! why it cannot start; then each line that it is told is the path of a trace, and its answer an
//! [`Ended`].

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use efa_emu::transport::{DEFAULT_FABRIC, ENV_FABRIC, ENV_HOST, Fabric};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::runner::{Ended, Runner, Settings};

/// Runs all traces. `ended` gets their results in the order of `paths`, each as soon as those before
/// it have been given. With one job they run in this process, and what is armed on its fabric holds;
/// several jobs run in processes that `program` starts, which must call [`serve`].
///
/// # Errors
/// A message if the environment does not permit it: there is no device, it is a real one, of which the
/// jobs would need several, or a process cannot be started.
pub fn run_all(
    paths: &[PathBuf],
    settings: &Settings,
    jobs: NonZeroUsize,
    program: impl Fn() -> Command + Sync,
    mut ended: impl FnMut(&Path, Ended),
) -> Result<(), String> {
    if jobs.get() == 1 {
        let mut runner = Runner::open(settings.clone()).map_err(|error| error.to_string())?;
        for path in paths {
            ended(path, runner.run(path));
        }
        return Ok(());
    }
    if settings.hw && std::env::var_os(ENV_HOST).is_none() {
        return Err(format!(
            "--jobs {jobs} with verbs needs emulated devices, which `efa-emu run` provides; on real \
             ones cases would meet: use --jobs 1"
        ));
    }
    let jobs = jobs.get().min(paths.len());
    let own = std::env::var(ENV_FABRIC).unwrap_or_else(|_| DEFAULT_FABRIC.to_owned());
    let start = |job: usize| {
        let mut command = program();
        let fabric = format!("{own}-job-{}-{job}", std::process::id());
        command.env(ENV_FABRIC, fabric);
        Job::start(command, settings)
    };
    let started: Result<Vec<Job>, String> = (0..jobs).map(start).collect();
    let next = AtomicUsize::new(0);
    let (results, all) = channel();
    thread::scope(|scope| {
        for (number, job) in started?.into_iter().enumerate() {
            let (results, next, start) = (results.clone(), &next, &start);
            scope.spawn(move || job.work(paths, next, &results, || start(number)));
        }
        drop(results);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (index, result) in all {
            early.insert(index, result);
            while let Some(result) = early.remove(&due) {
                ended(&paths[due], result);
                due += 1;
            }
        }
        Ok::<(), String>(())
    })?;
    if settings.hw {
        // Those of the jobs, among others.
        Fabric::remove_dead();
    }
    Ok(())
}

/// What [`run_all`] starts: obeys until its input ends.
///
/// # Errors
/// If its input is not what [`run_all`] writes, or its output cannot be written.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let Some(settings) = read_line(&mut input)? else {
        return Ok(());
    };
    let mut runner = match Runner::open(settings) {
        Ok(runner) => runner,
        Err(error) => return write_line(&mut output, &Some(error.to_string())),
    };
    write_line(&mut output, &None::<String>)?;
    while let Some(path) = read_line::<PathBuf>(&mut input)? {
        write_line(&mut output, &runner.run(&path))?;
    }
    Ok(())
}

fn write_line(output: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

/// The next line's value; `None` at the end.
fn read_line<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

/// A process that runs traces.
struct Job {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Job {
    fn start(mut command: Command, settings: &Settings) -> Result<Job, String> {
        let failed = |error: io::Error| format!("cannot start a process that runs traces: {error}");
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let input = process.stdin.take();
        let output = process.stdout.take();
        let output = output.ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        let mut job = Job {
            process,
            input,
            output: BufReader::new(output),
        };
        match job.ask::<Option<String>>(settings).map_err(failed)? {
            None => Ok(job),
            Some(problem) => Err(problem),
        }
    }

    /// Takes traces until there are no more. That the process did not survive one is its result, and
    /// another process goes on.
    fn work(
        mut self,
        paths: &[PathBuf],
        next: &AtomicUsize,
        results: &Sender<(usize, Ended)>,
        again: impl Fn() -> Result<Job, String>,
    ) {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = paths.get(index) else {
                return;
            };
            let result = self.ask(path).unwrap_or_else(|error| {
                let mut problem = format!(
                    "{}: the process that ran it gave no result: {error}{}",
                    path.display(),
                    self.how_it_ended()
                );
                match again() {
                    Ok(job) => self = job,
                    Err(error) => problem = format!("{problem}; then: {error}"),
                }
                Ended {
                    cases: Vec::new(),
                    unfit: vec![problem],
                }
            });
            // Nobody waits for results any more.
            if results.send((index, result)).is_err() {
                return;
            }
        }
    }

    fn ask<T: for<'a> Deserialize<'a>>(
        &mut self,
        question: &(impl Serialize + ?Sized),
    ) -> io::Result<T> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        write_line(input, &question)?;
        read_line(&mut self.output)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn how_it_ended(&mut self) -> String {
        match self.process.try_wait() {
            Ok(Some(status)) => format!(" ({status})"),
            _ => String::new(),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The end of its input is the sign to end.
        self.input = None;
        let _ = self.process.wait();
    }
}
