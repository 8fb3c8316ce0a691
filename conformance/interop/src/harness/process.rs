//! Processes with a time limit, and all their children.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::bench::Bench;
use super::not_measured::{NotMeasured, failed};
use efa_commands::ports::{is_listened_on, is_listened_on_beside};
use efa_commands::process_group::{ProcessGroup, ends_within};
use efa_play::drive::{LONGEST_ANSWER, Line};
use efa_play::player::hosted::HostedEvent;
use efa_play::player::{HostDevice, contain};

/// The number of lines of each output that a failure shows.
const SHOWN: usize = 20;
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Time limit for the rest of a process's output. A grandchild may keep it open.
const DRAIN: Duration = Duration::from_secs(2);
/// Interval of polls of a process.
const TICK: Duration = Duration::from_millis(5);

/// The output of a process so far.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn follow(&self, mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<()> {
        let output = self.clone();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                output.lock().extend_from_slice(&chunk[..count]);
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock()).into_owned()
    }
}

/// A process in its own process group, which is killed when this is dropped.
pub struct Running<'a> {
    bench: &'a Bench<'a>,
    /// The host and the command, for messages.
    what: String,
    group: ProcessGroup,
    stdout: Output,
    stderr: Output,
    readers: Vec<thread::JoinHandle<()>>,
    /// Further reports of its host, if that is another machine.
    hosted: Option<HostedOutput>,
    /// Open as long as the program should run on another host.
    wanted: Option<ChildStdin>,
}

/// Reports of another host about its program.
#[derive(Clone)]
struct HostedOutput {
    host: String,
    heard: Arc<Mutex<HostReports>>,
}

#[derive(Default)]
struct HostReports {
    listens: bool,
    /// The missing requirement of the host.
    lacks: Option<String>,
}

impl HostedOutput {
    fn lock(&self) -> MutexGuard<'_, HostReports> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the host's reports, and writes the program's capture to a file.
    fn follow(
        &self,
        pipe: impl Read + Send + 'static,
        [stdout, stderr]: [&Output; 2],
        capture: PathBuf,
    ) -> thread::JoinHandle<()> {
        let (hearing, stdout, stderr) = (self.clone(), stdout.clone(), stderr.clone());
        thread::spawn(move || {
            let mut lines = BufReader::new(pipe);
            let mut line = Vec::new();
            loop {
                line.clear();
                let limit = LONGEST_ANSWER as u64;
                match lines.by_ref().take(limit).read_until(b'\n', &mut line) {
                    Ok(1..) => {}
                    _ => return,
                }
                let text = String::from_utf8_lossy(&line);
                match HostedEvent::parse(text.trim_end()) {
                    Ok(HostedEvent::Printed { bytes }) => stdout.lock().extend(bytes.0),
                    Ok(HostedEvent::Complained { bytes }) => stderr.lock().extend(bytes.0),
                    Ok(HostedEvent::Listens {}) => hearing.lock().listens = true,
                    Ok(HostedEvent::Lacks { text }) => hearing.lock().lacks = Some(text),
                    Ok(HostedEvent::Captured { bytes }) => {
                        if let Err(error) = append(&capture, &bytes.0) {
                            let problem = format!("{}: {error}\n", capture.display());
                            stderr.lock().extend(problem.bytes());
                        }
                    }
                    // Possibly output of the remote shell itself.
                    Err(_) => stderr.lock().extend_from_slice(&line),
                }
            }
        })
    }
}

fn append(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options
        .create(true)
        .append(true)
        .open(file)?
        .write_all(bytes)
}

/// A process that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl<'a> Running<'a> {
    /// Starts `command` without input. `what` is its name in messages.
    pub(crate) fn start(
        bench: &'a Bench<'a>,
        what: String,
        command: Command,
    ) -> Result<Self, NotMeasured> {
        let mut running = Self::spawn(bench, what, command, Stdio::null())?;
        let output = running.group.leader.stdout.take();
        running
            .readers
            .extend(output.map(|pipe| running.stdout.follow(pipe)));
        Ok(running)
    }

    /// Starts `command`, which runs a program on another host
    /// ([`efa_play::player::HostedProgram::command`]). Its capture, if there is one, is written to
    /// the file `capture`.
    pub(crate) fn start_hosted(
        bench: &'a Bench<'a>,
        what: String,
        command: Command,
        place: &HostDevice,
        capture: PathBuf,
    ) -> Result<Self, NotMeasured> {
        let mut running = Self::spawn(bench, what, command, Stdio::piped())?;
        running.wanted = running.group.leader.stdin.take();
        let hearing = HostedOutput {
            host: place.host.clone(),
            heard: Arc::default(),
        };
        if let Some(pipe) = running.group.leader.stdout.take() {
            let outputs = [&running.stdout, &running.stderr];
            running.readers.push(hearing.follow(pipe, outputs, capture));
        }
        running.hosted = Some(hearing);
        Ok(running)
    }

    fn spawn(
        bench: &'a Bench<'a>,
        what: String,
        mut command: Command,
        input: Stdio,
    ) -> Result<Self, NotMeasured> {
        command.stdin(input);
        contain(&mut command);
        let mut group = ProcessGroup::start(&mut command)
            .map_err(|error| failed!("cannot start {what}: {error}"))?;
        let (stdout, stderr) = (Output::default(), Output::default());
        let mut readers = Vec::new();
        readers.extend(group.leader.stderr.take().map(|pipe| stderr.follow(pipe)));
        Ok(Running {
            bench,
            what,
            group,
            stdout,
            stderr,
            readers,
            hosted: None,
            wanted: None,
        })
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.group.leader.id()
    }

    /// Its standard output so far.
    pub fn output(&self) -> String {
        self.stdout.text()
    }

    /// Waits until standard output contains `text`.
    pub fn printed(&mut self, text: &str) -> Result<(), NotMeasured> {
        self.printed_times(text, 1)
    }

    /// Waits until standard output contains `text` this many times.
    pub(crate) fn printed_times(&mut self, text: &str, times: usize) -> Result<(), NotMeasured> {
        self.wait_for(&self.stdout.clone(), text, times)
    }

    /// Waits until standard error contains `text`.
    pub(crate) fn complained(&mut self, text: &str) -> Result<(), NotMeasured> {
        self.wait_for(&self.stderr.clone(), text, 1)
    }

    fn wait_for(&mut self, output: &Output, text: &str, times: usize) -> Result<(), NotMeasured> {
        let output = output.clone();
        let is_met = || output.text().matches(text).count() >= times;
        self.wait_until_it(
            is_met,
            &format!("printed `{text}`"),
            &format!("print `{text}`"),
        )
    }

    /// Waits until `is_met` returns true. `done` and `not_done` are the ends of messages that begin
    /// with 'before it' and 'did not'.
    fn wait_until_it(
        &mut self,
        is_met: impl Fn() -> bool,
        done: &str,
        not_done: &str,
    ) -> Result<(), NotMeasured> {
        loop {
            if is_met() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.group.leader.try_wait() {
                // Its last output may not be read yet: it may contain the text, or the reason for
                // its absence.
                self.drain();
                return match is_met() {
                    true => Ok(()),
                    false => Err(self.failed(&format!("ended ({status}) before it {done}"))),
                };
            }
            if self.bench.left().is_zero() {
                return Err(self.failed(&format!("did not {not_done} in time")));
            }
            thread::sleep(TICK);
        }
    }

    /// Waits until a process on its host, such as the started server, listens on a TCP port. A
    /// program on another host must be started by [`super::Host::serve`] for this.
    pub fn await_listener(&mut self, port: u16) -> Result<(), NotMeasured> {
        match self.hosted.clone() {
            Some(hearing) => self.await_port(port, || hearing.lock().listens),
            None => self.await_port(port, || is_listened_on(port)),
        }
    }

    /// Waits until a process in the network namespace of the process `other` listens on a TCP port.
    pub(crate) fn await_listener_beside(
        &mut self,
        other: u32,
        port: u16,
    ) -> Result<(), NotMeasured> {
        let other = other.to_string();
        self.await_port(port, || is_listened_on_beside(&other, port))
    }

    fn await_port(&mut self, port: u16, listens: impl Fn() -> bool) -> Result<(), NotMeasured> {
        let (done, not_done) = (
            format!("listened on {port}"),
            format!("listen on port {port}"),
        );
        self.wait_until_it(listens, &done, &not_done)
    }

    /// The program's result, for the failure message of its peer program. Waits a moment for the
    /// program to exit.
    pub(crate) fn account(mut self) -> String {
        match self.ends_within(GRACE) {
            Some(status) => {
                self.drain();
                self.shown(&format!("ended ({status})"))
            }
            None => self.shown("went on"),
        }
    }

    /// Waits for its exit, with any status. It is an error if that exceeds the time limit.
    pub fn wait(self) -> Result<Finished, NotMeasured> {
        self.ended(|_| true)
    }

    /// Waits for its successful exit.
    pub fn success(self) -> Result<Finished, NotMeasured> {
        self.ended(|status| status.success())
    }

    /// Waits for its exit, whose status `permits` must accept.
    pub(crate) fn ended(
        mut self,
        permits: impl Fn(ExitStatus) -> bool,
    ) -> Result<Finished, NotMeasured> {
        match self.ends_within(self.bench.left()) {
            Some(status) if permits(status) => Ok(self.finished(status)),
            Some(status) => {
                self.drain();
                let lost = match (&self.hosted, status.code()) {
                    (Some(hearing), Some(255)) => {
                        format!(
                            ": the connection to {} ended, or a signal ended the program",
                            hearing.host
                        )
                    }
                    _ => String::new(),
                };
                Err(self.failed(&format!("failed ({status}){lost}")))
            }
            None => Err(self.failed("took too long and was ended")),
        }
    }

    /// Waits at most `time` for its exit.
    pub fn ends_within(&mut self, time: Duration) -> Option<ExitStatus> {
        ends_within(&mut self.group.leader, time.min(self.bench.left()))
    }

    /// Sends SIGTERM to it and to its children.
    pub fn terminate(&self) {
        self.group.signal(libc::SIGTERM);
    }

    /// Sends SIGKILL to it and to its children.
    pub(crate) fn kill(&self) {
        self.group.signal(libc::SIGKILL);
    }

    fn finished(&mut self, status: ExitStatus) -> Finished {
        self.drain();
        Finished {
            status,
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }

    /// Waits for the end of the output.
    fn drain(&mut self) {
        // The end of the connection follows all reports of another host, including captures.
        let drain = match self.hosted {
            Some(_) => self.bench.left().max(DRAIN),
            None => DRAIN,
        };
        let deadline = Instant::now() + drain;
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < deadline {
            thread::sleep(TICK);
        }
    }

    /// A failure with the last lines of the output.
    fn failed(&self, how: &str) -> NotMeasured {
        if let Some(hearing) = &self.hosted
            && let Some(lacks) = &hearing.lock().lacks
        {
            return NotMeasured::Skipped(format!("{}: {lacks}", hearing.host));
        }
        NotMeasured::Failed(self.shown(how))
    }

    /// Its name, `how` it ended, and the last lines of its output. Longer output is kept in a file
    /// of the cell's directory.
    fn shown(&self, how: &str) -> String {
        let mut text = format!("{} {how}", self.what);
        for (name, output) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let printed = output.text();
            let lines: Vec<&str> = printed.lines().collect();
            let hidden = lines.len().saturating_sub(SHOWN);
            if hidden > 0 {
                let file = self.bench.directory().join(format!("{}.{name}", self.id()));
                let kept = match std::fs::write(&file, &printed) {
                    Ok(()) => format!("in {}", file.display()),
                    Err(error) => format!("lost: {}: {error}", file.display()),
                };
                text.push_str(&format!("\n{name}: {hidden} lines more {kept}"));
            }
            for line in &lines[hidden..] {
                text.push_str(&format!("\n{name}: {line}"));
            }
        }
        text
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // A program on another host is killed by that host.
        if self.wanted.take().is_some() {
            ends_within(&mut self.group.leader, GRACE + GRACE);
        }
        // `efa-emu run` forwards the signal and cleans up. Processes that survive SIGTERM are
        // killed.
        if ends_within(&mut self.group.leader, Duration::ZERO).is_none() {
            self.group.signal(libc::SIGTERM);
            ends_within(&mut self.group.leader, GRACE);
        }
        self.group.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Lab, Selection};
    use super::*;
    use efa_commands::installation::Installation;
    use efa_play::drive::Bytes;
    use efa_play::player::Launcher;

    /// Runs a script in a cell with the time limit `limit`.
    fn with_bench<T>(limit: Duration, body: impl FnOnce(&Bench) -> T) -> T {
        let launcher = Launcher {
            efa_emu: "efa-emu".into(),
            efa_conformance: "efa-conformance".into(),
            fabric: "process-tests".into(),
        };
        let installation = Installation::of_this_program().unwrap();
        // The tests are processes of their own, which run at the same time.
        let directory = tempfile::tempdir().unwrap();
        let lab = Lab::new(&installation, launcher, Selection::default())
            .unwrap()
            .in_directory(directory.path().into());
        let bench = Bench::new(&lab, "process-tests", "cell", Instant::now() + limit).unwrap();
        body(&bench)
    }

    fn shell<'a>(bench: &'a Bench<'a>, script: &str) -> Running<'a> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(bench, "script".into(), command).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_failure_shows_the_output() {
        with_bench(LONG, |bench| {
            let not_measured = shell(bench, "echo out; echo err >&2; exit 3")
                .success()
                .unwrap_err();
            let NotMeasured::Failed(text) = not_measured else {
                panic!("{not_measured:?}")
            };
            assert!(text.contains("exit status: 3"), "{text}");
            assert!(
                text.contains("stdout: out") && text.contains("stderr: err"),
                "{text}"
            );
        });
    }

    #[test]
    fn a_failure_keeps_all_that_was_printed() {
        with_bench(LONG, |bench| {
            let not_measured = shell(bench, "seq 100 125; exit 3").success().unwrap_err();
            let NotMeasured::Failed(text) = not_measured else {
                panic!("{not_measured:?}")
            };
            assert!(
                text.contains("stdout: 106\n") && !text.contains("105\n"),
                "{text}"
            );
            let (_, file) = text.split_once("stdout: 6 lines more in ").unwrap();
            let kept = std::fs::read_to_string(file.lines().next().unwrap()).unwrap();
            assert_eq!(
                kept,
                (100..=125).map(|n| format!("{n}\n")).collect::<String>()
            );
        });
    }

    #[test]
    fn a_timeout_kills_the_whole_process_group() {
        // Long enough for the child to start on a busy machine.
        with_bench(Duration::from_secs(3), |bench| {
            // The child ignores SIGTERM, and would outlive the shell.
            let script = "sh -c 'trap \"\" TERM; echo child $$; while :; do sleep 1; done' & wait";
            let running = shell(bench, script);
            let output = running.stdout.clone();
            let not_measured = running.success().unwrap_err();
            assert!(
                matches!(&not_measured, NotMeasured::Failed(text) if text.contains("too long")),
                "{not_measured:?}"
            );
            let text = output.text();
            let child = text.trim().strip_prefix("child ").unwrap();
            assert_goes(child);
        });
    }

    /// A signal takes effect when the process is next scheduled, which may be after the sending
    /// call: the process has a minute to exit. It must be one that would not exit by itself.
    fn assert_goes(process: &str) {
        let deadline = Instant::now() + LONG;
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            // Exited, or a zombie.
            if stat.is_empty() || stat.contains(") Z ") {
                return;
            }
            assert!(Instant::now() < deadline, "still there: {stat}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn nothing_outlives_a_run_that_is_killed() {
        let starter = thread::spawn(|| {
            with_bench(LONG, |bench| {
                let mut running = shell(bench, "echo child $$; exec sleep 1000");
                running.printed("child").unwrap();
                let text = running.output();
                // Simulates a kill of the thread: nothing is dropped.
                std::mem::forget(running);
                text
            })
        });
        let text = starter.join().unwrap();
        assert_goes(text.trim().strip_prefix("child ").unwrap());
    }

    /// A process that exits before its last output was received from another host.
    fn late<'a>(bench: &'a Bench<'a>, said: &HostedEvent) -> Running<'a> {
        let mut command = Command::new("sh");
        let script = format!("(sleep 0.3; echo '{}') & exit 2", said.line());
        command.args(["-c", &script]);
        let place: HostDevice = "node7".parse().unwrap();
        let capture = bench.capture("late");
        Running::start_hosted(bench, "script".into(), command, &place, capture).unwrap()
    }

    #[test]
    fn final_output_counts_after_exit() {
        with_bench(LONG, |bench| {
            let text = "ib_send_lat is not installed".to_owned();
            let not_measured = late(bench, &HostedEvent::Lacks { text }).await_listener(1);
            assert!(
                matches!(&not_measured, Err(NotMeasured::Skipped(text)) if text == "node7: ib_send_lat is not installed"),
                "{not_measured:?}"
            );
            let bytes = Bytes(b"ready".to_vec());
            let printed = late(bench, &HostedEvent::Printed { bytes }).printed("ready");
            assert!(printed.is_ok(), "{printed:?}");
            let not_measured = late(bench, &HostedEvent::Listens {}).printed("ready");
            assert!(
                matches!(&not_measured, Err(NotMeasured::Failed(text)) if text.contains("ended (exit status: 2) before it printed `ready`")),
                "{not_measured:?}"
            );
        });
    }

    #[test]
    fn waits_for_a_line_or_reports_its_absence() {
        with_bench(LONG, |bench| {
            let mut running = shell(bench, "echo ready; exec sleep 60");
            running.printed("ready").unwrap();
            let mut running = shell(bench, "exit 0");
            let not_measured = running.printed("ready").unwrap_err();
            assert!(
                matches!(&not_measured, NotMeasured::Failed(text) if text.contains("`ready`")),
                "{not_measured:?}"
            );
        });
    }
}
